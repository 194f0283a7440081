"""Templates: what every screen shows around its content, and how values are written."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi.templating import Jinja2Templates
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from klda.messages import counted
from klda.server.changes import Change, digest
from klda.server.errors import ServerError
from klda.server.gate import SESSION_COOKIE
from klda.server.page import wording
from klda.server.service import Service

PER_PAGE = 50  # rows of a list
T = TypeVar("T")

_FILES = Path(__file__).parent.parent / "static"
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
_FILTERS = (
    wording.shown,
    wording.one_line,
    counted,
    wording.percent,
    wording.likely,
    wording.ago,
    wording.moment,
    wording.named,
    wording.described,
)
_environment.filters |= {function.__name__: function for function in _FILTERS}
_environment.tests["can_undo"] = wording.can_undo
_templates = Jinja2Templates(env=_environment)


def role_of(request: Request) -> str | None:
    """Return the role of the page's session; None if there is none."""
    return request.app.state.keys.session_role(request.cookies.get(SESSION_COOKIE))


def render(
    request: Request,
    template: str,
    /,
    *,
    status: int = 200,
    events: dict[str, Any] | None = None,
    **values: Any,
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
    response = _templates.TemplateResponse(
        request, template, {**common, **values}, status_code=status
    )
    if events:
        response.headers["HX-Trigger"] = json.dumps(events)
        if "model-changed" in events:  # the browser need not hear of it again
            response.headers["X-Model-Version"] = str(service.snapshot.version)
    return response


async def screen(request: Request, name: str, **values: Any) -> Response:
    """Render a whole screen."""
    return render(request, f"{name}.html", screen=name, **await header(request), **values)


async def header(request: Request) -> dict[str, Any]:
    """Return what the header shows."""
    service: Service = request.app.state.service
    snapshot = service.snapshot
    return {
        "model_name": service.settings.model.resolve().name,
        "n_classes": len(snapshot.counts),
        "n_examples": snapshot.samples,
        "version": request.state.version,
        "quality": await service.quality(),
        "last": next(reversed(await service.undoable()), None),
    }


def changed(request: Request, text: str, *changes: Change, **events: Any) -> HTMLResponse:
    """Say that the model was changed; everything that shows the model is brought up to date."""
    events = {"model-changed": {}, **events}
    return render(request, "message.html", events=events, text=text, kind="done", undo=changes)


def paginate(rows: Sequence[T], page: int) -> tuple[Sequence[T], int, int]:
    """Return the rows of a page, its number, and how many pages there are."""
    pages = max(1, math.ceil(len(rows) / PER_PAGE))
    page = min(max(page, 1), pages)
    return rows[(page - 1) * PER_PAGE : page * PER_PAGE], page, pages


def as_csv(name: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Response:
    """Return rows as a CSV file to be downloaded; its first character lets Excel read UTF-8."""
    file = io.StringIO()
    file.write("\ufeff")
    csv.writer(file).writerows([columns, *rows])
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
    return Response(file.getvalue(), media_type="text/csv", headers=headers)


def page_error(request: Request, error: ServerError) -> Response:
    """Return an error as the page shows it, or send the browser to the sign-in."""
    shown: dict[str, Any] = {"text": str(error), "kind": "error", "undo": ()}
    response: Response = render(request, "message.html", status=error.status, **shown)
    response.headers.update(error.headers)
    if error.status == 401:
        response.headers["HX-Redirect"] = "/login"
    return response
