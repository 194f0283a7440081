"""The page: rendered here, kept up to date by htmx; everything it shows is escaped."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, File, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from pydantic import TypeAdapter, ValidationError

from klda.errors import KldaError
from klda.server import api, names, pictures, schemas
from klda.server.changes import Label, digest
from klda.server.errors import NotFoundError, ServiceError, UnauthorizedError
from klda.server.guard import GuardedRoute, before_body
from klda.server.memory import Acknowledgement
from klda.server.pasted import PastedRows, read_rows
from klda.server.security import SESSION_COOKIE, SESSION_SECONDS, check_role
from klda.server.service import Service

UPLOAD_CHUNK = 64
MOST_UPLOADS = 20
SHOWN_CLASSES = 300
SUGGESTED_CLASSES = 2000
MANY_NEW = 10  # more new classes in a table than this are shown before they are taught
PREVIEWED = 4
TRACE = (
    "A trace of what was forgotten stays in the covariance that all classes share, because this "
    "model keeps no ledger."
)

STATIC = StaticFiles(directory=Path(__file__).parent / "static")
_environment = Environment(
    loader=PackageLoader("klda.server"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
# A menu that is open stays open while the list around it is brought up to date: htmx knows it
# again by its id, which has to be a plain word.
_environment.filters["menu_id"] = lambda label: "menu-" + digest("menu", str(label))
_templates = Jinja2Templates(env=_environment)
_text = TypeAdapter(schemas.Text)

log = logging.getLogger("klda.server")
router = APIRouter(include_in_schema=False, route_class=GuardedRoute)


# ------------------------------------------------------------------ who is asking


def _role(request: Request) -> str | None:
    return request.app.state.keys.session_role(request.cookies.get(SESSION_COOKIE))


def _may(wanted: str) -> Any:
    def check(request: Request) -> None:
        role = _role(request)
        if role is None:
            raise UnauthorizedError("The session is over: sign in again.")
        check_role(role, wanted)

    return before_body(check)


The = Annotated[Service, Depends(api.service_of)]
ask, teach = [_may("ask")], [_may("teach")]


def render(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a template's text.

    Parameters
    ----------
    request : Request
        What is answered.
    name : str
        The template.
    status : int
        HTTP status.
    **values
        For the template.

    Returns
    -------
    HTMLResponse
    """
    keys = request.app.state.keys
    role = _role(request)
    common = {"may_teach": role == "teach", "signed_in": keys.required and role is not None}
    return _templates.TemplateResponse(request, name, {**common, **values}, status_code=status)


def page_error(request: Request, error: ServiceError) -> Response:
    """Return an error as the page shows it.

    Parameters
    ----------
    request : Request
        What failed.
    error : ServiceError
        Why.

    Returns
    -------
    Response
        A message for the page, or the way to the sign-in.
    """
    response = render(request, "message.html", error.status, text=str(error), kind="error")
    if error.status == 401:
        response.headers["HX-Redirect"] = "/login"
    return response


# ------------------------------------------------------------------ signing in


@router.get("/")
async def index(request: Request, service: The) -> Response:
    """Show the page."""
    if _role(request) is None:
        return RedirectResponse("/login", 303)
    return render(request, "index.html", **_overview(service))


@router.get("/login")
async def login_form(request: Request) -> Response:
    """Show the form for a key."""
    return render(request, "login.html", wrong=False)


@router.post("/login")
async def login(request: Request, key: Annotated[str, Form(max_length=500)]) -> Response:
    """Take a key and open a session."""
    token = request.app.state.keys.open_session(key.strip())
    if token is None:
        return render(request, "login.html", 401, wrong=True)
    response = RedirectResponse("/", 303)
    response.set_cookie(
        SESSION_COOKIE,
        token,
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
    )
    return response


@router.post("/logout")
async def logout(request: Request) -> Response:
    """End the session."""
    request.app.state.keys.close_session(request.cookies.get(SESSION_COOKIE))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(SESSION_COOKIE)
    return response


# ------------------------------------------------------------------ asking and correcting


@router.post("/page/ask", dependencies=ask)
async def ask_one(
    request: Request,
    service: The,
    value: Annotated[str, Form()] = "",
    file: Annotated[UploadFile | None, File()] = None,
) -> Response:
    """Answer for one input."""
    if file is not None and file.filename:
        value = base64.b64encode(await file.read()).decode()
    return await _answer(request, service, value)


@router.post("/page/teach", dependencies=teach)
async def teach_one(
    request: Request,
    service: The,
    value: Annotated[str, Form()],
    label: Annotated[str, Form()] = "",
    chosen: Annotated[str, Form()] = "",
    said: Annotated[str, Form()] = "",
) -> Response:
    """Teach one input, with a class that was chosen or a label that was typed."""
    name = _chosen_label(service, chosen) if chosen else _known_label(service, label)
    given = await _input(service, value)
    done = await service.learn(given, [name])
    note = f"Taught: this is {name}." + (" A new class." if done.new else "")
    if chosen and said == chosen:
        note = f"Confirmed: this is {name}."
    return _changed(await _answer(request, service, value, note=note))


@router.post("/page/why", dependencies=ask)
async def why(request: Request, service: The, value: Annotated[str, Form()]) -> Response:
    """Say why the model answers as it does."""
    given = await _input(service, value)
    said = await service.explain(given[0])
    largest = max((abs(word["weight"]) for word in said["words"]), default=0.0) or 1.0
    words = [
        {
            "word": word["word"],
            "weight": word["weight"],
            "step": round(4 * abs(word["weight"]) / largest),
            "speaks": "for" if word["weight"] >= 0 else "against",
        }
        for word in said["words"]
    ]
    return render(request, "why.html", words=words, said=said)


async def _answer(request: Request, service: Service, value: str, note: str = "") -> HTMLResponse:
    """Show the answer; one with a note was taught just now, and is not taught again."""
    shown: dict[str, Any] = {
        "value": value,
        "modality": service.modality,
        "note": note,
        "answer": None,
    }
    if not service.snapshot.counts:
        if not value.strip():
            raise ServiceError("Type something first.")
        return render(request, "answer.html", **shown)
    given = await _input(service, value)
    _, (shown["answer"],) = await service.predict(given, 5)
    return render(request, "answer.html", **shown)


async def _input(service: Service, value: str) -> Any:
    """Return a form's value as the model takes it."""
    if service.modality == "text":
        return [_valid(_text, value, "The text")]
    if service.modality == "image":
        return await api.inputs_of(service, schemas.Inputs(images=[value]))
    try:
        row = np.array([float(part) for part in value.replace(",", " ").split()], np.float32)
    except ValueError as error:
        raise ServiceError("Give numbers, separated by commas or spaces.") from error
    if not len(row) or not np.isfinite(row).all():
        raise ServiceError("Give finite numbers, separated by commas or spaces.")
    return row[None, :]


def _valid(adapter: TypeAdapter, value: str, what: str) -> Any:
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        raise ServiceError(f"{what}: {error.errors()[0]['msg']}.") from error


def _known_label(service: Service, text: str) -> Label:
    """Return the label that someone typed."""
    return names.typed(text, service.snapshot.counts)


def _chosen_label(service: Service, text: str) -> Label:
    """Return the label of a class that was chosen from those shown."""
    return names.chosen(text, service.snapshot.counts)


# ------------------------------------------------------------------ many at once


@dataclass
class Upload:
    """Rows on their way into the model."""

    id: str
    total: int
    done: int = 0
    new: set[Any] = field(default_factory=set)
    error: str = ""

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return bool(self.error) or self.done >= self.total


def _uploads(request: Request) -> OrderedDict[str, Upload]:
    state = request.app.state
    if not hasattr(state, "uploads"):
        state.uploads, state.upload_tasks = OrderedDict(), set()
    return state.uploads


@router.post("/page/upload", dependencies=teach)
async def upload(
    request: Request,
    service: The,
    rows: Annotated[str, Form()] = "",
    file: Annotated[UploadFile | None, File()] = None,
    confirmed: Annotated[str, Form()] = "",
) -> Response:
    """Begin to teach the rows of a table, or show first what would be taught."""
    if service.modality != "text":
        raise ServiceError("Tables can be taught to models of texts only; use the API.")
    content, name = rows.encode(), "Pasted rows"
    if file is not None and file.filename:
        content, name = await file.read(), file.filename
    table = await asyncio.to_thread(read_rows, content, name, service.snapshot.counts)
    # What was looked at is what is taught: other rows have another mark.
    mark = digest("table", content.decode())
    if confirmed == f"{mark}:skip":
        table = table.without_first()
    elif confirmed != mark and _is_doubtful(service, table):
        return render(request, "preview.html", mark=mark, **_preview(service, table))
    return _begin(request, service, table)


def _new_labels(service: Service, table: PastedRows) -> list[Label]:
    return [label for label in dict.fromkeys(table.labels) if label not in service.snapshot.counts]


def _is_doubtful(service: Service, table: PastedRows) -> bool:
    """Whether the columns of a table may be others than it seems."""
    return len(_new_labels(service, table)) > (MANY_NEW if table.has_header else 0)


def _preview(service: Service, table: PastedRows) -> dict[str, Any]:
    new = _new_labels(service, table)
    first = zip(table.texts[:PREVIEWED], table.labels[:PREVIEWED], strict=True)
    return {
        "rows": [(text, str(label), label in new) for text, label in first],
        "n_rows": len(table.texts),
        "n_classes": len(set(table.labels)),
        "new": new,
        "has_header": table.has_header,
    }


def _begin(request: Request, service: Service, table: PastedRows) -> Response:
    uploads = _uploads(request)
    if any(not one.finished for one in uploads.values()):
        raise ServiceError("Another table is being taught: wait until it is done.")
    job = Upload(secrets.token_hex(8), len(table.texts))
    uploads[job.id] = job
    while len(uploads) > MOST_UPLOADS:
        uploads.popitem(last=False)
    task = asyncio.create_task(_teach_rows(service, job, table.texts, table.labels))
    request.app.state.upload_tasks.add(task)
    task.add_done_callback(request.app.state.upload_tasks.discard)
    return render(request, "progress.html", job=job)


async def _teach_rows(service: Service, job: Upload, texts: list[str], labels: list[Label]) -> None:
    absent = set(labels) - set(service.snapshot.counts)
    try:
        for start in range(0, len(texts), UPLOAD_CHUNK):
            part = slice(start, start + UPLOAD_CHUNK)
            done = await _teach_once(service, job, start, texts[part], labels[part], absent)
            job.new.update(done.new)
            job.done += len(labels[part])
    except KldaError as error:
        job.error = str(error)
    except Exception:
        log.exception("upload")
        job.error = "Something went wrong here: the log has it."


async def _teach_once(
    service: Service,
    job: Upload,
    start: int,
    texts: list[str],
    names: list[Any],
    absent: set[Any],
) -> Acknowledgement:
    """Teach some rows, but only once if a table is sent again because it was cut off.

    Rows of classes in `absent` that were taught before were forgotten: they are taught again.
    """
    content = [start, texts, names]
    key = digest("table", content)
    done = await service.learn(texts, names, key, content)
    gone = [i for i, name in enumerate(names) if name in absent] if done.repeated else []
    if gone:
        some, theirs = [texts[i] for i in gone], [names[i] for i in gone]
        done = await service.learn(some, theirs, f"{key}-{job.id}", content)
    return done


async def finish_uploads(state: Any, seconds: float) -> None:
    """Wait until tables that were sent are taught.

    Parameters
    ----------
    state : State
        Of the application.
    seconds : float
        How long at most; what is left then can be sent again.
    """
    tasks = set(getattr(state, "upload_tasks", ()))
    if not tasks:
        return
    _, left = await asyncio.wait(tasks, timeout=seconds)
    for task in left:
        task.cancel()
    if left:
        log.warning("a table was cut off: send it again, rows that were taught count once")
        await asyncio.wait(left)


@router.get("/page/upload/{job_id}", dependencies=ask)
async def upload_progress(request: Request, job_id: str) -> Response:
    """Show how far it is."""
    job = _uploads(request).get(job_id)
    if job is None:
        raise NotFoundError("There is no such upload.")
    response = render(request, "progress.html", job=job)
    return _changed(response) if job.finished else response


# ------------------------------------------------------------------ the classes


@router.get("/page/classes", dependencies=ask)
async def class_list(
    request: Request, service: The, search: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Show the classes whose names contain something."""
    return render(request, "classes.html", **_classes(service, search))


@router.get("/page/overview", dependencies=ask)
async def overview(request: Request, service: The) -> Response:
    """Show the figures of the header and the names to choose from."""
    return render(request, "overview.html", **_overview(service))


@router.post("/page/rename", dependencies=teach)
async def rename(
    request: Request,
    service: The,
    old: Annotated[str, Form()],
    new: Annotated[str, Form()],
) -> Response:
    """Give a class another name."""
    label = _known_label(service, new)
    await service.rename(_chosen_label(service, old), label)
    text = f"Renamed {old} to {label}."
    return _changed(render(request, "message.html", text=text, kind="done"))


@router.post("/page/forget", dependencies=teach)
async def forget(request: Request, service: The, label: Annotated[str, Form()]) -> Response:
    """Forget a class, and offer an undo."""
    done = await service.forget([_chosen_label(service, label)])
    text = f"Forgot {label}: it is no answer any more."
    if not service.keeps_ledger:
        text += f" {TRACE}"
    return _changed(render(request, "message.html", text=text, kind="done", undo=done.sequence))


@router.get("/page/forgotten", dependencies=teach)
async def forgotten(request: Request, service: The) -> Response:
    """Show what was forgotten lately and can be brought back."""
    inspected = service.writer.inspect(lambda _, memory: memory.forgotten())
    found = await asyncio.wrap_future(inspected)
    return render(
        request,
        "forgotten.html",
        forgotten=sorted(found.items(), reverse=True),
        minutes=math.ceil(service.settings.undo_seconds / 60),
        trace="" if service.keeps_ledger else TRACE,
    )


@router.post("/page/undo", dependencies=teach)
async def undo(request: Request, service: The, number: Annotated[int, Form()]) -> Response:
    """Bring back what was forgotten."""
    await service.undo(number)
    return _changed(render(request, "message.html", text="Brought back.", kind="done"))


@router.get("/page/map", dependencies=ask)
async def class_map(request: Request, service: The) -> Response:
    """Show where the classes lie, and which are easily confused."""
    atlas = await service.atlas()
    placed = pictures.dots(atlas.map)
    at = {dot.label: dot for dot in placed}
    both = [pair for pair in atlas.pairs[:12] if pair.first in at and pair.second in at]
    lines = [(at[pair.first], at[pair.second]) for pair in both]
    return render(
        request,
        "map.html",
        dots=placed,
        names=pictures.names(placed, pictures.LETTERS),
        phone_names=pictures.names(placed, pictures.LARGE_LETTERS),
        lines=lines,
        pairs=atlas.pairs[:10],
        n_classes=len(service.snapshot.counts),
        width=pictures.WIDTH,
        height=pictures.HEIGHT,
    )


@router.get("/page/scores", dependencies=ask)
async def scores(request: Request, service: The) -> Response:
    """Show how often the model was right just before it was taught."""
    return render(request, "scores.html", chart=pictures.chart(await service.tallies()))


def _overview(service: Service) -> dict[str, Any]:
    snapshot = service.snapshot
    return {
        "modality": service.modality,
        "foundation": service.foundation.get("name", ""),
        "n_classes": len(snapshot.counts),
        "n_samples": snapshot.samples,
        "labels": snapshot.labels[:SUGGESTED_CLASSES],
        **_classes(service, ""),
    }


def _classes(service: Service, search: str) -> dict[str, Any]:
    found = api.search_classes(service, search)
    return {
        "classes": found[:SHOWN_CLASSES],
        "found": len(found),
        "search": search,
        "largest": max((n for _, n in found), default=1),
    }


def _changed(response: HTMLResponse) -> HTMLResponse:
    # The parts of the page that show the model listen for this.
    response.headers["HX-Trigger"] = "model-changed"
    return response
