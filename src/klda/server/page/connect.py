"""Connect: how programs use the model, who may do what, what is stored; and the API's own page."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from klda.server.api import CurrentService
from klda.server.page.render import screen
from klda.server.page.routes import router

QUESTIONS = {
    "text": ("texts", '["where is my card?"]'),
    "image": ("images", '["…base64…"]'),
    "features": ("features", "[[0.1, 0.2]]"),
}


@router.get("/connect")
async def show_connect(request: Request, service: CurrentService) -> Response:
    """Show how programs use the model."""
    address = str(request.base_url).rstrip("/")
    kind, question = QUESTIONS[service.modality]
    settings = service.settings
    return await screen(
        request,
        "connect",
        address=address,
        kind=kind,
        question=question,
        keys_required=bool(settings.keys),
        undo_hours=math.ceil(service.snapshot.learner.undo_seconds / 3600),
        keeps_rows=not service.snapshot.learner.leaves_trace,
        folder=str(settings.model),
    )


@router.get("/docs")
async def show_docs(request: Request, service: CurrentService) -> Response:
    """Describe the API, with a form to try each call."""
    groups = operations(request.app)
    return await screen(request, "docs", groups=groups, keys_required=bool(service.settings.keys))


@cache
def operations(app: FastAPI) -> dict[str, list[dict[str, Any]]]:
    """Return the calls of the API by their tags, out of its OpenAPI document."""
    document = app.openapi()
    found: dict[str, list[dict[str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            body = one.get("requestBody", {}).get("content", {}).get("application/json", {})
            answer = one["responses"].get("200", {}).get("content", {}).get("application/json", {})
            summary, _, more = one.get("description", "").partition("\n")
            found.setdefault((one.get("tags") or ["other"])[0], []).append(
                {
                    "id": one["operationId"],
                    "method": method.upper(),
                    "path": path,
                    "summary": summary or one.get("summary", ""),
                    "more": more.strip(),
                    "body": _example(_resolved(body.get("schema", {}), document)),
                    "fields": _fields(_resolved(body.get("schema", {}), document), document),
                    "answer": _fields(_resolved(answer.get("schema", {}), document), document),
                    "query": [p for p in one.get("parameters", []) if p["in"] == "query"],
                }
            )
    return found


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def _example(schema: dict[str, Any]) -> str:
    examples = schema.get("examples")
    return json.dumps(examples[0], indent=2) if examples else ""


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "kind": _kind(one, document),
            "about": _resolved(one, document).get("description", "").partition("\n")[0],
        }
        for name, one in schema.get("properties", {}).items()
    ]


def _kind(schema: dict[str, Any], document: dict[str, Any]) -> str:
    """Return the type of a value in a few words."""
    if "anyOf" in schema:
        kinds = [_kind(one, document) for one in schema["anyOf"]]
        return " or ".join(dict.fromkeys(kind for kind in kinds if kind != "null"))
    schema = _resolved(schema, document)
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}), document)}"
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    return str(schema.get("type", "value"))
