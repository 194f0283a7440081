"""History: every change, with its undo."""

from __future__ import annotations

import csv
import io
import math
from typing import Annotated, Any

from fastapi import Query, Request
from fastapi.responses import Response

from klda.labels import spelt
from klda.server.changes import Change
from klda.server.page.render import render, screen
from klda.server.page.routes import router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.wording import described, moment

PER_PAGE = 50

Search = Annotated[str, Query(max_length=200)]


async def _found(state: PageState, search: str) -> list[Change]:
    """Return the changes of classes whose names contain a text, the newest first."""
    wanted = spelt(search)
    made = await state.service.history()
    by_number = {one.number: one for one in made}

    def labels(one: Change) -> list:
        target = by_number.get(one.target) if one.kind == "undo" else None
        return list((target or one).labels)

    return [
        one
        for one in reversed(made)
        if not wanted or any(wanted in spelt(label) for label in labels(one))
    ]


async def _listed(state: PageState, search: str, page: int) -> dict[str, Any]:
    found = await _found(state, search)
    service = state.service
    return {
        "changes": found[(page - 1) * PER_PAGE : page * PER_PAGE],
        "undoable": {one.number for one in await service.undoable()},
        "by_number": {one.number: one for one in found},
        "page": page,
        "pages": max(1, math.ceil(len(found) / PER_PAGE)),
        "search": search,
        "hours": math.ceil(service.snapshot.learner.undo_seconds / 3600),
    }


@router.get("/history")
async def show_history(
    request: Request, state: CurrentState, search: Search = "", page: int = 1
) -> Response:
    """Show every change."""
    return await screen(request, "history", **await _listed(state, search, max(1, page)))


@router.get("/page/history")
async def show_changes(
    request: Request, state: CurrentState, search: Search = "", page: int = 1
) -> Response:
    """Show the changes of some classes."""
    return render(request, "changes.html", **await _listed(state, search, max(1, page)))


@router.get("/page/history.csv")
async def export_history(request: Request, state: CurrentState, search: Search = "") -> Response:
    """Return the changes as CSV."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["number", "when", "by", "change", "examples", "classes"])
    for one in await _found(state, search):
        classes = "; ".join(map(str, dict.fromkeys(one.labels)))
        writer.writerow(
            [one.number, moment(one.when), one.by, described(one), one.samples, classes]
        )
    headers = {"Content-Disposition": 'attachment; filename="history.csv"'}
    return Response(file.getvalue(), media_type="text/csv", headers=headers)
