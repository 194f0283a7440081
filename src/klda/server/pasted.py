"""Rows out of text that someone pasted or dropped: CSV, TSV or semicolons, with a header or not."""

from __future__ import annotations

import csv
import io

from klda.server.errors import ServiceError
from klda.server.settings import MAX_LABEL_LENGTH, MAX_TEXT_LENGTH
from klda.tables import LABEL_COLUMNS, TEXT_COLUMNS

MOST_ROWS = 100_000


def read_rows(content: str) -> tuple[list[str], list[str]]:
    """Read texts and labels.

    Parameters
    ----------
    content : str
        With a header that names a text and a label column, or without: text, then label.

    Returns
    -------
    texts, labels : list of str
        As many of one as of the other; empty lines are left out.

    Raises
    ------
    ServiceError
        If it can't be read; the message names the line.
    """
    text = content.removeprefix("\ufeff")
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text)))
    except csv.Error as error:
        raise ServiceError(f"This is not a table that can be read: {error}.") from error
    numbered = [(i, [cell.strip() for cell in cells]) for i, cells in enumerate(lines, 1)]
    numbered = [(i, cells) for i, cells in numbered if any(cells)]
    if not numbered:
        raise ServiceError("There is nothing in it: give lines with a text and a label.")
    text_at, label_at, has_header = _columns(numbered[0][1])
    rows = numbered[1:] if has_header else numbered
    if not rows:
        raise ServiceError("There is a header but no row.")
    if len(rows) > MOST_ROWS:
        raise ServiceError(f"There are {len(rows)} rows; give at most {MOST_ROWS} at a time.")
    texts, labels = [], []
    for number, cells in rows:
        value, label = _cell(cells, text_at), _cell(cells, label_at)
        _check_row(number, value, label)
        texts.append(value)
        labels.append(label)
    return texts, labels


def _delimiter(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return max("\t;,", key=first.count) if any(c in first for c in "\t;,") else ","


def _columns(first: list[str]) -> tuple[int, int, bool]:
    names = [cell.casefold() for cell in first]
    text = next((names.index(name) for name in TEXT_COLUMNS if name in names), None)
    label = next((names.index(name) for name in LABEL_COLUMNS if name in names), None)
    if text is not None and label is not None:
        return text, label, True
    if len(first) != 2:
        raise ServiceError(
            f"The first line has {len(first)} columns: give a text and a label on each line, or a "
            "first line that names the columns text and label."
        )
    return 0, 1, False


def _cell(cells: list[str], at: int) -> str:
    return cells[at] if at < len(cells) else ""


def _check_row(number: int, text: str, label: str) -> None:
    if not text or not label:
        raise ServiceError(f"Line {number} has no {'label' if text else 'text'}.")
    if len(text) > MAX_TEXT_LENGTH:
        raise ServiceError(f"Line {number}: the text is longer than {MAX_TEXT_LENGTH} characters.")
    if len(label) > MAX_LABEL_LENGTH or not label.isprintable():
        raise ServiceError(
            f"Line {number}: a label is one line of at most {MAX_LABEL_LENGTH} characters."
        )
