"""History: every change, with its undo."""

from __future__ import annotations

import math
from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import Response

from klda.labels import spelt
from klda.server.changes import Change, Undo
from klda.server.page.render import as_csv, paginate, render, screen
from klda.server.page.routes import router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.wording import described, moment

Search = Annotated[str, Query(max_length=200)]


async def _found(state: PageState, search: str) -> list[Change]:
    """Return the changes of classes whose names contain a text, the newest first."""
    wanted = spelt(search)
    made = await state.service.history()
    by_number = {one.number: one for one in made}

    def labels(one: Change) -> list:
        target = by_number.get(one.target) if isinstance(one, Undo) else None
        return list((target or one).classes)

    return [
        one
        for one in reversed(made)
        if not wanted or any(wanted in spelt(label) for label in labels(one))
    ]


async def listed(state: CurrentState, search: Search = "", page: int = 1) -> dict[str, Any]:
    """Return the part of the history that is asked for."""
    found = await _found(state, search)
    changes, page, pages = paginate(found, page)
    return {
        "changes": changes,
        "undoable": {one.number for one in await state.service.undoable()},
        "undone": {one.target for one in found if isinstance(one, Undo)},
        "by_number": {one.number: one for one in found},
        "page": page,
        "pages": pages,
        "search": search,
        "hours": math.ceil(state.service.snapshot.learner.undo_seconds / 3600),
    }


Listed = Annotated[dict[str, Any], Depends(listed)]


@router.get("/history")
async def show_history(request: Request, listed: Listed) -> Response:
    """Show every change."""
    return await screen(request, "history", **listed)


@router.get("/page/history")
async def show_changes(request: Request, listed: Listed) -> Response:
    """Show the changes of some classes."""
    return render(request, "changes.html", **listed)


@router.get("/page/history.csv")
async def export_history(request: Request, state: CurrentState, search: Search = "") -> Response:
    """Return the changes as CSV."""
    rows = [
        [
            *(one.number, moment(one.when), one.by, described(one), one.samples),
            "; ".join(map(str, one.classes)),
        ]
        for one in await _found(state, search)
    ]
    return as_csv("history.csv", ["number", "when", "by", "change", "examples", "classes"], rows)
