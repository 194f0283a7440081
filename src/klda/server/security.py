"""Who may do what, and how often: keys and roles, limits, headers, requests from other sites."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from klda.server.errors import (
    ForbiddenError,
    RateError,
    ServiceError,
    TooLargeError,
    UnauthorizedError,
)
from klda.server.settings import ApiKey, Settings, is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
SESSION_COOKIE = "klda_session"
SESSION_SECONDS = 12 * 3600
MOST_SIGN_IN = 4096  # bytes of a form with a key
COUNTED = "klda.counted"  # in a scope: the process that it was passed on to has counted it
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_MOST_CLIENTS = 10_000

HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)

log = logging.getLogger("klda.server")


class Keys:
    """Keys and what they allow; only their digests are held.

    Parameters
    ----------
    keys : tuple of ApiKey
        Without any, everyone may teach.
    """

    def __init__(self, keys: tuple[ApiKey, ...]) -> None:
        self._digests = [(_digest(key.secret), key.role) for key in keys]
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    @property
    def required(self) -> bool:
        """Whether a key is needed at all."""
        return bool(self._digests)

    def role(self, secret: str | None) -> str | None:
        """Return the role of a key, or None if it is not known.

        Every known key is compared, in constant time, so that the time tells nothing.

        Parameters
        ----------
        secret : str or None
            What the client gave.

        Returns
        -------
        {"ask", "teach"} or None
        """
        if not self._digests:
            return "teach"
        given = _digest(secret or "")
        found = None
        for digest, role in self._digests:
            if hmac.compare_digest(given, digest):
                found = role
        return found

    def open_session(self, secret: str) -> str | None:
        """Return a token for the page's cookie in exchange for a key."""
        role = self.role(secret)
        if role is None:
            return None
        token = secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = (role, time.monotonic() + SESSION_SECONDS)
        while len(self._sessions) > _MOST_CLIENTS:
            self._sessions.popitem(last=False)
        return token

    def session_role(self, token: str | None) -> str | None:
        """Return the role of a session, or None if there is none."""
        if not self._digests:
            return "teach"
        role, until = self._sessions.get(_digest(token or ""), (None, 0.0))
        return role if time.monotonic() < until else None

    def close_session(self, token: str | None) -> None:
        """End a session."""
        self._sessions.pop(_digest(token or ""), None)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def require_role(keys: Keys, secret: str | None, wanted: str) -> None:
    """Raise unless a key allows something.

    Parameters
    ----------
    keys : Keys
        Those that are known.
    secret : str or None
        What the client gave.
    wanted : {"ask", "teach"}
        What it wants to do.
    """
    check_role(keys.role(secret), wanted)


def check_role(role: str | None, wanted: str) -> None:
    """Raise unless a role allows something."""
    if role is None:
        raise UnauthorizedError(
            "A key is needed: send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."
        )
    if wanted == "teach" and role != "teach":
        raise ForbiddenError("This key may ask but not teach: use one with the role teach.")


class RateLimit:
    """Token buckets, one a client.

    Parameters
    ----------
    rate : float
        Requests a second; 0 is no limit.
    burst : int
        Requests at once.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self.rate, self.burst = rate, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float | None = None) -> None:
        """Count a request; raises `RateError` if it is one too many."""
        if not self.rate:
            return
        now = time.monotonic() if now is None else now
        tokens, since = self._buckets.pop(client, (self.burst, now))
        tokens = min(self.burst, tokens + (now - since) * self.rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - 1 if allowed else tokens, now)
        while len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise RateError(
                f"Too many requests: at most {self.rate:g} a second. Wait a moment, or send more "
                "inputs in one request."
            )


class Gate:
    """What every request passes before the application sees it, and every answer after.

    Limits on size and rate, the host it is addressed to, pages of other sites, security headers,
    the request's log line and metrics.

    Parameters
    ----------
    app : ASGI application
        What is behind it.
    settings : Settings
        Limits.
    keys : Keys
        To tell clients apart.
    observe : callable
        Called with method, path, status and seconds.
    announce : callable
        Called with +1 and -1 around a predict.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        settings: Settings,
        keys: Keys,
        observe: Callable[[str, str, int, float], None],
        announce: Callable[[int], None],
    ) -> None:
        self._app, self._settings, self._keys = app, settings, keys
        self._observe, self._announce = observe, announce
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
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._most(scope))
        predicts = scope["path"] == "/v1/predict"
        self._announce(predicts)
        try:
            self._check(scope, exchange.headers)
            await self._app(scope, exchange.receive, exchange.send)
        except ServiceError as error:
            await exchange.refuse(error)
        except Exception:
            log.exception("request", extra={"request": exchange.id, "path": scope["path"]})
            await exchange.refuse(internal_error())
        finally:
            self._announce(-predicts)
            self._note(scope, exchange)

    def _most(self, scope: Scope) -> int:
        """Bytes of the largest body: forms that need no key have no large one."""
        most = self._settings.max_body
        return min(most, MOST_SIGN_IN) if scope["path"] in ("/login", "/logout") else most

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        is_probe = scope["path"] == "/v1/health"  # by whatever name; it tells nothing
        if self._hosts and name.lower() not in self._hosts and not is_probe:
            raise ForbiddenError(f"This service does not answer for the host {name[:100]!r}.")
        origin = headers.get(b"origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            address = origin.decode("latin-1").split("://", 1)[-1]
            if address != host:
                raise ForbiddenError("Requests from pages of other sites are refused.")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._most(scope):
            raise _too_large(self._most(scope))
        if not is_probe:
            self._limit.take(self._client(scope, headers))

    def _client(self, scope: Scope, headers: dict[bytes, bytes]) -> str:
        secret = secret_of(headers)
        if secret and self._keys.required and self._keys.role(secret):
            return _digest(secret).hex()
        return str((scope.get("client") or ("",))[0])

    def _note(self, scope: Scope, exchange: _Exchange) -> None:
        if scope.get(COUNTED):
            return
        seconds = time.perf_counter() - exchange.began
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        # A client can make up methods without end, and each would stay in the metrics for ever.
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._observe(method, path, exchange.status, seconds)
        log.info(
            "request",
            extra={
                "request": exchange.id,
                "method": method,
                "path": path,
                "status": exchange.status,
                "ms": round(seconds * 1000, 1),
            },
        )


class _Exchange:
    """One request and its answer, counted and completed."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, max_body: int) -> None:
        self.id = uuid.uuid4().hex[:16]
        self.began = time.perf_counter()
        self.status = 0
        self.headers = {name.lower(): value for name, value in scope["headers"]}
        self._receive, self._send = receive, send
        self._left = self._max_body = max_body
        self._refused = False
        self._secure = scope.get("scheme") == "https"

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise _too_large(self._max_body)
        return message

    async def send(self, message: Message) -> None:
        if self._left < 0 and not self.status:
            # Whatever the application made of the error above: this is what happened.
            self._left = 0
            await self.refuse(_too_large(self._max_body))
            self._refused = True
        if not self._refused:
            await self._send_on(message)

    async def _send_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            present = {name.lower() for name, _ in message["headers"]}
            added = [pair for pair in HEADERS if pair[0] not in present]
            if self._secure:
                added.append((b"strict-transport-security", b"max-age=31536000"))
            if b"cache-control" not in present:
                added.append((b"cache-control", b"no-store"))
            if b"x-request-id" not in present:
                added.append((b"x-request-id", self.id.encode()))
            message = {**message, "headers": [*message["headers"], *added]}
        await self._send(message)

    async def refuse(self, error: ServiceError) -> None:
        """Answer with an error, unless an answer has begun."""
        if self.status:
            return
        body = json.dumps(error_body(error)).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *((k.lower().encode(), v.encode()) for k, v in error_headers(error).items()),
        ]
        await self._send_on(
            {"type": "http.response.start", "status": error.status, "headers": headers}
        )
        await self._send_on({"type": "http.response.body", "body": body})


def secret_of(headers: dict[bytes, bytes]) -> str | None:
    """Return the key that a request's headers carry, or None."""
    given = headers.get(b"x-api-key")
    if given is not None:
        return given.decode("latin-1")
    scheme, _, value = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def error_body(error: ServiceError) -> dict[str, Any]:
    """Return what a client gets to see of an error."""
    return {"error": {"code": error.code, "message": str(error)}}


def error_headers(error: ServiceError) -> dict[str, str]:
    """Return the headers that belong to an error."""
    if error.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {"Retry-After": "1"} if error.status in (429, 503) else {}


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"The request is larger than {most} bytes: send fewer inputs at a time.")


def internal_error() -> ServiceError:
    """Return what a client gets to see of an error that nobody foresaw."""
    error = ServiceError("Something went wrong here: the log has it, by X-Request-Id.")
    error.status, error.code = 500, "internal"
    return error
