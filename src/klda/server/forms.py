"""What was chosen, typed or pasted on the page, as the API takes it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError

from klda.data import as_label, open_pasted
from klda.labels import MAX_LABEL_LENGTH, Label
from klda.server import schemas
from klda.server.errors import ServerError

T = TypeVar("T")

MOST_ROWS = 100_000
_label: TypeAdapter[Label] = TypeAdapter(schemas.ClassLabel)
_text = TypeAdapter(schemas.Text)
_description = TypeAdapter(schemas.Description)
_texts = TypeAdapter(list[schemas.Text])


def chosen_class(name: str, known: Collection[Label]) -> Label:
    """Return the class that was chosen from a list."""
    for label in known:
        if str(label) == name:
            return label
    raise ServerError(f"There is no class {name[:60]!r}: it was forgotten or renamed.", 404)


def typed_class(name: str, known: Collection[Label]) -> Label:
    """Return the class that was typed: a known one, or a new one of the same kind."""
    return name if name in known else _checked(as_label(str(_checked(name.strip())), known))


def _checked(label: Label) -> Label:
    wrong = (
        f"{str(label)[:60]!r} can't be the name of a class: give one line of visible text, of at "
        f"most {MAX_LABEL_LENGTH} characters; a number, between -2^53 and 2^53."
    )
    return _valid(_label, label, lambda _: wrong)


def typed_text(value: str) -> str:
    """Return a text, or raise if it can't be taught or asked about."""
    return _valid(_text, value, lambda first: f"The text: {first['msg']}.")


def typed_description(value: str) -> str | None:
    """Return the description of a class; None if the field was left empty."""
    if not value.strip():
        return None
    return _valid(_description, value.strip(), lambda first: f"The description: {first['msg']}.")


def _valid(kind: TypeAdapter[T], value: Any, wrong: Callable[[Any], str]) -> T:
    """Return a value that is valid; `wrong` says what is wrong, given pydantic's first error."""
    try:
        return kind.validate_python(value)
    except ValidationError as error:
        raise ServerError(wrong(error.errors()[0])) from error


class PastedRows(NamedTuple):
    """Texts and their labels; without a header the first line is the first row."""

    texts: list[str]
    labels: list[Label]
    has_header: bool


def pasted_rows(
    content: bytes, name: str, known: Collection[Label], *, skip: int = 0
) -> PastedRows:
    """Read rows as files are read, and check that they can be taught; errors call them `name`."""
    table = open_pasted(content, name=name, classes=known)
    batches = table.batches(rows=MOST_ROWS, skip=skip)
    batch = next(batches, None)
    if batch is None:
        raise ServerError(f"{name}: there is a header but no row.")
    if next(batches, None) is not None:
        raise ServerError(f"{name}: more than {MOST_ROWS:,} rows. Send them in several parts.")
    labels = batch.labels or []
    _valid(
        _texts, batch.inputs, lambda e: f"{name}, row {int(e['loc'][0]) + 1 + skip}: {e['msg']}."
    )
    for label in dict.fromkeys(labels):
        try:
            _checked(label)
        except ServerError as error:
            raise ServerError(f"{name}, row {labels.index(label) + 1 + skip}: {error}") from error
    return PastedRows(batch.inputs, labels, table.header)
