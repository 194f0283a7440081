"""Which columns of a table hold the input and the label, and what may stand in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from klda.labels import MAX_LABEL_LENGTH
from klda.tables.chunk import TableError

if TYPE_CHECKING:
    from klda.tables.table import Table

TEXT_COLUMNS = (
    *("text", "texts", "sentence", "utterance", "query", "question", "message", "content"),
    *("body", "input", "phrase", "document"),
)
IMAGE_COLUMNS = ("image", "path", "file", "filename", "image_path", "file_name")
FEATURE_COLUMNS = ("features", "feature", "embedding", "embeddings", "vector", "x")
LABEL_COLUMNS = ("label", "labels", "intent", "category", "class", "target", "topic", "tag", "y")
INPUT_COLUMNS: dict[str, tuple[str, ...]] = {  # by modality
    "text": TEXT_COLUMNS,
    "image": IMAGE_COLUMNS,
    "features": FEATURE_COLUMNS,
}


class Chosen(NamedTuple):
    """The columns that are read."""

    input: str
    label: str | None


def choose_columns(table: Table, names: Sequence[str], need_labels: bool) -> Chosen:
    """Pick the input and label columns: as asked for, else by their names."""
    guesses = INPUT_COLUMNS[table.modality]
    inputs = find_column(table, names, table.columns.input, guesses)
    label = find_column(table, names, table.columns.label, LABEL_COLUMNS)
    # In a table of two columns, knowing one tells the other.
    if len(names) == 2 and (inputs is None) != (label is None):
        other = next(name for name in names if name not in (inputs, label))
        inputs, label = inputs or other, label or other
    if inputs is None and len(names) == 1 and not need_labels:
        inputs = names[0]
    if inputs is None:
        raise no_column(table, names, table.modality, "--input-column", guesses)
    if label is None and need_labels:
        raise no_column(table, names, "label", "--label-column", LABEL_COLUMNS)
    if inputs == label:
        if need_labels:
            raise TableError(
                f"{table.path}: the column {label!r} can't hold both the {table.modality} and the "
                f"label; its columns are: {', '.join(names)}. Name both with --input-column and "
                "--label-column."
            )
        label = None
    return Chosen(inputs, label)


def find_column(
    table: Table, names: Sequence[str], asked: str | None, guesses: Sequence[str]
) -> str | None:
    """Return the column asked for, else the first that has one of some names, else None."""
    if asked in names:
        return asked
    lower = {name.lower(): name for name in reversed(names)}
    if asked is not None:
        if asked.lower() not in lower:
            raise TableError(
                f"{table.path} has no column {asked!r}; its columns are: {', '.join(names)}."
            )
        return lower[asked.lower()]
    return next((lower[guess] for guess in guesses if guess in lower), None)


def no_column(
    table: Table, names: Sequence[str], what: str, option: str, guesses: Sequence[str]
) -> TableError:
    """Return the error of a table in which a column can't be told."""
    return TableError(
        f"{table.path}: can't tell which column holds the {what}; its columns are: "
        f"{', '.join(names)}. Name it with {option} (guessed are: {', '.join(guesses)})."
    )


def input_of(value: Any, table: Table, place: str) -> str | Path:
    """Return an input of a table, checked; an image's path is relative to the table."""
    if value is None or (isinstance(value, str) and not value.strip()):
        raise TableError(f"{table.path}, {place}: the {table.modality} is empty.")
    if not isinstance(value, str):
        raise TableError(
            f"{table.path}, {place}: the {table.modality} is {value!r}; expected a string."
        )
    _check_unicode(value, table, place, table.modality)
    if table.modality == "image":
        return table.path.parent / value
    return value


def label_of(value: Any, table: Table, place: str) -> str:
    """Return a label of a table, checked, without blanks around it."""
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer | None):
        raise TableError(
            f"{table.path}, {place}: the label is {value!r}; expected a string or an integer."
        )
    label = "" if value is None else str(value).strip()
    if not label:
        raise TableError(f"{table.path}, {place}: the label is empty.")
    _check_unicode(label, table, place, "label")
    if len(label) > MAX_LABEL_LENGTH:
        raise TableError(
            f"{table.path}, {place}: the label has {len(label):,} characters; give labels of "
            f"at most {MAX_LABEL_LENGTH} characters."
        )
    return label


def _check_unicode(text: str, table: Table, place: str, what: str) -> None:
    """Refuse half a surrogate pair, which JSON can write and nothing can save or encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TableError(
            f"{table.path}, {place}: the {what} is not valid Unicode: {text[error.start]!r} at "
            f"character {error.start + 1}. Repair it or leave the row out."
        ) from error
