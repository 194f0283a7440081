"""Connect: how programs use the model, who may do what, what is stored; and the API's own page."""

from __future__ import annotations

import math

from fastapi import Request
from fastapi.responses import Response

from klda.server.api import CurrentService
from klda.server.openapi import calls
from klda.server.page.render import screen
from klda.server.page.routes import router
from klda.server.page.state import CurrentState

# For each modality the name of the inputs in JSON, an input in JSON, and one in Python.
EXAMPLES = {
    "text": ("texts", '["where is my card?"]', '["where is my card?"]'),
    "image": ("images", '["…base64…"]', '["photo.jpg"]'),
    "features": ("features", "[[0.1, 0.2]]", "[[0.1, 0.2]]"),
}


@router.get("/connect")
async def show_connect(request: Request, service: CurrentService, state: CurrentState) -> Response:
    """Show how programs use the model."""
    address = str(request.base_url).rstrip("/")
    kind, question, in_python = EXAMPLES[service.modality]
    settings = service.settings
    return await screen(
        request,
        "connect",
        address=address,
        kind=kind,
        question=question,
        in_python=in_python,
        keys_required=bool(settings.keys),
        undo_hours=math.ceil(service.snapshot.learner.undo_seconds / 3600),
        keeps_rows=not service.snapshot.learner.leaves_trace,
        days_kept=state.waiting.days_kept,
        folder=str(settings.model.resolve()),
    )


@router.get("/docs")
async def show_docs(request: Request, service: CurrentService) -> Response:
    """Describe the API, with a form to try each call."""
    found = calls(request.app)
    groups = {one.tag: [call for call in found if call.tag == one.tag] for one in found}
    return await screen(request, "docs", groups=groups, keys_required=bool(service.settings.keys))
