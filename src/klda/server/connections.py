"""Connections: how many there may be, and how long a client may take to send a request.

Uvicorn waits forever for the rest of a request, and accepts connections until the process has no
file descriptors left. Here a connection without a whole request is closed after a while, or at
once if it is the least recently used one when there are too many.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

try:
    import resource
except ImportError:  # on Windows, which has no such limit
    resource = None  # type: ignore[assignment]

MAX_CONNECTIONS = 1000
BACKLOG = 64  # connections that wait to be accepted; all of them are, at one go
OTHER_FILES = 64  # descriptors for everything else
REQUEST_SECONDS = 10.0  # to send a request, or another MIN_BYTES of its body
MIN_BYTES = 10_000
STOP_SECONDS = 2.0  # to send the rest of a request when the service stops


def most_connections() -> int:
    """Return how many connections the process has file descriptors for."""
    if resource is None:
        return MAX_CONNECTIONS
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(16, min(MAX_CONNECTIONS, descriptors - BACKLOG - OTHER_FILES))


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed if its client takes too long to send a request."""

    most: ClassVar[int] = MAX_CONNECTIONS
    open: ClassVar[OrderedDict[Connection, None]] = OrderedDict()  # least recently used first

    @classmethod
    def limited(cls) -> type[Connection]:
        """Return the class of a server's connections, of which it has as many as it can."""
        return type("Connection", (cls,), {"most": most_connections(), "open": OrderedDict()})

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._bytes = 0  # received since the timer was set

    @property
    def _has_begun(self) -> bool:
        """Whether there is a request, perhaps without all of its body, and no response yet."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def _has_request(self) -> bool:
        return self._has_begun and not self.cycle.more_body

    def connection_made(self, transport: Any) -> None:
        """Start the clock; close another connection if this is one too many."""
        super().connection_made(transport)
        self.open[self] = None
        self._set_timer(REQUEST_SECONDS)
        if len(self.open) > self.most:
            idle = (one for one in self.open if not one._has_request)
            next(idle, self)._close()

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
        self.open.pop(self, None)
        self._clear_timer()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Finish the request under way; one that is not whole has a moment to become so."""
        super().shutdown()
        if self._has_begun and not self._has_request:
            self._set_timer(STOP_SECONDS)

    def _watch(self) -> None:
        """Let the clock run unless there is a whole request."""
        if self._has_request:
            self._clear_timer()
        elif self._timer is None and self in self.open:
            self._set_timer(REQUEST_SECONDS)

    def _set_timer(self, seconds: float) -> None:
        self._clear_timer()
        self._bytes = 0
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _clear_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self._has_begun and self._bytes >= MIN_BYTES:  # a large body, sent slowly
            self._set_timer(REQUEST_SECONDS)
        else:
            self._close()

    def _close(self) -> None:
        self.open.pop(self, None)
        self._clear_timer()
        self.transport.close()
