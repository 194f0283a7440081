"""The router that all screens add their routes to: one, so that the log can name every path."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form

PAGE = "page"  # who made a change

router = APIRouter(include_in_schema=False)
Field = Annotated[str, Form()]
