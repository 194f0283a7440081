"""The directive `klda-http`: every path of the service, from the OpenAPI document it serves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docutils import nodes
from fastapi import FastAPI
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from klda.server import api


def openapi() -> dict[str, Any]:
    """Return the document that `GET /v1/openapi.json` answers with."""
    app = FastAPI()
    for router in (api.router, api.open_router):
        app.include_router(router)
    return app.openapi()


def kind(schema: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if choices := schema.get("anyOf"):
        return " or ".join(kind(choice) for choice in choices)
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


def fields(schema: dict[str, Any]) -> Iterator[str]:
    """Yield the lines, in MyST, that describe the fields of an object."""
    needed = schema.get("required", [])
    for name, field in schema.get("properties", {}).items():
        text = " ".join(str(field.get("description", "")).split())
        required = ", required" if name in needed else ""
        yield from (f"`{name}` ({kind(field)}{required})", f": {text or '—'}", "")


def described(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines, in MyST, that describe all paths."""
    schemas = document["components"]["schemas"]
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield from (f"### {verb.upper()} {path}", "")
            yield from (operation.get("description") or operation["summary"], "")
            for one in operation.get("parameters", []):
                text = one.get("description") or one["schema"].get("description") or "—"
                yield from (f"`{one['name']}` (in the {one['in']})", f": {text}", "")
            body = operation.get("requestBody", {}).get("content", {})
            for content in body.values():
                name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
                if name:
                    yield from ("**Body**", "", *fields(schemas[name]))


class HttpApi(SphinxDirective):
    """Insert a section for each path."""

    def run(self) -> list[nodes.Node]:
        """Return the sections, from the application's own description."""
        text = "\n".join(described(openapi()))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("klda-http", HttpApi)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
