"""The first visit: from no classes to a model that works; and the steps that lead there."""

from __future__ import annotations

import csv
from importlib import resources
from typing import Annotated, Any

from fastapi import Form, Request
from fastapi.responses import Response

from klda.labels import Label, spelt
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.changes import Declare
from klda.server.errors import ServerError
from klda.server.page.render import render
from klda.server.page.routes import PAGE, router
from klda.server.page.state import CurrentState, PageState

ENOUGH_CLASSES, ENOUGH_EXAMPLES, ENOUGH_CHECKED = 2, 5, 10
MOST_NAMES = 1000


@router.post("/page/start/names")
async def name_classes(
    request: Request, service: CurrentService, names: Annotated[str, Form(max_length=200_000)]
) -> Response:
    """Add the classes that were named, one per line, each with a description if it has one."""
    known = service.snapshot.counts
    classes: dict[Label, str | None] = {}
    for line in names.splitlines():
        name, _, about = line.partition(":")
        if name.strip():
            classes[inputs.typed_class(name.strip(), known)] = about.strip() or None
    if not classes:
        raise ServerError("Name at least one class, each on a line of its own.")
    if len(classes) > MOST_NAMES:
        raise ServerError(f"Name at most {MOST_NAMES:,} classes at a time.")
    if len({spelt(name) for name in classes}) < len(classes):
        raise ServerError("Two of these names differ only in their spelling: leave one out.")
    await service.change(Declare(list(classes.items()), by=PAGE))
    return _go_on()


@router.post("/page/start/example")
async def example_project(request: Request, service: CurrentService) -> Response:
    """Teach the example project: what twenty kinds of customers' requests look like."""
    if service.modality != "text":
        raise ServerError("The example project is for models of texts.")
    with resources.files("klda.server").joinpath("example_project.csv").open() as file:
        rows = list(csv.DictReader(file))
    texts, labels = ([row[name] for row in rows] for name in ("text", "label"))
    await service.learn(texts, labels, by=PAGE)
    return _go_on()


def _go_on() -> Response:
    return Response(headers={"HX-Redirect": "/"})


@router.get("/page/checklist")
async def show_checklist(request: Request, state: CurrentState) -> Response:
    """Show the steps to a model that works."""
    return render(request, "checklist.html", steps=await checklist(request, state))


async def checklist(request: Request, state: PageState) -> list[dict[str, Any]]:
    """Return the steps to a model that works; empty once all are done."""
    counts = state.service.snapshot.counts
    if not counts:
        return []
    enough = sum(n >= ENOUGH_EXAMPLES for n in counts.values())
    checked = min(ENOUGH_CHECKED, await state.checked())
    steps = [
        ("Two classes or more", "/classes", min(len(counts), ENOUGH_CLASSES), ENOUGH_CLASSES),
        ("Five examples of each class", "/import", enough, len(counts)),
        ("Check ten answers", "/", checked, ENOUGH_CHECKED),
        ("Connect a program", "/connect", int(request.app.state.metrics.is_used), 1),
    ]
    if all(done >= of for _, _, done, of in steps):
        return []
    keys = ("text", "address", "done", "of")
    return [dict(zip(keys, step, strict=True)) for step in steps]
