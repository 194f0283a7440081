"""CSV and TSV, from files and from the clipboard: delimiter, header, quotes.

What spreadsheets and other programs export is understood here and nowhere else.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from klda.data.batch import RawBatch, TableError
from klda.data.columns import LABEL_COLUMNS, TEXT_COLUMNS, choose_columns, guess_column
from klda.data.lines import TextFile, batched

if TYPE_CHECKING:
    from klda.data.table import Table

LONGEST_FIELD = 1 << 24  # characters in a field; Python's own limit is 131,072
DELIMITERS = {"\t": "tab", ";": "semicolon", ",": "comma"}
WITHOUT_HEADER = ["text", "label"]


def read_delimited(table: Table, labels: bool, rows: int, skip: int) -> Iterator[RawBatch]:
    """Read the rows of a CSV or TSV file."""
    with TextFile(table) as file:
        lines = _rows(file)
        names = _header(table, next(lines, None)) if table.header else WITHOUT_HEADER
        inputs, label = choose_columns(table, names, labels)
        i, j = names.index(inputs), -1 if label is None else names.index(label)
        cells = ((line, values[i], values[j]) for line, values in lines)
        yield from batched(cells, file, label is not None, rows, skip)


def find_header(table: Table) -> bool:
    """Tell whether the first line of a table names its columns, or is a text and its label."""
    with TextFile(table) as file:
        _, first = next(_rows(file), (1, []))
    if not first:
        raise TableError(
            f"{table.path}: there is nothing in it. Give lines with a text and a label."
        )
    # Both names, as a label may happen to be called "topic" or "y".
    if guess_column(first, TEXT_COLUMNS) and guess_column(first, LABEL_COLUMNS):
        return True
    if len(first) != len(WITHOUT_HEADER):
        raise TableError(
            f"{table.path}: the first line has {_columns(first)}. Give a text and a label on each "
            "line, or a first line that names the columns text and label. If a text contains the "
            'delimiter, put it in quotes: "Hello, you",greeting.'
        )
    return False


def _header(table: Table, first: tuple[int, list[str]] | None) -> list[str]:
    if first is None:
        raise TableError(f"{table.path} is empty: it has no header and no rows.")
    names = [name.strip() for name in first[1]]
    if len(set(names)) != len(names):
        raise TableError(f"{table.path}, line {first[0]}: a column name occurs twice: {names}.")
    return names


def _rows(file: TextFile) -> Iterator[tuple[int, list[str]]]:
    """Yield rows, each with the number of the line it begins on; blank rows are skipped."""
    if csv.field_size_limit() < LONGEST_FIELD:
        csv.field_size_limit(LONGEST_FIELD)  # holds for the whole process: never lowered
    lines = (text for _, text in file)
    head: list[str] = []
    for text in lines:
        head.append(text)
        if text.strip():
            break
    delimiter = "\t" if file.table.kind == ".tsv" else _delimiter(head[-1] if head else "")
    reader = csv.reader(itertools.chain(head, lines), delimiter=delimiter, strict=True)
    width = 0
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TableError(f"{file.table.path}, line {line}: {_broken(str(error))}") from error
        if not any(map(str.strip, cells)):
            continue
        width = width or len(cells)
        if len(cells) != width:
            raise TableError(
                f"{file.table.path}, line {line}: broken row: it has {_columns(cells)}, but the "
                f"first line has {width}. If a text contains a {DELIMITERS[delimiter]}, put it in "
                f'quotes: "Hello{delimiter} you"{delimiter}greeting.'
            )
        yield line, cells


def _delimiter(first: str) -> str:
    """Return what separates the columns: spreadsheets write semicolons in many countries."""
    unquoted = re.sub(r'"[^"]*"', "", first)
    found = max(DELIMITERS, key=unquoted.count)
    return found if found in unquoted else ","


def _broken(reason: str) -> str:
    if "field limit" in reason:
        return (
            f"a field is longer than {csv.field_size_limit():,} characters. Close the quote that "
            "opens it, or shorten the text."
        )
    hint = " (an opening quote that is never closed?)" if "end of data" in reason else ""
    return (
        f"broken row: {reason}{hint}. If a text begins with a quote, double its quotes and put it "
        'in quotes: """Hello"" she said",greeting.'
    )


def _columns(cells: list[str]) -> str:
    return f"{len(cells)} column{'' if len(cells) == 1 else 's'}"
