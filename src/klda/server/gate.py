"""The ASGI middleware in front of the application: who may do what, limits, headers, log, metrics.

A request is rejected here before its body is read: FastAPI would parse the body first.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import math
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
from klda.server.settings import BURST, ApiKey, is_loopback

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
READS = frozenset({"GET", "HEAD", "OPTIONS"})
METHODS = READS | {"POST", "PUT", "PATCH", "DELETE"}
API = ("/v1/", "/label-studio/")  # for programs; all other paths are the page's
READS_BY_POST = frozenset(
    {
        *("/v1/predict", "/v1/explain", "/v1/suspects", "/v1/suggest"),
        *("/page/ask", "/page/why", "/label-studio/predict"),
    }
)
# These show questions of others, or rows of files that others sent: reading them needs `teach`.
OTHERS_TEXTS = ("/page/inbox", "/page/import", "/page/quality/errors.csv")
HEALTH = "/v1/health"  # answers everyone, by any name, at any rate: it reveals nothing
OPEN = (HEALTH, "/v1/openapi.json", "/label-studio/", "/label-studio/health", "/login", "/logout")
FILES = "/static/"  # of the page, open too
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


def is_https(request: Request) -> bool:
    """Whether a client speaks HTTPS, to the service or to a proxy in front of it."""
    said = request.headers.get("x-forwarded-proto")
    return "https" in (request.scope.get("scheme"), said)


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
        self._limit = RateLimit(settings.rate)
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

        request = Request({**scope, "app": self.app})

        async def send_secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=list(message["headers"]))
                if path.startswith(FILES) and status == 200:
                    headers["cache-control"] = "public, max-age=31536000, immutable"
                for name, value in {**HEADERS, "x-request-id": number}.items():
                    headers.setdefault(name, value)
                if is_https(request):
                    headers.setdefault("strict-transport-security", "max-age=31536000")
                message = {**message, "headers": headers.raw}
            await send(message)

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
            told = f"This service does not answer for the host {name[:100]!r}"
            raise ServerError(f"{told}; allow it with klda serve --allowed-host.", 403)
        origin = headers.get("origin")
        is_foreign = origin is not None and origin.split("://", 1)[-1] != host
        if is_foreign and request.method not in READS:
            raise ServerError("Pages of other sites may not send requests to this service.", 403)
        size = headers.get("content-length", "")
        if size.isdecimal() and int(size[:20]) > most:
            raise ServerError(TOO_LARGE.format(most), 413)
        if path != HEALTH:
            address = request.client.host if request.client else ""
            session = request.cookies.get(SESSION_COOKIE)
            self._limit.take(self.state.keys.client(secret_of(headers), session) or address)
        if path not in OPEN and not path.startswith(FILES):
            self._check_role(request, path)

    def _check_role(self, request: Request, path: str) -> None:
        if is_api := path.startswith(API):
            role = self.state.keys.role(secret_of(request.headers))
        else:
            role = self.state.keys.session_role(request.cookies.get(SESSION_COOKIE))
        if role is None:
            raise ServerError(GIVE_KEY if is_api else SIGN_IN, 401)
        is_read = request.method in READS and not path.startswith(OTHERS_TEXTS)
        if role != "teach" and not is_read and path not in READS_BY_POST:
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
        given, found = _digest(secret), None
        for digest, role in self._digests:  # all of them: the time taken must reveal nothing
            if hmac.compare_digest(given, digest):
                found = role
        return found if self.required else "teach"

    def client(self, secret: str | None, session: str | None) -> str:
        """Return the client that a request counts for: a known key or session; "" if neither."""
        for name, role in ((secret, self.role), (session, self.session_role)):
            if self.required and role(name):
                return _digest(name).hex()
        return ""

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
        role, until = self._sessions.get(_digest(token), (None, math.inf))
        return (role if time.monotonic() < until else None) if self.required else "teach"

    def close_session(self, token: str | None) -> None:
        """End a session."""
        self._sessions.pop(_digest(token), None)


def _digest(secret: str | None) -> bytes:
    return hashlib.sha256((secret or "").encode("utf-8", "surrogatepass")).digest()


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
    """One token bucket per client: `rate` requests per second (0 is no limit), `BURST` at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Count a request; raise if it is one too many."""
        if not self._rate:
            return
        now = time.monotonic()
        tokens, since = self._buckets.pop(client, (float(BURST), now))
        tokens = min(BURST, tokens + (now - since) * self._rate)
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
