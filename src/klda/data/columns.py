"""Which columns of a table hold the input and the label, and which values are allowed in them."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from klda.checks import is_blank, text_problem
from klda.errors import KldaError
from klda.labels import Label, check_name

TEXT_COLUMNS = (
    *("text", "texts", "sentence", "utterance", "query", "question", "message", "content"),
    *("body", "input", "phrase", "document"),
)
IMAGE_COLUMNS = ("image", "images", "path", "file", "filename", "image_path", "file_name")
FEATURE_COLUMNS = ("features", "feature", "embedding", "embeddings", "vector", "x")
LABEL_COLUMNS = ("label", "labels", "intent", "category", "class", "target", "topic", "tag", "y")
INPUT_COLUMNS: dict[str, tuple[str, ...]] = {  # by modality
    "text": TEXT_COLUMNS,
    "image": IMAGE_COLUMNS,
    "features": FEATURE_COLUMNS,
}


class Columns(NamedTuple):
    """Names of the columns that hold the input and the label; None: guess it, or there is none."""

    input: str | None = None
    label: str | None = None


GUESSED = Columns()


def guess_column(names: Sequence[str], guesses: Sequence[str]) -> str | None:
    """Return the column with the first of some usual names, whatever its case; None without."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    return next((lower[guess] for guess in guesses if guess in lower), None)


def input_in_cell(value: Any, modality: str, folder: Path) -> str | Path:
    """Return the input in a cell; the path of an image is relative to the table's folder."""
    if isinstance(value, Path):
        return value
    if is_blank(value):
        raise KldaError(f"the {modality} is empty.")
    if problem := text_problem(value):
        raise KldaError(f"the {modality} {problem}")
    return folder / value if modality == "image" else value


def label_in_cell(value: Any, classes: Collection[Label], typed: bool = False) -> Label:
    """Return the label in a cell, as `as_label` reads it; `typed`, an integer stays one."""
    if value is None:
        check_name("")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise KldaError(f"the label is {reprlib.repr(value)}; expected a string or an integer.")
    if typed and not isinstance(value, str):
        return int(value)
    check_name(str(value).strip())
    return as_label(str(value), classes)


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
