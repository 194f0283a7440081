"""Routes that check who asks before they read the body, and its size before they parse it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Depends, Request
from fastapi.params import Form
from fastapi.routing import APIRoute
from starlette.responses import Response

from klda.server.errors import ServiceError

# Far more than requests need. Parsing holds up all other requests, and its cost depends on the
# number of values, not on bytes: a body of empty lists would take seconds.
MAX_LISTS = 200_000
MAX_VALUES = 2_000_000


def before_body(check: Callable[[Request], None]) -> Any:
    """Return a dependency that a `CheckedRoute` also calls before it reads the body."""
    check.before_body = True  # type: ignore[attr-defined]
    return Depends(check)


class CheckedRoute(APIRoute):
    """A route whose checks come before its body is read: FastAPI would parse it first."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        handle = super().get_route_handler()
        dependencies: list[Any] = [one.dependency for one in self.dependencies]
        checks = [check for check in dependencies if getattr(check, "before_body", False)]
        takes_json = self.body_field is not None and not isinstance(
            self.body_field.field_info, Form
        )

        async def checked(request: Request) -> Response:
            for check in checks:
                check(request)
            if takes_json:
                _check_size(await request.body())  # which FastAPI reuses
            return await handle(request)

        return checked


def _check_size(body: bytes) -> None:
    """Refuse JSON that takes long to parse; characters inside of texts count as well."""
    for most, characters in ((MAX_LISTS, b"[{"), (MAX_VALUES, b",")):
        count = sum(body.count(character) for character in characters)
        if count > most:
            raise ServiceError(
                f"The body has {count} of the characters {characters.decode()!r}; at most {most} "
                "are allowed: send fewer inputs at a time."
            )
