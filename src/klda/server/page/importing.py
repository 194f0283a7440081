"""Import: a file, its columns, a look at the rows, and then teaching, which can be undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import File, Form, Query, Request, UploadFile
from fastapi.responses import Response

from klda.data import Layout
from klda.data.columns import LONGEST_NAME
from klda.labels import Label, spelt
from klda.messages import counted
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.errors import ServerError
from klda.server.page.ask import named_class
from klda.server.page.render import as_csv, changed, render, screen
from klda.server.page.routes import Field, router
from klda.server.page.state import CurrentImport, CurrentState, PageState
from klda.server.page.teaching import Import
from klda.server.service import Service
from klda.server.settings import STOP_SECONDS

PREVIEWED = 20
SHOWN_NEW = 30  # new classes that are listed
SHOWN_BAD = 5  # rows that can't be used
SHOWN_WRONG = 20  # rows whose labels look wrong
SMALL = 192  # pixels of an image in a list


@router.get("/import")
async def choose_file(
    request: Request, label: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Show the form for a file, or for images of a class."""
    return await screen(request, "import", job=None, label=label)


@router.post("/page/import")
async def receive_file(
    request: Request,
    service: CurrentService,
    state: CurrentState,
    rows: Field = "",
    label: Field = "",
    file: Annotated[list[UploadFile] | None, File()] = None,
) -> Response:
    """Keep a file until it is taught, and show what is in it."""
    sent = [(one.filename, await one.read()) for one in file or () if one.filename]
    if service.modality == "image":
        job = await _images(service, sent, label)
    elif service.modality != "text":
        raise ServerError("Files can be imported into models of texts and images; use the API.")
    else:
        name, content = sent[0] if sent else ("Pasted rows", rows.encode())
        if not content.strip():
            raise ServerError("Choose a file, or paste rows.")
        job = Import(service, name, content)
        await job.read(Layout())
        if not sent and _are_sentences(job.labels):  # what stands after a comma is no class
            job = Import(service, "Pasted texts.txt", content)
            await job.read(Layout())
    state.add_table(job)
    return Response(headers={"HX-Redirect": f"/import/{job.id}"})


def _are_sentences(labels: Sequence[Label]) -> bool:
    long = [label for label in map(str, labels) if len(label) > LONGEST_NAME or label[-1] in ".?!"]
    return len(long) > len(labels) / 4


async def _images(service: Service, files: list[tuple[str, bytes]], label: str) -> Import:
    known = service.snapshot.counts
    if not files:
        raise ServerError("Choose images, or a .zip archive with one folder of them per class.")
    typed = str(named_class(label, known)) if label.strip() else ""
    images, folders, bad = await service.run(inputs.image_files, files, typed)
    if "" in folders:
        raise ServerError("Name the class of these images, or send a folder for each class.")
    named = {folder: named_class(folder, known) for folder in dict.fromkeys(folders)}
    name = files[0][0] if len(files) == 1 else counted(len(images), "image")
    labels = [named[folder] for folder in folders]
    return Import(service, name, inputs=images, labels=labels, bad=bad)


@router.get("/import/{number}")
async def show_import(request: Request, state: CurrentState, number: str) -> Response:
    """Show the columns and rows of a file, or how far it is taught."""
    job = state.tables.get(number)
    return await screen(request, "import", job=job, **(preview(job) if job else {}))


@router.post("/page/import/{number}/columns")
async def choose_columns(
    request: Request,
    job: CurrentImport,
    text: Annotated[list[str] | None, Form()] = None,
    label: Field = "",
    header: Field = "",
) -> Response:
    """Read the file again with other columns."""
    before = job.layout.header
    named = None if before is None else header != "no"
    if named == before:
        await job.read(
            Layout(tuple(text) if text else None, label or None, named), has_classes=bool(label)
        )
    else:  # the columns have other names now
        await job.read(Layout(header=named))
    return render(request, "preview.html", job=job, **preview(job))


def preview(job: Import) -> dict[str, Any]:
    """Return what is in a file: its first rows, new classes, names much like others, suspects."""
    known, near, written = job.service.snapshot.counts, job.near, Counter(job.labels)
    labels = job.meant(near)
    counts = Counter(labels)
    new = [label for label in counts if label not in known]
    return {
        "rows": list(zip(job.inputs, labels, strict=True))[:PREVIEWED],
        "counts": counts,
        "written": written,  # the same before names that are one class are one
        "new": new[:SHOWN_NEW],
        "n_new": len(new),
        "is_first": not known,
        "near": [one for one in near if spelt(one[0]) != spelt(one[1])],
        "respelt": [one for one in near if spelt(one[0]) == spelt(one[1])],
        "unsorted": job.unsorted[:PREVIEWED],
        "bad": job.bad[:SHOWN_BAD],
        **checked(job),
    }


def checked(job: Import) -> dict[str, Any]:
    """Return the rows that look wrong, and how many are there twice; begin to look for them.

    All that the template is to know: the task goes on while the rest of a screen is computed.
    """
    job.check()
    found = job.suspects or []
    wrong = [one for one in found if one.problem != "duplicate"]
    return {
        "is_checked": job.suspects is not None,
        "unchecked": job.unchecked,
        "n_read": job.done,
        "wrong": wrong[:SHOWN_WRONG],
        "n_wrong": len(wrong),
        "twice": len(found) - len(wrong),
    }


@router.get("/page/import/{number}/check")
async def show_check(request: Request, job: CurrentImport) -> Response:
    """Show which labels look wrong, or how far the rows are looked at."""
    return render(request, "checked.html", job=job, **checked(job))


@router.get("/page/import/{number}/suspects.csv")
async def download_suspects(job: CurrentImport) -> Response:
    """Return all rows that look wrong as CSV."""
    rows = [
        [_text(job, one.row), one.label, one.problem, one.suggested, _text(job, one.like)]
        for one in job.suspects or ()
    ]
    return as_csv("suspects.csv", ["text", "label", "problem", "suggested", "like"], rows)


def _text(job: Import, row: int | None) -> str:
    if row is None:
        return ""
    found = job.inputs[row]
    return found if isinstance(found, str) else f"image {row + 1}"


@router.get("/page/import/{number}/image/{row}")
async def show_image(job: CurrentImport, row: int) -> Response:
    """Return a small image of one that is imported."""
    if not 0 <= row < job.total or isinstance(job.inputs[row], str):
        raise ServerError("There is no such image.", 404)
    small = await job.service.run(inputs.thumbnail, job.inputs[row], SMALL)
    return Response(small, media_type="image/jpeg")


@router.post("/page/import/{number}/teach")
async def teach_file(request: Request, job: CurrentImport, state: CurrentState) -> Response:
    """Start teaching a file; classes that are named alike, and single rows, may be corrected."""
    given = await _given(request)
    if job.stage == "open" and "unsorted" in given:
        await _sort_later(job, state)
    await job.begin(given)
    return render(request, "progress.html", job=job)


async def _sort_later(job: Import, state: PageState) -> None:
    await job.service.run(state.waiting.add, job.unsorted)
    job.waits = True
    state.inbox.encode_missing()


async def _given(request: Request) -> dict[str, str]:
    return {name: str(value) for name, value in (await request.form()).items()}


@router.post("/page/import/{number}/names")
async def choose_names(request: Request, job: CurrentImport) -> Response:
    """Make one class of names that are much alike, or two, and look at the rows again."""
    await job.choose(await _given(request))
    return render(request, "preview.html", job=job, **preview(job))


@router.post("/page/import/{number}/inbox")
async def sort_later(job: CurrentImport, state: CurrentState) -> Response:
    """Put the texts of a file that has no classes into the Inbox."""
    await _sort_later(job, state)
    return Response(headers={"HX-Redirect": "/inbox"})


@router.get("/page/import/{number}")
async def show_progress(request: Request, job: CurrentImport) -> Response:
    """Show how far an import is."""
    events: dict[str, Any] | None = None if job.is_running else {"model-changed": {}}
    return render(request, "progress.html", events=events, job=job)


@router.post("/page/import/{number}/cancel")
async def cancel_import(request: Request, job: CurrentImport) -> Response:
    """Stop teaching a file."""
    job.cancel()
    await job.finish(STOP_SECONDS)
    return await show_progress(request, job)


@router.post("/page/import/{number}/undo")
async def undo_import(request: Request, job: CurrentImport) -> Response:
    """Take back all that was taught of a file."""
    taught = job.taught
    await job.undo()
    response = changed(request, f"Undone: {counted(taught, 'row')} of {job.name}.")
    response.headers["HX-Redirect"] = "/classes"
    return response
