"""What a cell may hold: an input, or a label."""

from __future__ import annotations

import ast
import contextlib
import html
import re
import reprlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from klda.checks import is_blank, text_problem
from klda.errors import KldaError
from klda.labels import Label, as_name, check_name

NAMES = ("name", "displayName", "display_name", "value", "title")  # of what names an object
# A text with one of these is HTML.
_MARKUP = re.compile(
    r"</(?:p|div|span|a|b|i|em|strong|font|ul|ol|li|td|table|h[1-6]|body)>|<br\s*/?>", re.IGNORECASE
)
_HIDDEN = re.compile(r"<(style|script|head)\b.*?</\1>|<!--.*?-->", re.IGNORECASE | re.DOTALL)
_LINE_END = re.compile(r"\s*(?:<br\s*/?>|</(?:p|div|li|tr|h[1-6])>)\s*", re.IGNORECASE)
_TAG = re.compile(r"</?[a-z][^<>]*>|<![^<>]*>", re.IGNORECASE)


def input_in_cell(value: Any, modality: str, folder: Path) -> Any:
    """Return the input in a cell; the path of an image is relative to the table's folder."""
    if isinstance(value, Path | np.ndarray):
        return value
    if is_blank(value):
        raise KldaError(f"the {modality} is empty.")
    if problem := text_problem(value):
        raise KldaError(f"the {modality} {problem}")
    if modality == "image":
        return folder / value
    text = without_markup(value)
    if is_blank(text):
        raise KldaError("the text is empty.")
    return text


def without_markup(text: str) -> str:
    """Return the text of HTML, which help desks write; other texts stay as they are.

    Taught with its tags, ten samples per class of Banking77 give 72% instead of 86%.
    """
    if "<" not in text or not _MARKUP.search(text):
        return text
    text = _LINE_END.sub("\n", _HIDDEN.sub(" ", text))
    lines = html.unescape(_TAG.sub(" ", text)).splitlines()
    return "\n".join(line for line in (" ".join(line.split()) for line in lines) if line)


def joined(values: Collection[Any]) -> Any:
    """Return the text in several cells; a cell that holds none is passed over."""
    some = [value for value in values if not is_blank(value)]
    if not all(isinstance(value, str) for value in some):
        return next(value for value in some if not isinstance(value, str))  # an error names it
    return "\n".join(some) or None


def label_in_cell(value: Any, classes: Collection[Label], typed: bool = False) -> Label:
    """Return the label in a cell, as `as_label` reads it; `typed`, an integer stays one.

    An object stands for its name. Several in a list, which may be written as Python or JSON do, are
    one label: a combination, with semicolons between them.
    """
    if isinstance(value, str) and value not in classes:
        value = _unwritten(value)
    found = _name(value)
    if isinstance(value, list) and all(isinstance(_name(one), str) for one in value):
        found = ";".join(map(_name, value))
    if is_blank(found):
        check_name("")
    if not isinstance(found, str | int | np.integer):
        raise KldaError(f"the label is {reprlib.repr(value)}; expected a string or an integer.")
    if typed and not isinstance(found, str):
        return int(found)
    found = str(found).lower() if isinstance(found, bool) else str(found)
    check_name(as_name(found))
    return as_label(found, classes)


def _name(value: Any) -> Any:
    """Return what names a class: of an object its name, and 3 for 3.0, which tables make of it."""
    if isinstance(value, dict):
        value = next((value[name] for name in NAMES if name in value), value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _unwritten(text: str) -> Any:
    """Return the list that a text is written as, ``['a', 'b']``; or else the text."""
    if text[:1] == "[" and text[-1:] == "]":
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            found = ast.literal_eval(text)
            if found and all(isinstance(one, str) for one in found):
                return found
    return text


def as_label(text: str, classes: Collection[Label]) -> Label:
    """Convert a label from its text form to one of the model's labels.

    It is the text itself if a class is called exactly that; otherwise the text as a name, or an
    integer if the classes are integers.
    """
    if text in classes:
        return text
    label = as_name(text)
    if not isinstance(next(iter(classes), ""), int):
        return label
    if not re.fullmatch(r"[+-]?[0-9]+", label):
        raise KldaError(
            f"The label {label!r} is not an integer, but the classes of this model are integers."
        )
    return int(label)
