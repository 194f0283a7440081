"""Errors that a client gets to see: a status, a code that programs read, a message for people."""

from __future__ import annotations

from klda.errors import KldaError


class ServiceError(KldaError):
    """A request that can't be served.

    Parameters
    ----------
    message : str
        What was wrong and how to repair it; shown to the client.
    """

    status = 422
    code = "invalid"


class MalformedError(ServiceError):
    """The body is not JSON."""

    status, code = 400, "malformed"


class UnauthorizedError(ServiceError):
    """No key, or one that is not known."""

    status, code = 401, "unauthorized"


class ForbiddenError(ServiceError):
    """The key's role does not allow it, or the request comes from another site's page."""

    status, code = 403, "forbidden"


class NotFoundError(ServiceError):
    """A class or an undo that does not exist."""

    status, code = 404, "not_found"


class ConflictError(ServiceError):
    """The request does not fit the state of the model."""

    status, code = 409, "conflict"


class TooLargeError(ServiceError):
    """The body is larger than allowed."""

    status, code = 413, "too_large"


class RateError(ServiceError):
    """Too many requests."""

    status, code = 429, "rate"


class BusyError(ServiceError):
    """The service is stopping, or too many requests wait."""

    status, code = 503, "busy"


class TroubleError(ServiceError):
    """The service can't do all of its work until someone helps."""

    status, code = 503, "trouble"
