"""The error that the service answers with, and that its client raises."""

from __future__ import annotations

from typing import Any

from klda.errors import KldaError

# The code for programs, and what the OpenAPI document says about a status.
STATUSES = {
    0: ("unreachable", "No response."),
    400: ("malformed", "The body is not valid JSON."),
    401: ("unauthorized", "No key, or an unknown one."),
    403: ("forbidden", "The key does not allow this, or a page of another site sent the request."),
    404: ("not_found", "There is no such path, class or change."),
    405: ("method", "The path does not support this method."),
    409: ("conflict", "The request conflicts with the state of the model."),
    413: ("too_large", "The body is too large."),
    422: ("invalid", "A value is missing, of the wrong type or out of range."),
    429: ("rate", "Too many requests."),
    500: ("internal", "An internal error; see the log."),
    503: ("busy", "The service is stopping, overloaded or has a problem: try again."),
}
INTERNAL = "Internal error; see the log for this request ID."
PREDICTS_ONLY = (
    "This model can only predict: it was saved compact. Serve the model that it was made from."
)


class ServerError(KldaError):
    """The service can't serve a request, or can't be reached; the message says what to do about it.

    Attributes
    ----------
    status : int
        HTTP status; 0 if there was no response.
    code : str
        The kind of error, for programs.
    """

    def __init__(self, message: str, status: int = 422, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code or STATUSES.get(status, ("refused", ""))[0]

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
