"""The error that a client sees: a status, a code for programs, a message for people."""

from __future__ import annotations

from typing import Any

from klda.errors import KldaError

CODES = {
    400: "malformed",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method",
    409: "conflict",
    413: "too_large",
    422: "invalid",
    429: "rate",
    500: "internal",
    503: "busy",
}
INTERNAL = "Internal error; see the log for this request ID."


class ServiceError(KldaError):
    """A request that can't be served; the message says why and what to do about it."""

    def __init__(self, message: str, status: int = 422, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or CODES.get(status, "refused")

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body of the response."""
        return {"error": {"code": self.code, "message": str(self)}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": "1"} if self.status in (429, 503) else {}
