"""Errors that a client sees: a status, a code for programs, a message for people."""

from __future__ import annotations

from typing import Any

from klda.errors import KldaError


class ServiceError(KldaError):
    """A request that can't be served; the message says why and what to do about it."""

    status = 422
    code = "invalid"

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


class MalformedError(ServiceError):
    """The body is not JSON."""

    status, code = 400, "malformed"

    def __init__(self) -> None:
        super().__init__("The body is not valid JSON.")


class UnauthorizedError(ServiceError):
    """No key, or an unknown one."""

    status, code = 401, "unauthorized"


class ForbiddenError(ServiceError):
    """The role of the key does not allow it, or a page of another site sent the request."""

    status, code = 403, "forbidden"


class NotFoundError(ServiceError):
    """A class or an undo that does not exist."""

    status, code = 404, "not_found"


class ConflictError(ServiceError):
    """The request conflicts with the state of the model."""

    status, code = 409, "conflict"


class TooLargeError(ServiceError):
    """The body is larger than allowed."""

    status, code = 413, "too_large"


class RateError(ServiceError):
    """Too many requests."""

    status, code = 429, "rate"


class InternalError(ServiceError):
    """An unexpected error; the client sees no details of it."""

    status, code = 500, "internal"

    def __init__(self) -> None:
        super().__init__("Internal error; see the log for this request ID.")


class BusyError(ServiceError):
    """The service is stopping, or too many requests wait."""

    status, code = 503, "busy"


class StorageError(ServiceError):
    """A change could not be written to disk."""

    status, code = 503, "storage"


class TroubleError(ServiceError):
    """A part of the service can't work until an operator helps."""

    status, code = 503, "trouble"
