"""The ASGI middleware in front of the application: who may do what, limits, headers, log, metrics.

A request is refused here before its body is read: FastAPI would parse the body first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import secrets
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

from fastapi import FastAPI, HTTPException, Request
from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from klda.server.errors import ServerError
from klda.server.settings import ApiKey, is_loopback

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
READS = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = READS | {"POST", "PUT", "PATCH", "DELETE"}
READS_BY_POST = frozenset(
    {
        *("/v1/predict", "/v1/explain", "/v1/suspects", "/v1/suggest"),
        *("/page/ask", "/page/why", "/label-studio/predict"),
    }
)
HEALTH = "/v1/health"  # answers everyone, by any name, at any rate: it reveals nothing
OPEN = (HEALTH, "/v1/openapi.json", "/label-studio/", "/label-studio/health")
SESSION_COOKIE = "klda_session"
SESSION_SECONDS = 12 * 3600
MAX_CLIENTS = 10_000  # and sessions
MAX_SIGN_IN = 4096  # bytes of a form with a key

TOO_LARGE = "The request is larger than {:,} bytes: send fewer inputs at a time."
SIGN_IN = "The session has expired: sign in again."
GIVE_KEY = "A key is needed: send it as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'."

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


def needed_role(method: str, path: str) -> str | None:
    """Return the role that a request needs; None if it needs no key."""
    if path in OPEN or not path.startswith(("/v1/", "/page/", "/label-studio/")):
        return None
    return "ask" if method in READS or path in READS_BY_POST else "teach"


class Gate:
    """What every request passes before the application sees it, and every response after.

    `paths` are those that the log and the metrics name; `respond` turns an error into the response
    to a request.
    """

    def __init__(
        self,
        app: FastAPI,
        paths: Collection[str],
        respond: Callable[[Request, Exception], Awaitable[Response]],
    ) -> None:
        self.app, self.state, self._paths, self._respond = app, app.state, paths, respond
        self._settings = settings = app.state.service.settings
        self._limit = RateLimit(settings.rate, settings.burst)
        self._hosts = settings.allowed_hosts
        if not self._hosts and not settings.keys and is_loopback(settings.host):
            # Otherwise a page of another site could reach an open service under a name of its
            # own that resolves to 127.0.0.1.
            own = settings.host.strip("[]").lower()
            self._hosts = (*LOOPBACK_NAMES, f"[{own}]" if ":" in own else own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, began = scope["path"], time.perf_counter()
        number, status = uuid.uuid4().hex[:16], 0
        is_sign_in = path in ("/login", "/logout")
        most = min(self._settings.max_body, MAX_SIGN_IN if is_sign_in else 1 << 62)

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=list(message["headers"]))
                if path.startswith("/static/") and status == 200:
                    headers["cache-control"] = "public, max-age=31536000, immutable"
                for name, value in {**HEADERS, "x-request-id": number}.items():
                    headers.setdefault(name, value)
                if scope.get("scheme") == "https":
                    headers.setdefault("strict-transport-security", "max-age=31536000")
                message = {**message, "headers": headers.raw}
            await send(message)

        request = Request({**scope, "app": self.app})
        try:
            self._check(request, most)
            await self.app(scope, _limited(receive, most), send_secured)
        except Exception as error:
            if not isinstance(error, ServerError):
                log.exception("request", extra={"request": number, "path": path})
            if not status:
                response = await self._respond(request, error)
                await response(scope, receive, send_secured)
        finally:
            self._note(scope, number, status, time.perf_counter() - began)

    def _check(self, request: Request, most: int) -> None:
        # The path that the router sees: URLs are built from the Host header, which can be forged.
        headers, path = request.headers, request.scope["path"]
        host = headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._hosts and name.lower() not in self._hosts and path != HEALTH:
            raise ServerError(f"This service does not answer for the host {name[:100]!r}.", 403)
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.split("://", 1)[-1] != host
        if is_foreign and request.method not in READS:
            raise ServerError("Requests from pages of other sites are refused.", 403)
        size = headers.get("content-length", "")
        if size.isdigit() and int(size) > most:
            raise ServerError(TOO_LARGE.format(most), 413)
        if path != HEALTH:
            address = request.client.host if request.client else ""
            self._limit.take(self.state.keys.client(secret_of(headers), address))
        self._check_role(request, needed_role(request.method, path))

    def _check_role(self, request: Request, wanted: str | None) -> None:
        if wanted is None:
            return
        is_page = request.scope["path"].startswith("/page/")
        if is_page:
            role = self.state.keys.session_role(request.cookies.get(SESSION_COOKIE))
        else:
            role = self.state.keys.role(secret_of(request.headers))
        if role is None:
            raise ServerError(SIGN_IN if is_page else GIVE_KEY, 401)
        if wanted == "teach" and role != "teach":
            raise ServerError("This key may ask but not teach: use one with the role teach.", 403)

    def _note(self, scope: Scope, number: str, status: int, seconds: float) -> None:
        # A client can make up any number of paths and methods; each would stay in the metrics.
        path = scope["path"] if scope["path"] in self._paths else "other"
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.state.metrics.observe(method, path, status, seconds)
        noted = {"request": number, "method": method, "path": path, "status": status}
        log.info("request", extra={**noted, "ms": round(seconds * 1000, 1)})


def _limited(receive: Receive, most: int) -> Receive:
    """Receive a body of so many bytes at most."""
    length = 0

    async def receive_limited() -> Message:
        nonlocal length
        message = await receive()
        length += len(message.get("body", b""))
        if length > most:  # FastAPI passes this kind of error on, and wraps any other
            raise HTTPException(413, TOO_LARGE.format(most))
        return message

    return receive_limited


class Keys:
    """Keys and what they allow; only their digests are held. Without any, everyone may teach."""

    def __init__(self, keys: tuple[ApiKey, ...]) -> None:
        self._digests = [(_digest(key.secret), key.role) for key in keys]
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self.required = bool(keys)

    def role(self, secret: str | None) -> str | None:
        """Return the role of a key, or None if it is unknown."""
        if not self.required:
            return "teach"
        given, found = _digest(secret or ""), None
        for digest, role in self._digests:  # all of them: the time taken must reveal nothing
            if hmac.compare_digest(given, digest):
                found = role
        return found

    def client(self, secret: str | None, address: str) -> str:
        """Return the client that a request counts for: a known key, or an address."""
        known = secret and self.required and self.role(secret)
        return _digest(secret).hex() if secret and known else address

    def open_session(self, secret: str) -> str | None:
        """Return a token for the page's cookie in exchange for a key; None if it is unknown."""
        role = self.role(secret)
        if role is None:
            return None
        token = secrets.token_urlsafe(32)
        self._sessions[_digest(token)] = (role, time.monotonic() + SESSION_SECONDS)
        while len(self._sessions) > MAX_CLIENTS:
            self._sessions.popitem(last=False)
        return token

    def session_role(self, token: str | None) -> str | None:
        """Return the role of a session, or None if there is none."""
        if not self.required:
            return "teach"
        role, until = self._sessions.get(_digest(token or ""), (None, 0.0))
        return role if time.monotonic() < until else None

    def close_session(self, token: str | None) -> None:
        """End a session."""
        self._sessions.pop(_digest(token or ""), None)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def secret_of(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request's headers carry, or None."""
    if "x-api-key" in headers:
        return headers["x-api-key"]
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic":  # the key is the password, whatever the user is called
        with suppress(ValueError):
            return base64.b64decode(value).decode().partition(":")[2]
    return value.strip() if scheme.lower() == "bearer" else None


class RateLimit:
    """One token bucket per client: `rate` requests per second (0 is no limit), `burst` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Count a request; raise if it is one too many."""
        if not self._rate:
            return
        now = time.monotonic()
        tokens, since = self._buckets.pop(client, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        allowed = tokens >= 1
        self._buckets[client] = (tokens - allowed, now)
        while len(self._buckets) > MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise ServerError(
                f"Too many requests: at most {self._rate:g} per second. Wait a moment, or send "
                "more inputs in one request.",
                429,
            )
