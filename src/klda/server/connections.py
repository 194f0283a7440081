"""Connections: how many there may be, and how long a client may take to send a request.

Uvicorn waits forever for the rest of a request, and accepts connections until the process has no
file descriptors left. Here a connection without a whole request is closed after a while, or at
once if it is the least recently used one when there are too many.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

try:
    import resource
except ImportError:  # on Windows, which has no such limit
    resource = None  # type: ignore[assignment]

BACKLOG = 64  # connections that may wait to be accepted; fewer with few descriptors
# Rounds of the event loop from accepting a connection to closing it as one too many: accept,
# create, close.
ROUNDS = 3
OTHER_FILES = 32  # descriptors for what is opened while the service runs
REST_SECONDS = 2.0  # to send the rest of a request when the service stops


@dataclass(frozen=True)
class Limits:
    """What connections may take."""

    connections: int = 1000  # fewer if the process has no file descriptors for as many
    backlog: int = BACKLOG
    seconds: float = 10.0  # to send a request, or another `least` of it
    least: int = 10_000  # bytes

    def fitted(self, descriptors: float) -> Limits:
        """Return limits with which so many free descriptors are enough, even in a rush."""
        room = int(min(descriptors, 1e6)) - OTHER_FILES
        backlog = max(1, min(self.backlog, room // (4 * ROUNDS)))
        most = max(1, min(self.connections, room - ROUNDS * (backlog + 1)))
        return replace(self, connections=most, backlog=backlog)


def free_descriptors() -> float:
    """Return how many more files and sockets this process can open."""
    if resource is None:
        return math.inf
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    return limit - sum(1 for _ in Path("/dev/fd").iterdir())


class Server(uvicorn.Server):
    """A server that ends streams before it waits for the responses under way."""

    def __init__(self, config: uvicorn.Config, end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._end_streams = end_streams

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop; called once."""
        self._end_streams()
        await super().shutdown(sockets)


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed if its client takes too long to send a request."""

    limits: ClassVar[Limits]
    open: ClassVar[OrderedDict[Connection, None]]  # least recently used first

    @classmethod
    def limited(cls, limits: Limits) -> type[Connection]:
        """Return the class of a server's connections, which are counted together."""
        return type("Connection", (cls,), {"limits": limits, "open": OrderedDict()})

    def connection_made(self, transport: Any) -> None:
        """Start the clock; close another connection if this is one too many."""
        super().connection_made(transport)
        self._close = transport.close
        self._timer: asyncio.TimerHandle | None = None
        self.open[self] = None
        self._set_timer(self.limits.seconds)
        if len(self.open) > self.limits.connections:
            idle = (one for one in self.open if not one.has_request())
            next(idle, self).close()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self not in self.open:  # it is being closed
            return
        self.open.move_to_end(self)
        self._bytes += len(data)
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with the next request; a part of it may be there already."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Finish the request under way; one that is not whole has a moment to become so."""
        super().shutdown()
        if self._timer is not None:
            self._set_timer(REST_SECONDS)

    def close(self) -> None:
        """Close the connection, whatever has arrived."""
        self._forget()
        self._close()

    def has_request(self) -> bool:
        """Whether a whole request waits for its response.

        Only here the state of Uvicorn's protocol is read, which is not documented. If another
        version has other names for it, all requests are taken for whole: none is cut off.
        """
        try:
            cycle = self.cycle
            return cycle is not None and not (cycle.response_complete or cycle.more_body)
        except AttributeError:
            return True

    def _watch(self) -> None:
        """Let the clock run unless there is a whole request."""
        if self.has_request():
            self._set_timer(None)
        elif self._timer is None and self in self.open:
            self._set_timer(self.limits.seconds)

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._bytes, self._timer = 0, None  # bytes received since the timer was set
        if seconds is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        if self._bytes >= self.limits.least:  # a large request, sent slowly
            self._set_timer(self.limits.seconds)
        else:
            self.close()

    def _forget(self) -> None:
        self.open.pop(self, None)
        self._set_timer(None)
