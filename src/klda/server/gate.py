"""The ASGI middleware in front of the application: limits, security headers, log, metrics."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from klda.server.errors import INTERNAL, ServiceError
from klda.server.keys import Keys, RateLimit, secret_of
from klda.server.settings import ServiceSettings, is_loopback

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
MAX_SIGN_IN = 4096  # bytes of a form with a key
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}

log = logging.getLogger("klda.server")


class Gate:
    """What every request passes before the application sees it, and every response after.

    `observe` is called with method, path, status and seconds of each request, `arriving` with +1
    and -1 around a predict.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServiceSettings,
        keys: Keys,
        observe: Callable[[str, str, int, float], None],
        arriving: Callable[[int], None],
        state: Any = None,
    ) -> None:
        self.app, self.state = app, state
        self._settings, self._keys = settings, keys
        self._observe, self._arriving = observe, arriving
        self._limit = RateLimit(settings.rate, settings.burst)
        self._hosts = settings.allowed_hosts
        if not self._hosts and not settings.keys and is_loopback(settings.host):
            # Otherwise a page of another site could reach an open service by a name of its own
            # that resolves to 127.0.0.1.
            own = settings.host.strip("[]").lower()
            self._hosts = (*LOOPBACK_NAMES, f"[{own}]" if ":" in own else own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._max_body(scope))
        is_predict = scope["path"] == "/v1/predict"
        self._arriving(is_predict)
        try:
            self._check(scope, Headers(scope=scope))
            await self.app(scope, exchange.receive, exchange.send)
        except ServiceError as error:
            await exchange.refuse(error)
        except Exception:
            log.exception("request", extra={"request": exchange.id, "path": scope["path"]})
            await exchange.refuse(ServiceError(INTERNAL, 500))
        finally:
            self._arriving(-is_predict)
            self._note(scope, exchange)

    def _max_body(self, scope: Scope) -> int:
        """Bytes of the largest body; forms that need no key are small."""
        most = self._settings.max_body
        return min(most, MAX_SIGN_IN) if scope["path"] in ("/login", "/logout") else most

    def _check(self, scope: Scope, headers: Headers) -> None:
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        is_probe = scope["path"] == "/v1/health"  # by any name, at any rate: it reveals nothing
        if self._hosts and name.lower() not in self._hosts and not is_probe:
            raise ServiceError(f"This service does not answer for the host {name[:100]!r}.", 403)
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.split("://", 1)[-1] != host
        if is_foreign and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            raise ServiceError("Requests from pages of other sites are refused.", 403)
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body(scope):
            raise _too_large(self._max_body(scope))
        if not is_probe:
            address = str((scope.get("client") or ("",))[0])
            self._limit.take(self._keys.client(secret_of(headers), address))

    def _note(self, scope: Scope, exchange: _Exchange) -> None:
        seconds = time.perf_counter() - exchange.began
        path = getattr(scope.get("route"), "path", None) or "other"
        # A client can invent any number of methods, and each would stay in the metrics forever.
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._observe(method, path, exchange.status, seconds)
        noted = {"request": exchange.id, "method": method, "path": path, "status": exchange.status}
        log.info("request", extra={**noted, "ms": round(seconds * 1000, 1)})


class _Exchange:
    """One request and its response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        self.id = uuid.uuid4().hex[:16]
        self.began = time.perf_counter()
        self.status = 0
        self._scope, self._receive, self._send = scope, receive, send
        self._left = self._max_body = max_body

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise _too_large(self._max_body)
        return message

    async def send(self, message: Message) -> None:
        # FastAPI turns the error above into one of its own, which would not say what happened.
        if self._left >= 0:
            await self._send_on(message)
        elif not self.status:
            await self.refuse(_too_large(self._max_body))

    async def _send_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=list(message["headers"]))
            for name, value in {**HEADERS, "x-request-id": self.id}.items():
                headers.setdefault(name, value)
            if self._scope.get("scheme") == "https":
                headers.setdefault("strict-transport-security", "max-age=31536000")
            message = {**message, "headers": headers.raw}
        await self._send(message)

    async def refuse(self, error: ServiceError) -> None:
        """Answer with an error, unless a response has started."""
        if not self.status:
            response = JSONResponse(error.body, error.status, error.headers)
            await response(self._scope, self._receive, self._send_on)


def _too_large(most: int) -> ServiceError:
    return ServiceError(
        f"The request is larger than {most} bytes: send fewer inputs at a time.", 413
    )
