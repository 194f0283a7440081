"""CSV and TSV, as spreadsheets and other programs write them."""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from klda.data.batch import Contents, Layout
from klda.data.chunks import first_of
from klda.data.columns import INPUTS, count_titles, guess
from klda.data.damage import TableError
from klda.data.lines import LONGEST_ROW, TextFile, too_long
from klda.data.records import Row, contents_of_cells

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
_OR = "comma, semicolon, tab or vertical bar"
Line = tuple[int, str]


def read_delimited(file: TextFile, layout: Layout, delimiter: str | None = None) -> Contents:
    """Read a table whose cells a delimiter separates; the first lines show which."""
    if csv.field_size_limit() < LONGEST_ROW:  # Python's own limit is 131,072
        csv.field_size_limit(LONGEST_ROW)  # holds for the whole process: never lowered
    lines = iter(file)
    head = first_of(lines, lambda line: len(line[1]))
    while head and not head[0][1].strip():
        del head[0]
    if head and (found := head[0][1].strip()).startswith("sep=") and len(found) == 5:
        delimiter = found[-1]  # as Excel writes it
        del head[0]
    delimiter = delimiter or find_delimiter([line for _, line in head])
    start = "".join(line for _, line in head)
    style: dict[str, Any] = {"delimiter": delimiter, "skipinitialspace": f'{delimiter} "' in start}
    if '\\"' in start and '""' not in start:  # as databases write quotes in quotes
        style |= {"escapechar": "\\", "doublequote": False}
    elif start.count(f"'{delimiter}'") >= len(head) / 2:
        style["quotechar"] = "'"
    elif delimiter == "\t" and _quotes_are_text([line for _, line in head]):
        style["quoting"] = csv.QUOTE_NONE
    hint = (
        f" If a text contains a {DELIMITERS.get(delimiter, delimiter)}, put it in quotes: "
        f'"Hello{delimiter} you"{delimiter}greeting.'
    )
    rows = _rows(itertools.chain(head, lines), style, file.name)
    contents = contents_of_cells(rows, layout, file.name, lambda: file.fraction, hint)
    return replace(contents, labels_hint=f"Add a column of labels, after a {_OR}.")


def find_delimiter(lines: Sequence[str]) -> str:
    """Return what divides most lines into as many cells as the first, or as the one below it."""

    def score(delimiter: str) -> tuple[bool, float, int]:
        rows = _divided(lines, delimiter)
        widths = Counter(map(len, rows[count_titles(rows) :]))
        usual, count = max(widths.items(), key=lambda item: item[1], default=(1, 1))
        first = next(iter(widths), 1)
        # Where rows end with a delimiter, a header without it has one cell less.
        alike = usual > 1 and (first == usual or 1 < first == usual - 1)
        return alike, count / max(1, widths.total()), usual

    return max(DELIMITERS, key=score)


def _divided(lines: Iterable[str], delimiter: str) -> list[list[str]]:
    rows: list[list[str]] = []
    with contextlib.suppress(csv.Error):
        rows.extend(cells for cells in csv.reader(lines, delimiter=delimiter) if any(cells))
    return rows


def _quotes_are_text(lines: Sequence[str]) -> bool:
    """Whether quotes between tabs are characters like others: read as quotes, they break rows."""
    rows = [line.strip("\r\n").split("\t") for line in lines if line.strip()]
    if len(set(map(len, rows))) != 1:
        return False
    in_quotes = sum(cell[:1] == cell[-1:] == '"' for row in rows for cell in row)
    try:
        list(csv.reader(lines, delimiter="\t", strict=True))
    except csv.Error:
        return in_quotes < len(rows) / 2
    return False


def looks_delimited(lines: Sequence[str]) -> bool:
    """Whether lines are a table: tabs divide all alike, or the first names a column of texts."""
    widths = set(map(len, _divided(lines, "\t")))
    if len(widths) == 1 and widths != {1}:
        return True
    names = next(csv.reader(lines, delimiter=find_delimiter(lines)), [])
    return len(names) > 1 and guess(names, INPUTS["text"]) is not None


def _rows(lines: Iterable[Line], style: dict[str, Any], where: str) -> Iterator[Row]:
    """Yield rows that are not blank."""
    begin = size = 0  # the line where the row begins, and the characters read of it

    def texts() -> Iterator[str]:
        nonlocal begin, size
        for number, text in lines:
            begin = number if size == 0 else begin
            size += len(text)
            if size > LONGEST_ROW:
                raise TableError(f"{where}, line {begin}: {too_long('row')}")
            yield text

    reader = csv.reader(texts(), strict=True, **style)
    while True:
        size = 0
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield Row(begin, _broken(str(error)), size)
            continue
        if any(map(str.strip, cells)):
            yield Row(begin, cells, size)


def _broken(reason: str) -> str:
    hint = " (an opening quote that is never closed?)" if "end of data" in reason else ""
    return (
        f"broken row: {reason}{hint}. If a text begins with a quote, double its quotes and put it "
        'in quotes: """Hello"" she said",greeting.'
    )
