"""Rows out of text that someone pasted or dropped: CSV, TSV or semicolons, with a header or not."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from klda.server import class_names
from klda.server.errors import ServiceError
from klda.server.settings import MAX_TEXT_LENGTH
from klda.tables import LABEL_COLUMNS, TEXT_COLUMNS

MOST_ROWS = 100_000
_CONTROL = "".join(map(chr, range(0x21)))
_DELIMITERS = {"\t": "tab", ";": "semicolon", ",": "comma"}


@dataclass(frozen=True)
class Table:
    """Texts and their classes.

    Attributes
    ----------
    texts, labels : list of str
        As many of one as of the other.
    has_header : bool
        Whether the first line named the columns; otherwise it is the first row.
    """

    texts: list[str]
    labels: list[str]
    has_header: bool

    def without_first(self) -> Table:
        """Return the table without its first row, which was a header after all."""
        if len(self.texts) < 2:
            raise ServiceError("There is a header but no row.")
        return replace(self, texts=self.texts[1:], labels=self.labels[1:], has_header=True)


def read_rows(content: str, known: Collection[Any] = ()) -> Table:
    """Read texts and labels.

    Parameters
    ----------
    content : str
        With a header that names a text and a label column, or without: text, then label.
    known : collection of label
        Labels that are taken exactly; from others, blanks around them are left out.

    Returns
    -------
    Table
        Without empty lines.

    Raises
    ------
    ServiceError
        If it can't be read, or a row has more or fewer columns than the first; the message names
        the line.
    """
    text = content.removeprefix("\ufeff")
    delimiter = _delimiter(text)
    lines = [(i, cells) for i, cells in _lines(text, delimiter) if any(map(str.strip, cells))]
    if not lines:
        raise ServiceError("There is nothing in it: give lines with a text and a label.")
    width = len(lines[0][1])
    text_at, label_at, has_header = _columns(lines[0][1], delimiter)
    rows = lines[1:] if has_header else lines
    if not rows:
        raise ServiceError("There is a header but no row.")
    if len(rows) > MOST_ROWS:
        raise ServiceError(f"There are {len(rows)} rows; give at most {MOST_ROWS} at a time.")
    texts, labels = [], []
    for number, cells in rows:
        _check_width(number, cells, width, delimiter)
        texts.append(_text(number, cells[text_at]))
        labels.append(_label(number, cells[label_at], known))
    return Table(texts, labels, has_header)


def _lines(text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield rows and the number of the line that each begins on."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    number = 1
    try:
        for cells in reader:
            yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise ServiceError(
            f"Line {number} can't be read: {error}. Where a text begins with quotes, write them "
            'twice and put quotes around the text: """Hello"" she said",greeting.'
        ) from error


def _delimiter(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    outside = re.sub(r'"[^"]*"', "", first)
    found = max(_DELIMITERS, key=outside.count)
    return found if found in outside else ","


def _columns(first: list[str], delimiter: str) -> tuple[int, int, bool]:
    headings = [cell.strip().casefold() for cell in first]
    text = next((headings.index(name) for name in TEXT_COLUMNS if name in headings), None)
    label = next((headings.index(name) for name in LABEL_COLUMNS if name in headings), None)
    if text is not None and label is not None:
        return text, label, True
    if len(first) != 2:
        raise ServiceError(
            f"The first line has {_columns_of(first)}: give a text and a label on each line, or a "
            f"first line that names the columns text and label. {_quote(delimiter)}"
        )
    return 0, 1, False


def _check_width(number: int, cells: list[str], width: int, delimiter: str) -> None:
    if len(cells) != width:
        raise ServiceError(
            f"Line {number} has {_columns_of(cells)}, the first line has {width}. "
            f"{_quote(delimiter)}"
        )


def _columns_of(cells: list[str]) -> str:
    return f"{len(cells)} column{'' if len(cells) == 1 else 's'}"


def _quote(delimiter: str) -> str:
    return (
        f"Put quotes around a text with a {_DELIMITERS[delimiter]} in it: "
        f'"Hello{delimiter} you"{delimiter}greeting.'
    )


def _text(number: int, cell: str) -> str:
    text = cell.strip()
    if not text.strip(_CONTROL):
        raise ServiceError(f"Line {number} has no text.")
    if len(text) > MAX_TEXT_LENGTH:
        raise ServiceError(f"Line {number}: the text is longer than {MAX_TEXT_LENGTH} characters.")
    return text


def _label(number: int, cell: str, known: Collection[Any]) -> str:
    if cell in known:
        return cell
    label = cell.strip()
    if not label:
        raise ServiceError(f"Line {number} has no label.")
    try:
        return class_names.checked(label)
    except ServiceError as error:
        raise ServiceError(f"Line {number}: {error}") from error
