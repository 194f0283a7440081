"""Templates: what every screen shows around its content, and how values are written."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from klda.labels import Label
from klda.server.changes import Change, digest
from klda.server.errors import ServerError
from klda.server.gate import SESSION_COOKIE
from klda.server.service import Service

_FILES = Path(__file__).parent.parent / "static"
STATIC = StaticFiles(directory=_FILES)
# Other content has another address, so that browsers can keep the files.
STATIC_URL = "/static/" + digest(b"".join(path.read_bytes() for path in sorted(_FILES.iterdir())))
SCREENS = ("try", "inbox", "classes", "quality", "history", "connect")


def shown(label: Label) -> str:
    """Return a label as people read it: ``card_arrival`` as "card arrival"."""
    return " ".join(str(label).replace("_", " ").split()) or str(label)


def counted(number: int, one: str, many: str = "") -> str:
    """Return "1 class" or "2,000 classes"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percent(fraction: float) -> str:
    """Return a fraction as a whole percentage."""
    return f"{100 * fraction:.0f}%"


def ago(when: float) -> str:
    """Return how long ago a moment was, in words."""
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{counted(int(seconds // size), unit)} ago"
    return "just now"


def moment(when: float) -> str:
    """Return a moment in the format of HTML's time element."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")


_environment = Environment(
    loader=PackageLoader("klda.server"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.globals["static"] = STATIC_URL
_environment.filters |= {
    "shown": shown,
    "counted": counted,
    "percent": percent,
    "ago": ago,
    "moment": moment,
}
_templates = Jinja2Templates(env=_environment)


def role_of(request: Request) -> str | None:
    """Return the role of the page's session; None if there is none."""
    return request.app.state.keys.session_role(request.cookies.get(SESSION_COOKIE))


def render(
    request: Request, name: str, status: int = 200, *, events: dict[str, Any] | None = None, **values: Any
) -> HTMLResponse:
    """Render a template; `events` are triggered in the browser once it has the response."""
    keys, role = request.app.state.keys, role_of(request)
    service: Service = request.app.state.service
    common = {
        "may_teach": role == "teach",
        "signed_in": keys.required and role is not None,
        "role": role,
        "modality": service.modality,
    }
    response = _templates.TemplateResponse(request, name, {**common, **values}, status_code=status)
    if events:
        response.headers["HX-Trigger"] = json.dumps(events)
    return response


async def screen(request: Request, name: str, **values: Any) -> Response:
    """Render a whole screen, or send the browser to the sign-in."""
    if role_of(request) is None:
        return RedirectResponse("/login", 303)
    return render(request, f"{name}.html", screen=name, **await header(request), **values)


async def header(request: Request) -> dict[str, Any]:
    """Return what the header shows."""
    service: Service = request.app.state.service
    snapshot = service.snapshot
    return {
        "model_name": service.settings.model.resolve().name,
        "n_classes": len(snapshot.counts),
        "n_examples": snapshot.samples,
        "version": snapshot.version,
        "quality": await request.app.state.page.quality(),
        "last": await last_undoable(service),
    }


async def undoable(service: Service) -> list[Change]:
    """Return the changes that can be undone, the oldest first."""
    found: list[Change] = await service.read(lambda _, journal: journal.undoable())
    return found


async def last_undoable(service: Service) -> Change | None:
    """Return the change that Undo takes back."""
    found = await undoable(service)
    return found[-1] if found else None


def changed(request: Request, text: str, change: Change | None = None, **events: Any) -> HTMLResponse:
    """Say that the model was changed; everything that shows the model is brought up to date."""
    events = {"model-changed": {}, **events}
    return render(request, "message.html", events=events, text=text, kind="done", undo=change)


def page_error(request: Request, error: ServerError) -> Response:
    """Return an error as the page shows it, or send the browser to the sign-in."""
    values = {"text": str(error), "kind": "error", "undo": None}
    response = render(request, "message.html", error.status, **values)
    response.headers.update(error.headers)
    if error.status == 401:
        response.headers["HX-Redirect"] = "/login"
    return response
