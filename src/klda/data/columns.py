"""Which columns of a table hold the input and the label, and which values are allowed in them."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from klda.data.batch import TableError
from klda.errors import KldaError
from klda.labels import Label, check_name

if TYPE_CHECKING:
    from klda.data.table import Table

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


def choose_columns(table: Table, names: Sequence[str], need_labels: bool) -> tuple[str, str | None]:
    """Return the input and the label column: those asked for, or guessed from their names.

    `names` are the columns there are; without `need_labels` no label column is returned.
    """
    inputs = _find(table, names, "input_column", INPUT_COLUMNS[table.modality])
    label = _find(table, names, "label_column", LABEL_COLUMNS)
    # In a table of two columns, knowing one is knowing the other.
    if len(names) == 2 and (inputs is None) != (label is None):
        other = next(name for name in names if name not in (inputs, label))
        inputs, label = inputs or other, label or other
    if inputs is None and len(names) == 1 and not need_labels:
        inputs = names[0]
    if inputs is None:
        guesses = INPUT_COLUMNS[table.modality]
        raise _not_found(table, names, table.modality, "input_column", guesses)
    if not need_labels:
        return inputs, None
    if inputs == label:
        raise TableError(
            f"{table.path}: the column {label!r} can't hold both the {table.modality} and the "
            f"label; its columns are: {', '.join(names)}. Set input_column and label_column."
        )
    return inputs, label or choose_label(table, names)


def choose_label(table: Table, names: Sequence[str]) -> str:
    """Return the label column alone."""
    label = _find(table, names, "label_column", LABEL_COLUMNS)
    if label is None:
        raise _not_found(table, names, "label", "label_column", LABEL_COLUMNS)
    return label


def asked_for(table: Table, names: Sequence[str]) -> str | None:
    """Return the input column that was asked for, if one was."""
    return _find(table, names, "input_column", ())


def _find(table: Table, names: Sequence[str], parameter: str, guesses: Sequence[str]) -> str | None:
    asked = table.columns.input if parameter == "input_column" else table.columns.label
    if asked is None:
        return guess_column(names, guesses)
    found = asked if asked in names else guess_column(names, [asked.strip().lower()])
    if found is None:
        raise TableError(
            f"{parameter}={asked!r}: {table.path} has no column {asked!r}; its columns are: "
            f"{', '.join(names)}."
        )
    return found


def guess_column(names: Sequence[str], guesses: Sequence[str]) -> str | None:
    """Return the column with the first of some usual names, whatever its case; None without."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    return next((lower[guess] for guess in guesses if guess in lower), None)


def _not_found(
    table: Table, names: Sequence[str], what: str, parameter: str, guesses: Sequence[str]
) -> TableError:
    return TableError(
        f"{table.path}: can't tell which column holds the {what}; its columns are: "
        f"{', '.join(names)}. Set {parameter} (names found without it: {', '.join(guesses)})."
    )


def input_in_cell(value: Any, modality: str, folder: Path) -> str | Path:
    """Return the input in a cell; the path of an image is relative to the table's folder."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise KldaError(f"the {modality} is empty.")
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise KldaError(f"the {modality} is {reprlib.repr(value)}; expected a string.")
    _check_unicode(value, modality)
    return folder / value if modality == "image" else value


def label_in_cell(value: Any, classes: Collection[Label]) -> Label:
    """Return the label in a cell, as `as_label` reads it."""
    text = str(raw_label(value))
    _check_unicode(text, "label")
    check_name(text.strip())
    return as_label(text, classes)


def raw_label(value: Any) -> Any:
    """Return the label in a cell as it is; raise if it is neither a string nor an integer."""
    if value is None:
        check_name("")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise KldaError(f"the label is {reprlib.repr(value)}; expected a string or an integer.")
    return value


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


def _check_unicode(text: str, what: str) -> None:
    """Refuse half of a surrogate pair, which JSON can contain but nothing can save or encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise KldaError(
            f"the {what} is not valid Unicode: {text[error.start]!r} at character "
            f"{error.start + 1}. Repair it or leave the row out."
        ) from error
