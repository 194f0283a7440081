"""Which class a user means by a name that was chosen, typed or pasted on the page."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import TypeAdapter, ValidationError

from klda.labels import MAX_LABEL_LENGTH, Label
from klda.server import schemas
from klda.server.errors import ServiceError

_text = TypeAdapter(schemas.TextLabel)
_number = TypeAdapter(schemas.NumberLabel)


def chosen(name: str, known: Mapping[Label, int]) -> Label:
    """Return the class that was chosen from a list; spaces around the name belong to it."""
    label = _find(name, known)
    if label is None:
        raise ServiceError(f"There is no class {_short(name)}: it was forgotten or renamed.", 404)
    return label


def typed(name: str, known: Mapping[Label, int]) -> Label:
    """Return the class that was typed: a known one, or a new one without spaces around its name.

    Where the known classes are numbers, the new one is a number, too.
    """
    label = _find(name, known)
    if label is not None:
        return label
    name = checked(name.strip())
    return _as_number(name) if _are_numbers(known) else name


def checked(name: str) -> str:
    """Return a name, or raise if no class can have it."""
    try:
        return _text.validate_python(name)
    except ValidationError as error:
        raise ServiceError(
            f"{_short(name)} can't be the name of a class: give one line of visible text, of at "
            f"most {MAX_LABEL_LENGTH} characters."
        ) from error


def _find(name: str, known: Mapping[Label, int]) -> Label | None:
    if not _are_numbers(known):
        return name if name in known else None
    digits = re.fullmatch(r"0|-?[1-9][0-9]{0,18}", name)
    return int(name) if digits and int(name) in known else None


def _are_numbers(known: Mapping[Label, int]) -> bool:
    return isinstance(next(iter(known), ""), int)


def _as_number(name: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", name):
        raise ServiceError(f"The classes of this model are numbers, but {_short(name)} is not.")
    try:
        return _number.validate_python(int(name))
    except ValidationError as error:
        raise ServiceError(
            f"The class {_short(name)} is out of range: give a number between -2^53 and 2^53."
        ) from error


def _short(name: str) -> str:
    return repr(name if len(name) <= 60 else name[:59] + "…")
