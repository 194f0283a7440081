"""The router that all screens add their routes to: one, so that the log can name every path."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request

PAGE = "page"  # who made a change


async def _note_version(request: Request) -> None:
    # A change that comes while a screen is computed may be missing on it: the screen is of the
    # version before, or its browser would take the change for one that it shows.
    request.state.version = request.app.state.service.snapshot.version


router = APIRouter(include_in_schema=False, dependencies=[Depends(_note_version)])
Field = Annotated[str, Form()]
