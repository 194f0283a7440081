"""Import: a file, its columns, a look at the rows, and then teaching, which can be undone."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import File, Form, Request, UploadFile
from fastapi.responses import Response

from klda.data import BadRow, Layout, open_bytes
from klda.errors import KldaError
from klda.labels import Label, close_names, spelt
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.errors import ServerError
from klda.server.page.render import changed, render, screen
from klda.server.page.routes import Field, router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.teaching import Teaching
from klda.server.page.wording import counted

PREVIEWED = 20
SHOWN_NEW = 30  # new classes that are listed
SHOWN_BAD = 5  # rows that can't be used


@dataclass
class Import(Teaching):
    """A file on its way into the model."""

    content: bytes = b""
    columns: list[str] = field(default_factory=list)
    layout: Layout = field(default_factory=Layout)
    bad: list[BadRow] = field(default_factory=list)
    problem: str = ""  # why its rows can't be read, if the choice of other columns may help

    def read(self, layout: Layout, known: Collection[Label]) -> None:
        """Find the columns and read the rows; those that can't be used are set aside."""
        self.layout, self.bad, self.texts, self.labels = layout, [], [], []
        self.columns = column_names(self.content, self.name, layout)
        found = inputs.rows_of_file(self.content, self.name, known, layout, skip_bad=True)
        self.texts, self.labels, self.layout, self.bad = found

    def take(self, instead: dict[str, Label]) -> None:
        """Give rows of classes with these names to other classes."""
        self.labels = [instead.get(str(label), label) for label in self.labels]


def column_names(content: bytes, name: str, layout: Layout) -> list[str]:
    """Return the names of a file's columns."""
    table = open_bytes(content, name=name, layout=layout)
    with table.read(table) as contents:
        return list(contents.names)


@router.get("/import")
async def choose_file(request: Request) -> Response:
    """Show the form for a file."""
    return await screen(request, "import", job=None)


@router.post("/page/import")
async def receive_file(
    request: Request,
    service: CurrentService,
    state: CurrentState,
    rows: Field = "",
    file: Annotated[UploadFile | None, File()] = None,
) -> Response:
    """Keep a file until it is taught, and show what is in it."""
    if service.modality != "text":
        raise ServerError("Files can be imported into models of texts only; use the API.")
    content, name = rows.encode(), "Pasted rows"
    if file is not None and file.filename:
        content, name = await file.read(), file.filename
    if not content.strip():
        raise ServerError("Choose a file, or paste rows.")
    job = Import(service, name, content=content)
    await _read(job, Layout())
    state.add_table(job)
    return Response(headers={"HX-Redirect": f"/import/{job.id}"})


async def _read(job: Import, layout: Layout) -> None:
    job.problem = ""
    try:
        await asyncio.to_thread(job.read, layout, job.service.snapshot.counts)
    except KldaError as error:
        if len(job.columns) < 2:
            raise ServerError(str(error)) from error
        job.problem = str(error)


def _found(state: PageState, number: str) -> Import:
    job = state.tables.get(number)
    if not isinstance(job, Import):
        raise ServerError("This import is no longer here: choose the file again.", 404)
    return job


@router.get("/import/{number}")
async def show_import(request: Request, state: CurrentState, number: str) -> Response:
    """Show the columns and rows of a file, or how far it is taught."""
    job = state.tables.get(number)
    if not isinstance(job, Import):
        return await screen(request, "import", job=None)
    return await screen(request, "import", job=job, **preview(job))


@router.post("/page/import/{number}/columns")
async def choose_columns(
    request: Request,
    state: CurrentState,
    number: str,
    text: Annotated[list[str], Form()],
    label: Field,
    header: Field = "",
) -> Response:
    """Read the file again with other columns."""
    job = _found(state, number)
    named = None if job.layout.header is None else header != "no"
    if named == job.layout.header:
        layout = Layout(tuple(text), label or None, named)
    else:
        layout = Layout(header=named)  # the columns have other names now
    await _read(job, layout)
    return render(request, "preview.html", job=job, **preview(job))


def preview(job: Import) -> dict[str, Any]:
    """Return what is in a file: its first rows, new classes, and names much like others."""
    known = job.service.snapshot.counts
    counts: dict[Label, int] = {}
    for label in job.labels:
        counts[label] = counts.get(label, 0) + 1
    new = [label for label in counts if label not in known]
    others: list[Label] = list(known)
    near = []
    for label in sorted(new, key=lambda one: -counts[one]):
        if close := close_names(label, others):
            near.append((label, close[0], spelt(label) == spelt(close[0])))
        others.append(label)
    return {
        "rows": list(zip(job.texts, job.labels, strict=True))[:PREVIEWED],
        "counts": counts,
        "new": new[:SHOWN_NEW],
        "n_new": len(new),
        "near": near,
        "bad": job.bad[:SHOWN_BAD],
    }


@router.post("/page/import/{number}/teach")
async def teach_file(request: Request, state: CurrentState, number: str) -> Response:
    """Start teaching a file; rows of classes that were named alike may go to another class."""
    job, form = _found(state, number), await request.form()
    known = {str(label): label for label in (*state.service.snapshot.counts, *job.labels)}
    instead = {
        name.removeprefix("as:"): known[str(value)]
        for name, value in form.items()
        if name.startswith("as:") and str(value) in known
    }
    job.take(instead)
    job.begin()
    return render(request, "progress.html", job=job)


@router.get("/page/import/{number}")
async def show_progress(request: Request, state: CurrentState, number: str) -> Response:
    """Show how far an import is."""
    job = _found(state, number)
    events: dict[str, Any] | None = None if job.is_running else {"model-changed": {}}
    return render(request, "progress.html", events=events, job=job)


@router.post("/page/import/{number}/cancel")
async def cancel_import(request: Request, state: CurrentState, number: str) -> Response:
    """Stop teaching a file."""
    job = _found(state, number)
    job.cancel()
    if job.task is not None:
        await job.task
    return await show_progress(request, state, number)


@router.post("/page/import/{number}/undo")
async def undo_import(request: Request, state: CurrentState, number: str) -> Response:
    """Take back all that was taught of a file."""
    job = _found(state, number)
    taught = job.taught
    await job.undo()
    response = changed(request, f"Undone: {counted(taught, 'row')} of {job.name}.")
    response.headers["HX-Redirect"] = "/classes"
    return response
