"""Server-sent events: a page or a program follows a model without asking again and again."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from starlette.responses import StreamingResponse

from klda.server.errors import ServerError

MAX_WATCHERS = 200
KEEP_ALIVE_SECONDS = 15.0  # between signs of life, by which a connection that is gone is noticed
STREAM_SECONDS = 600.0  # then the client connects again, and its key is checked again


class Watchers:
    """Those who wait for changes: each has an event of its own event loop."""

    def __init__(self) -> None:
        self._events: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()
        self.is_open = True

    def notify(self) -> None:
        """Wake them all up; from any thread."""
        with self._lock:
            for event, loop in self._events.items():
                loop.call_soon_threadsafe(event.set)

    def close(self) -> None:
        """End all streams."""
        self.is_open = False
        self.notify()

    async def states(self, state: Callable[[], dict[str, Any]]) -> AsyncIterator[dict | None]:
        """Yield the state now, and whenever it is another; None as a sign of life."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        with self._lock:
            if len(self._events) >= MAX_WATCHERS:
                raise ServerError("Too many clients follow this model: try again later.", 503)
            self._events[event] = loop
        try:
            until, last = loop.time() + STREAM_SECONDS, None
            while True:
                event.clear()
                now = state()
                yield None if now == last else now
                last = now
                if not self.is_open or loop.time() >= until:
                    return
                with suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), KEEP_ALIVE_SECONDS)
        finally:
            with self._lock:
                del self._events[event]


async def event_stream(states: AsyncIterator[dict | None]) -> StreamingResponse:
    """Return the response that sends states as they come; an error before the first is raised."""
    first = await anext(states)

    async def lines() -> AsyncIterator[str]:
        yield "retry: 2000\n" + _event(first)
        async for one in states:
            yield _event(one)

    headers = {"X-Accel-Buffering": "no"}  # nginx is to pass events on as they come
    return StreamingResponse(lines(), media_type="text/event-stream", headers=headers)


def _event(state: dict[str, Any] | None) -> str:
    if state is None:
        return ":\n\n"
    return f"event: change\nid: {state['version']}\ndata: {json.dumps(state)}\n\n"
