"""What a cell may hold: an input, or a label."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from klda.checks import is_blank, text_problem
from klda.errors import KldaError
from klda.labels import Label, check_name


def input_in_cell(value: Any, modality: str, folder: Path) -> Any:
    """Return the input in a cell; the path of an image is relative to the table's folder."""
    if isinstance(value, Path | np.ndarray):
        return value
    if is_blank(value):
        raise KldaError(f"the {modality} is empty.")
    if problem := text_problem(value):
        raise KldaError(f"the {modality} {problem}")
    return folder / value if modality == "image" else value


def joined(values: Collection[Any]) -> Any:
    """Return the text in several cells; a cell that holds none is passed over."""
    some = [value for value in values if not is_blank(value)]
    if len(some) < 2 or not all(isinstance(value, str) for value in some):
        return some[0] if some else None
    return "\n".join(some)


def label_in_cell(
    value: Any, classes: Collection[Label], typed: bool = False, ignore_case: bool = False
) -> Label:
    """Return the label in a cell, as `as_label` reads it; `typed`, an integer stays one.

    Without case it is the class that is called the same but for case, or else in lower case.
    """
    if is_blank(value):
        check_name("")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise KldaError(f"the label is {reprlib.repr(value)}; expected a string or an integer.")
    if typed and not isinstance(value, str):
        return int(value)
    check_name(str(value).strip())
    label = as_label(str(value), classes)
    if not ignore_case or label in classes or not isinstance(label, str):
        return label
    folded = label.casefold()
    return next((name for name in classes if str(name).casefold() == folded), label.lower())


def as_label(text: str, classes: Collection[Label]) -> Label:
    """Convert a label from its text form to one of the model's labels.

    It is the text itself if a class is called exactly that; otherwise the text without the blanks
    around it, as an integer if the classes are integers.
    """
    if text in classes:
        return text
    label = text.strip()
    if not isinstance(next(iter(classes), ""), int):
        return label
    if not re.fullmatch(r"[+-]?[0-9]+", label):
        raise KldaError(
            f"The label {label!r} is not an integer, but the classes of this model are integers."
        )
    return int(label)
