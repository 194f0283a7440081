"""The calls of the API, out of its OpenAPI document: for /docs and for the reference."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastapi import FastAPI

Schema = dict[str, Any]


@dataclass(frozen=True)
class Field:
    """A value in a request or an answer."""

    name: str
    kind: str
    about: str
    is_required: bool
    default: Any
    fields: list[Field]  # of the object that it is, or of those in its list


@dataclass(frozen=True)
class Call:
    """A path with a method."""

    id: str
    tag: str
    method: str
    path: str
    summary: str
    more: str
    can_try: bool  # with JSON, and an answer that ends
    example: str  # a body, as JSON; "" if there is none
    query: list[Field]
    body: list[Field]
    answer: list[Field]


@cache
def calls(app: FastAPI) -> list[Call]:
    """Return the calls that the OpenAPI document of an application describes."""
    document = app.openapi()
    reader = _Reader(document["components"]["schemas"])
    return [
        reader.call(path, method, said)
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    ]


class _Reader:
    def __init__(self, schemas: dict[str, Schema]) -> None:
        self._schemas = schemas

    def call(self, path: str, method: str, said: dict[str, Any]) -> Call:
        summary, _, more = said["description"].partition("\n")
        bodies = said.get("requestBody", {}).get("content", {})
        answers = said["responses"]["200"].get("content", {})
        content: Schema = next(iter(bodies.values()), {})
        body = self._resolved(content.get("schema", {}))
        examples = body.get("examples")
        queries = [one for one in said.get("parameters", []) if one["in"] == "query"]
        return Call(
            id=said["operationId"],
            tag=said["tags"][0],
            method=method.upper(),
            path=path,
            summary=summary,
            more=more.strip(),
            can_try="multipart/form-data" not in bodies and "text/event-stream" not in answers,
            example=json.dumps(examples[0], indent=2) if examples else "",
            query=[
                self._field(one["name"], one["schema"] | one, one["required"]) for one in queries
            ],
            body=self._fields(body, asked=True),
            answer=self._fields(answers.get("application/json", {}).get("schema", {})),
        )

    def _resolved(self, schema: Schema) -> Schema:
        name = schema.get("$ref", "").rpartition("/")[2]
        return self._schemas[name] if name else schema

    def _fields(self, schema: Schema, *, asked: bool = False) -> list[Field]:
        """Return the fields of an object that is asked for, or of an answer."""
        schema = self._resolved(schema)
        if only := schema.get("propertyNames", {}).get("const"):  # an object with one field
            return [self._field(only, schema["additionalProperties"])]
        needed = schema.get("required", [])
        return [
            self._field(name, one, name in needed if asked else None)
            for name, one in schema.get("properties", {}).items()
        ]

    def _field(self, name: str, schema: Schema, is_required: bool | None = None) -> Field:
        kind, default, asked = self._kind(schema), schema.get("default"), is_required is not None
        return Field(
            name,
            kind.replace(" or null", "") if asked else kind,
            " ".join(str(schema.get("description", "")).split()),
            bool(is_required),
            None if default in ("", [], schema.get("maximum")) else default,
            self._fields(schema.get("items", schema), asked=asked),
        )

    def _kind(self, schema: Schema, s: str = "") -> str:
        """Return the type of a value in words; s is "s" for the plural."""
        schema = self._resolved(schema)
        if choices := schema.get("anyOf"):
            return " or ".join(dict.fromkeys(self._kind(one, s) for one in choices))
        if "enum" in schema:
            return " or ".join(map(str, schema["enum"]))
        if schema.get("type") == "array":
            return f"list{s} of {self._kind(schema.get('items', {}), 's')}"
        name = str(schema.get("type", "any"))
        return name if name in ("any", "null") else name + s
