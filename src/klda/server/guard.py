"""Routes that check who asks before they read the body, and its size before they parse it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Depends, Request
from fastapi.params import Form
from fastapi.routing import APIRoute
from starlette.responses import Response

from klda.server.errors import ServiceError

# Far more than requests need. Parsing holds up everyone else, and costs by the part, not by the
# byte: a body of empty lists would take seconds.
MOST_LISTS = 200_000
MOST_VALUES = 2_000_000

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def before_body(check: Callable[..., None]) -> Any:
    """Return a dependency that a `GuardedRoute` also calls before it reads the body.

    Parameters
    ----------
    check : callable
        Takes the request; raises if it is not allowed.

    Returns
    -------
    Depends
    """
    check.before_body = True  # type: ignore[attr-defined]
    return Depends(check)


class GuardedRoute(APIRoute):
    """A route whose checks come before its body is read: FastAPI would parse it first."""

    def get_route_handler(self) -> Handler:
        """Return what answers a request."""
        handle = super().get_route_handler()
        checks: list[Any] = [
            one.dependency
            for one in self.dependencies
            if getattr(one.dependency, "before_body", False)
        ]
        takes_json = self.body_field is not None and not isinstance(
            self.body_field.field_info, Form
        )

        async def guarded(request: Request) -> Response:
            for check in checks:
                check(request)
            if takes_json:
                check_parts(await request.body())  # which FastAPI finds there again
            return await handle(request)

        return guarded


def check_parts(body: bytes) -> None:
    """Refuse a body of JSON that takes long to parse; counting its signs does not.

    Parameters
    ----------
    body : bytes
        Signs inside of texts count as well: they are few in what people write.
    """
    for most, signs in ((MOST_LISTS, b"[{"), (MOST_VALUES, b",")):
        count = sum(body.count(sign) for sign in signs)  # of an integer, which is a byte
        if count > most:
            raise ServiceError(
                f"The body has {count} of the signs {signs.decode()!r}, of which at most {most} "
                "are read: send fewer inputs at a time."
            )
