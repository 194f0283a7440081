"""API keys and their roles, sessions of the page, and the rate of each client."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Mapping

from klda.server.errors import ServerError
from klda.server.settings import ApiKey

SESSION_COOKIE = "klda_session"
SESSION_SECONDS = 12 * 3600
_MAX_CLIENTS = 10_000


class Keys:
    """Keys and what they allow; only their digests are held. Without any, everyone may teach."""

    def __init__(self, keys: tuple[ApiKey, ...]) -> None:
        self._digests = [(_digest(key.secret), key.role) for key in keys]
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    @property
    def required(self) -> bool:
        """Whether a key is needed at all."""
        return bool(self._digests)

    def role(self, secret: str | None) -> str | None:
        """Return the role of a key, or None if it is unknown."""
        if not self._digests:
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
        while len(self._sessions) > _MAX_CLIENTS:
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


def secret_of(headers: Mapping[str, str]) -> str | None:
    """Return the key that a request's headers carry, or None."""
    if "x-api-key" in headers:
        return headers["x-api-key"]
    scheme, _, value = headers.get("authorization", "").partition(" ")
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
        while len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        if not allowed:
            raise ServerError(
                f"Too many requests: at most {self._rate:g} per second. Wait a moment, or send "
                "more inputs in one request.",
                429,
            )
