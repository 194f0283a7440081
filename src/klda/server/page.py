"""The page: rendered here, updated by htmx; everything it shows is escaped."""

from __future__ import annotations

import asyncio
import base64
import math
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from klda.labels import Label
from klda.server import inputs, schemas
from klda.server.api import CurrentService
from klda.server.changes import Change, Tally, digest
from klda.server.errors import ServerError
from klda.server.gate import SESSION_COOKIE, SESSION_SECONDS
from klda.server.service import Service
from klda.server.uploads import Upload

SHOWN_CLASSES = 300
SUGGESTED_CLASSES = 2000
MANY_NEW = 10  # a table with more new classes than this is shown before it is taught
PREVIEWED = 4
MAP_SIZE = (640, 420)
FONT_SIZE, PHONE_FONT_SIZE = 12, 22  # on a phone the map is drawn small
CHARTED = 500  # samples that the chart of live accuracy shows
CHART_STEPS = 40
TRACE = (
    "The covariance that all classes share keeps a trace of the forgotten class, because this "
    "model keeps neither its samples nor a ledger."
)

_FILES = Path(__file__).parent / "static"
STATIC = StaticFiles(directory=_FILES)
# Other content has another address, so that browsers can keep the files.
STATIC_URL = "/static/" + digest(b"".join(path.read_bytes() for path in sorted(_FILES.iterdir())))
_environment = Environment(
    loader=PackageLoader("klda.server"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["static"] = STATIC_URL
# A menu stays open while the list around it is updated: htmx recognises it by its id, which has to
# be a plain word.
_environment.filters["menu_id"] = lambda label: "menu-" + digest(str(label).encode())
_templates = Jinja2Templates(env=_environment)

router = APIRouter(include_in_schema=False)
Field = Annotated[str, Form()]


def _role(request: Request) -> str | None:
    return request.app.state.keys.session_role(request.cookies.get(SESSION_COOKIE))


def _render(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    keys, role = request.app.state.keys, _role(request)
    common = {"may_teach": role == "teach", "signed_in": keys.required and role is not None}
    return _templates.TemplateResponse(request, name, {**common, **values}, status_code=status)


def _changed(response: HTMLResponse) -> HTMLResponse:
    # The parts of the page that show the model listen for this.
    response.headers["HX-Trigger"] = "model-changed"
    return response


def _message(request: Request, text: str, **values: Any) -> HTMLResponse:
    return _changed(_render(request, "message.html", text=text, kind="done", **values))


def page_error(request: Request, error: ServerError) -> Response:
    """Return an error as the page shows it, or send the browser to the sign-in."""
    response = _render(request, "message.html", error.status, text=str(error), kind="error")
    response.headers.update(error.headers)
    if error.status == 401:
        response.headers["HX-Redirect"] = "/login"
    return response


# ------------------------------------------------------------------ signing in


@router.get("/")
async def index(request: Request, service: CurrentService) -> Response:
    """Show the page."""
    if _role(request) is None:
        return RedirectResponse("/login", 303)
    return _render(request, "index.html", **_overview(service))


@router.get("/login")
async def login_form(request: Request) -> Response:
    """Show the form for a key."""
    return _render(request, "login.html", wrong=False)


@router.post("/login")
async def login(request: Request, key: Annotated[str, Form(max_length=500)]) -> Response:
    """Take a key and open a session."""
    token = request.app.state.keys.open_session(key.strip())
    if token is None:
        return _render(request, "login.html", 401, wrong=True)
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
    return await _answer(request, service, value)


@router.post("/page/teach")
async def teach_one(
    request: Request,
    service: CurrentService,
    value: Field,
    label: Field = "",
    chosen: Field = "",
    said: Field = "",
) -> Response:
    """Teach one input, with a class that was chosen or a label that was typed."""
    known = service.snapshot.counts
    name = inputs.chosen_class(chosen, known) if chosen else inputs.typed_class(label, known)
    done = await service.learn(await inputs.typed_input(service, value), [name])
    note = f"Taught: this is {name}." + (" A new class." if done.new_classes else "")
    if chosen and said == chosen:
        note = f"Confirmed: this is {name}."
    return _changed(await _answer(request, service, value, note=note))


@router.post("/page/why")
async def why(request: Request, service: CurrentService, value: Field) -> Response:
    """Explain an answer."""
    given = await inputs.typed_input(service, value)
    explanation = await service.explain(given[0])
    return _render(request, "why.html", explanation=explanation)


async def _answer(request: Request, service: Service, value: str, note: str = "") -> HTMLResponse:
    """Show the answer; one with a note was just taught, and is not taught again."""
    answer = judged = None
    if service.snapshot.counts:
        snapshot, (answer,) = await service.predict(await inputs.typed_input(service, value), 5)
        judged = snapshot.verdict(answer)
    elif not value.strip():
        raise ServerError("Type something first.")
    return _render(
        request,
        "answer.html",
        value=value,
        modality=service.modality,
        note=note,
        answer=answer,
        verdict=judged,
    )


# ------------------------------------------------------------------ many at once


@router.post("/page/upload")
async def upload(
    request: Request,
    service: CurrentService,
    rows: Field = "",
    file: Annotated[UploadFile | None, File()] = None,
    confirmed: Field = "",
) -> Response:
    """Start teaching the rows of a table, or show first what would be taught."""
    if service.modality != "text":
        raise ServerError("Tables can be taught to models of texts only; use the API.")
    content, name = rows.encode(), "Pasted rows"
    if file is not None and file.filename:
        content, name = await file.read(), file.filename
    known = service.snapshot.counts
    # What was previewed is what is taught: other rows have another mark.
    mark = digest(content)
    skip = int(confirmed == f"{mark}:skip")
    table = await asyncio.to_thread(inputs.pasted_rows, content, name, known, skip=skip)
    new = [label for label in dict.fromkeys(table.labels) if label not in known]
    if not skip and confirmed != mark and len(new) > (MANY_NEW if table.has_header else 0):
        return _render(request, "preview.html", mark=mark, **_preview(table, new))
    state = request.app.state
    state.upload = Upload.begin(service, table, state.upload)
    return _render(request, "progress.html", job=state.upload)


def _preview(table: inputs.PastedRows, new: list[Label]) -> dict[str, Any]:
    first = zip(table.texts[:PREVIEWED], table.labels[:PREVIEWED], strict=True)
    return {
        "rows": [(text, str(label), label in new) for text, label in first],
        "n_rows": len(table.texts),
        "n_classes": len(set(table.labels)),
        "new": new,
        "has_header": table.has_header,
    }


@router.get("/page/upload/{upload_id}")
async def upload_progress(request: Request, upload_id: str) -> Response:
    """Show the progress of an upload."""
    job = request.app.state.upload
    if job is None or job.id != upload_id:
        raise ServerError("There is no such upload.", 404)
    response = _render(request, "progress.html", job=job)
    return _changed(response) if job.finished else response


# ------------------------------------------------------------------ the classes


@router.get("/page/classes")
async def class_list(
    request: Request, service: CurrentService, search: Annotated[str, Query(max_length=200)] = ""
) -> Response:
    """Show the classes whose names contain a text."""
    return _render(request, "classes.html", **_classes(service, search))


@router.get("/page/overview")
async def overview(request: Request, service: CurrentService) -> Response:
    """Show the figures of the header and the suggested class names."""
    return _render(request, "overview.html", **_overview(service))


@router.post("/page/declare")
async def declare(
    request: Request,
    service: CurrentService,
    name: Field,
    about: Annotated[schemas.Description | None, Form(alias="description")] = None,
) -> Response:
    """Add a class by its name."""
    known = service.snapshot.counts
    label = inputs.typed_class(name, known)
    if label in known and about is None:
        raise ServerError(f"There is a class {label} already: describe it, or give another name.")
    await service.change(Change("declare", [label], descriptions=[about]))
    return _message(request, f"{'Described' if label in known else 'Added'} {label}.")


@router.post("/page/rename")
async def rename(request: Request, service: CurrentService, old: Field, new: Field) -> Response:
    """Rename a class."""
    known = service.snapshot.counts
    label = inputs.typed_class(new, known)
    await service.change(Change("rename", (inputs.chosen_class(old, known), label)))
    return _message(request, f"Renamed {old} to {label}.")


@router.post("/page/forget")
async def forget(request: Request, service: CurrentService, label: Field) -> Response:
    """Forget a class, and offer an undo."""
    chosen = inputs.chosen_class(label, service.snapshot.counts)
    done = await service.change(Change("forget", [chosen]))
    trace = "" if done.exact else f" {TRACE}"
    text = f"Forgot {label}: it is no longer predicted.{trace}"
    return _message(request, text, undo=done.number)


@router.get("/page/forgotten")
async def forgotten(request: Request, service: CurrentService) -> Response:
    """Show the classes that were recently forgotten and can be restored."""
    found = [made for made in await service.undoable() if made.kind == "forget"]
    return _render(
        request,
        "forgotten.html",
        forgotten=found[::-1],
        minutes=math.ceil(service.snapshot.learner.undo_seconds / 60),
    )


@router.post("/page/undo")
async def undo(
    request: Request, service: CurrentService, number: Annotated[schemas.ChangeNumber, Form()]
) -> Response:
    """Restore what was forgotten."""
    await service.change(Change("undo", target=number))
    return _message(request, "Restored.")


@router.get("/page/map")
async def class_map(request: Request, service: CurrentService) -> Response:
    """Show a map of the classes and the pairs that are easily confused."""
    drawn, pairs = await service.class_overview()
    dots = [] if drawn is None else drawn.draw(*MAP_SIZE, FONT_SIZE)
    on_phone = [] if drawn is None else drawn.draw(*MAP_SIZE, PHONE_FONT_SIZE)
    at = {dot.label: dot for dot in dots}
    both = [pair for pair in pairs[:12] if pair.first in at and pair.second in at]
    return _render(
        request,
        "map.html",
        dots=dots,
        phone_dots=on_phone,
        lines=[(at[pair.first], at[pair.second]) for pair in both],
        pairs=pairs[:10],
        n_classes=len(service.snapshot.counts),
        size=MAP_SIZE,
    )


@router.get("/page/scores")
async def scores(request: Request, service: CurrentService) -> Response:
    """Show the live accuracy."""
    tallies = [made.tally for made in await service.history() if made.tally]
    return _render(request, "scores.html", chart=chart(tallies))


def chart(tallies: list[Tally]) -> dict[str, Any]:
    """Draw how often the model was right just before it was taught, in a box of 100 by 40."""
    outcomes: list[float] = []
    for tally in tallies:
        # The order within a batch is not known: each sample counts as its batch did.
        if asked := tally.right + tally.wrong:
            outcomes += [tally.right / asked] * asked
    outcomes = outcomes[-CHARTED:]
    count, new = len(outcomes), sum(tally.new for tally in tallies)
    if not count:
        return {"accuracy": None, "new": new}
    window, points = max(5, count // 8), []
    for i in sorted({round(i * (count - 1) / (CHART_STEPS - 1)) for i in range(CHART_STEPS)}):
        part = outcomes[max(0, i + 1 - window) : i + 1]
        y = 40 * (1 - sum(part) / len(part))
        points.append(f"{100 * i / max(1, count - 1):.2f},{y:.2f}")
    accuracy = sum(outcomes) / count
    return {"points": " ".join(points), "accuracy": accuracy, "asked": count, "new": new}


def _overview(service: Service) -> dict[str, Any]:
    snapshot = service.snapshot
    return {
        "modality": service.modality,
        "foundation": service.foundation.get("name", ""),
        "n_classes": len(snapshot.counts),
        "n_samples": snapshot.samples,
        "labels": list(snapshot.counts)[:SUGGESTED_CLASSES],
        **_classes(service, ""),
    }


def _classes(service: Service, search: str) -> dict[str, Any]:
    found = service.snapshot.search(search)
    if found and isinstance(found[0][0], str):
        found.sort(key=lambda entry: str(entry[0]).casefold())
    return {
        "classes": found[:SHOWN_CLASSES],
        "found": len(found),
        "search": search,
        "largest": max(1, *(n for _, n in found)) if found else 1,
    }
