"""The directive `klda-http`: every path of the service, from the OpenAPI document it serves."""

from __future__ import annotations

import json
from collections.abc import Iterator

from docutils import nodes
from fastapi import FastAPI
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from klda.server import api
from klda.server.openapi import Call, Field, calls


def described(call: Call, seen: dict[str, str]) -> Iterator[str]:
    """Yield the lines, in MyST, that describe a call; `seen` has the first call of each answer."""
    heading = f"{call.method} {call.path}"
    yield from (f"### {heading}", "", f"{call.summary}\n{call.more}".strip(), "")
    yield from listed(call.query)
    if call.example:
        yield from ("", "```json", json.dumps(json.loads(call.example)), "```")
    if call.body:
        yield from ("", "Request:", "", *listed(call.body), "")
    first = seen.setdefault(str(call.answer), heading)
    if call.answer and first != heading:
        yield from (f"Answer: as for {first}.", "")
    elif call.answer:
        yield from ("", "Answer:", "", *listed(call.answer), "")


def listed(fields: list[Field], indent: str = "") -> Iterator[str]:
    """Yield a line for each field, and for those in it."""
    for one in fields:
        words = one.kind + ", required" * one.is_required
        if one.default is not None:
            words += f", default {json.dumps(one.default)}"
        yield f"{indent}- `{one.name}` ({words})" + (f": {one.about}" if one.about else "")
        yield from listed(one.fields, indent=indent + "  ")


class HttpApi(SphinxDirective):
    """Insert a section for each path."""

    def run(self) -> list[nodes.Node]:
        """Return the sections, from the application's own description."""
        app, seen = FastAPI(), {}
        for router in (api.router, api.open_router):
            app.include_router(router)
        text = "\n".join(line for call in calls(app) for line in described(call, seen))
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("klda-http", HttpApi)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
