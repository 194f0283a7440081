"""Try: one question, its answer in one of three states, and what to do about it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import File, Query, Request, UploadFile
from fastapi.responses import Response

from klda.labels import Label, close_names, spelt
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.changes import Learn
from klda.server.errors import ServerError
from klda.server.page.render import render, screen
from klda.server.page.routes import PAGE, Field, router
from klda.server.page.start import checklist
from klda.server.page.state import CurrentState
from klda.server.page.wording import described, shown
from klda.server.service import Service

TOP = 5  # classes with a key of their own
PICKED = 8  # classes that the picker lists


@router.get("/")
async def index(request: Request, service: CurrentService, state: CurrentState) -> Response:
    """Show Try, or, while there are no classes, the first visit."""
    return await screen(request, "try", steps=await checklist(request, state))


@router.post("/page/ask")
async def ask_one(
    request: Request,
    service: CurrentService,
    value: Field = "",
    file: Annotated[UploadFile | None, File()] = None,
) -> Response:
    """Answer for one input."""
    if file is not None and file.filename:
        value = base64.b64encode(await file.read()).decode()
    if not value.strip():
        raise ServerError("Type something first.")
    return await _answer(request, service, value)


@router.post("/page/teach")
async def teach_one(
    request: Request, service: CurrentService, value: Field, label: Field = "", chosen: Field = ""
) -> Response:
    """Teach one input, with a class that was chosen or a name that was typed."""
    known = service.snapshot.counts
    name = inputs.chosen_class(chosen, known) if chosen else named_class(label, known)
    done = await service.learn(await inputs.typed_input(service, value), [name], by=PAGE)
    return await _answer(request, service, value, taught=done)


@router.post("/page/why")
async def why(request: Request, service: CurrentService, value: Field) -> Response:
    """Explain an answer."""
    given = await inputs.typed_input(service, value)
    return render(request, "why.html", explanation=await service.explain(given[0]))


@router.get("/page/pick")
async def pick(
    request: Request, service: CurrentService, label: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """List the classes whose names contain what was typed, or are much like it."""
    return render(request, "picked.html", **picked(label, service.snapshot.counts))


def picked(typed: str, known: Mapping[Label, int]) -> dict[str, Any]:
    """Return the classes that a typed name may mean, and whether it is a new name."""
    wanted = spelt(typed)
    words = wanted.split()
    found = [label for label in known if words and all(word in spelt(label) for word in words)]
    found.sort(key=lambda label: (not spelt(label).startswith(wanted), spelt(label)))
    near = [label for label in close_names(typed, known, 3) if label not in found]
    exact = any(spelt(label) == wanted for label in found)
    return {
        "typed": typed,
        "found": [(label, known[label]) for label in [*near, *found][:PICKED]],
        "more": max(0, len(found) + len(near) - PICKED),
        "new": "" if exact or not wanted else typed.strip(),
        "near": near,
    }


def named_class(name: str, known: Mapping[Label, int]) -> Label:
    """Return the class of a typed name: a known one, if only its spelling differs, or a new one."""
    if name not in known:
        for label in known:
            if spelt(label) == spelt(name):
                return label
    return inputs.typed_class(name, known)


async def _answer(
    request: Request, service: Service, value: str, taught: Learn | None = None
) -> Response:
    """Show the answer; what was just taught is not taught again."""
    answer = judged = None
    counts = service.snapshot.counts
    if counts:
        snapshot, (answer,) = await service.predict(await inputs.typed_input(service, value), TOP)
        judged, counts = snapshot.verdict(answer), snapshot.counts
    note, name = "", "" if answer is None else shown(answer.top[0][0])
    if taught is not None:
        name = shown(taught.labels[0])
        said = described(taught).removeprefix("taught 1 example of ")
        note = f"Taught as {said}{', a new class' if taught.new_classes else ''}."
    return render(
        request,
        "answer.html",
        events=None if taught is None else {"model-changed": {}},
        value=value,
        note=note,
        taught=taught,
        answer=answer,
        verdict=judged,
        counts=counts,
        name=name,
    )
