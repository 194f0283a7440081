"""Text files, plain or gzipped: CSV and TSV, also from the clipboard, JSONL, one text per line.

What spreadsheets and other programs export is understood here and nowhere else: delimiter, header,
quotes, encoding.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, BinaryIO

from klda.data.batch import BATCH_BYTES, BATCH_ROWS, Batch, TableError, damage_named, gathered
from klda.data.columns import GUESSED, LABEL_COLUMNS, TEXT_COLUMNS, guess_column
from klda.data.table import Table

# Bytes of a line, and characters of a row, which may have several lines: no text needs more, and a
# compressed file of a few kilobytes may hold a line that fills the memory.
LONGEST_ROW = 1 << 24
DELIMITERS = {"\t": "tab", ";": "semicolon", ",": "comma"}
WITHOUT_HEADER = ["text", "label"]
Record = tuple[int, Mapping[str, Any]]  # the line it begins on, and the cell in each column


class TextFile:
    """The decoded lines of a table, and how much of it has been read."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.characters = 0  # of the lines that have been read
        if table.content is not None:
            self._raw: BinaryIO = io.BytesIO(table.content)
            self._size = len(table.content)
        else:
            self._raw = table.path.open("rb")
            self._size = table.path.stat().st_size
        compressed = table.content is None and table.path.suffix.lower() == ".gz"
        self._file: Any = gzip.GzipFile(fileobj=self._raw) if compressed else self._raw

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._raw.close()

    @property
    def fraction(self) -> float:
        """How much of the file has been read, between 0 and 1; 1 for a pipe, which has no size."""
        return min(1.0, self._raw.tell() / max(self._size, 1)) if self._raw.seekable() else 1.0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        for number, text in decoded(self._file, str(self.table.path)):
            self.characters += len(text)
            yield number, text


def decoded(file: BinaryIO, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, which errors call `name`, with their numbers, from 1."""
    number = 0
    with damage_named(lambda: f"{name}, after line {number}"):
        for raw in _lines(file):
            number += 1
            if len(raw) >= LONGEST_ROW:
                raise TableError(f"{name}, line {number}: {_too_long('line', 'bytes')}")
            yield number, _text(raw, number, name)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines; a lone carriage return ends one, too, and so does the length of the longest."""
    rest = b""
    while raw := file.readline(LONGEST_ROW):
        lines = (rest + raw).splitlines(keepends=True)
        is_whole = raw.endswith(b"\n") or len(lines[-1]) >= LONGEST_ROW
        rest = b"" if is_whole else lines.pop()
        yield from lines
    if rest:
        yield rest


def _text(raw: bytes, number: int, name: str) -> str:
    if number == 1:
        if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise TableError(f"{name} is UTF-16: save it as UTF-8.")
        if raw.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
            raise TableError(f"{name} is an Excel workbook or an archive: save it as CSV.")
        raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TableError(
            f"{name}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at position "
            f"{error.start + 1}). Save it as UTF-8."
        ) from error


def _too_long(what: str, unit: str) -> str:
    return (
        f"the {what} has more than {LONGEST_ROW:,} {unit}. Shorten its text, or close the quote "
        "that opens it."
    )


def read_records(
    file: TextFile, names: list[str], records: Iterable[Record], labels: bool, rows: int
) -> Iterator[Batch]:
    """Read the input and the label column, of those that are named, from records of cells."""
    inputs, label = file.table.choose_columns(names, labels)

    def sized() -> Iterator[tuple[tuple[int, Any, Any], int]]:
        before = file.characters
        for line, cells in records:
            yield (line, _cell(cells, inputs), _cell(cells, label)), file.characters - before
            before = file.characters

    # What was pasted is in memory already: its size is no reason to divide it.
    most = BATCH_BYTES if file.table.content is None else sys.maxsize
    for part in gathered(sized(), rows, most):
        lines, values, found = zip(*part, strict=True)
        given = None if label is None else list(found)
        yield Batch(list(values), given, file.fraction, lines=lines)


def _cell(cells: Mapping[str, Any], name: str | None) -> Any:
    """Return what is in a column; of a list or an object, which no row may have, only its type."""
    value = None if name is None else cells.get(name)
    return type(value) if isinstance(value, list | dict) else value


def read_jsonl(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the rows of a JSONL file."""
    with TextFile(table) as file:
        objects = _objects(file)
        for line, first in itertools.islice(objects, 1):
            records = itertools.chain([(line, first)], objects)
            yield from read_records(file, list(first), records, labels, rows)


def _objects(file: TextFile) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, text in file:
        if not text.strip():
            continue
        where = f"{file.table.path}, line {line}"
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # also a number of 5,000 digits
            reason = "nested too deeply" if isinstance(error, RecursionError) else error
            raise TableError(f"{where}: broken row: not JSON ({reason}).") from error
        if not isinstance(values, dict):
            raise TableError(
                f"{where}: broken row: expected one JSON object per line, such as "
                '{"text": "...", "label": "..."}.'
            )
        yield line, values


def read_text(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read a file of texts, one per line."""
    if labels:
        raise TableError(
            f"{table.path}: a .txt file has no labels. Give a CSV, TSV or JSONL file with a column "
            "of texts and a column of labels."
        )
    # There are no columns to choose from, whatever the other files have.
    with TextFile(replace(table, columns=GUESSED)) as file:
        texts = ((line, {"text": text.rstrip("\r\n")}) for line, text in file if text.strip())
        yield from read_records(file, ["text"], texts, labels, rows)


def read_lines(file: BinaryIO, name: str, *, rows: int | None = None) -> Iterator[Batch]:
    """Read texts from a stream that errors call `name`, one per line; empty lines are skipped."""
    texts = (text.rstrip("\r\n") for _, text in decoded(file, name) if text.strip())
    while batch := list(itertools.islice(texts, rows or BATCH_ROWS["text"])):
        yield Batch(batch, None)


def read_delimited(
    table: Table, labels: bool, rows: int, delimiter: str | None = None
) -> Iterator[Batch]:
    """Read the rows of a CSV or TSV file; the first line shows the delimiter if none is given."""
    with TextFile(table) as file:
        lines = _rows(file, delimiter)
        names = _header(table, next(lines, None)) if table.header else WITHOUT_HEADER
        records = ((line, dict(zip(names, cells, strict=True))) for line, cells in lines)
        yield from read_records(file, names, records, labels, rows)


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


def _rows(file: TextFile, delimiter: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield rows, each with the number of the line it begins on; blank rows are skipped."""
    if csv.field_size_limit() < LONGEST_ROW:  # Python's own limit is 131,072
        csv.field_size_limit(LONGEST_ROW)  # holds for the whole process: never lowered
    numbered = iter(file)
    first = next(((number, text) for number, text in numbered if text.strip()), (1, ""))
    delimiter = delimiter or _delimiter(first[1])
    line = last = first[0]  # where the row begins, and where reading is
    before = file.characters - len(first[1])  # characters read before the row

    def lines() -> Iterator[str]:
        nonlocal last
        for number, text in itertools.chain([first], numbered):
            if file.characters - before > LONGEST_ROW:
                where = f"{file.table.path}, line {line}"
                raise TableError(f"{where}: {_too_long('row', 'characters')}")
            last = number
            yield text

    reader = csv.reader(lines(), delimiter=delimiter, strict=True)
    width = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TableError(f"{file.table.path}, line {line}: {_broken(str(error))}") from error
        if any(map(str.strip, cells)):
            width = width or len(cells)
            if len(cells) != width:
                raise TableError(
                    f"{file.table.path}, line {line}: broken row: it has {_columns(cells)}, but "
                    f"the first line has {width}. If a text contains a {DELIMITERS[delimiter]}, "
                    f'put it in quotes: "Hello{delimiter} you"{delimiter}greeting.'
                )
            yield line, cells
        line, before = last + 1, file.characters


def _delimiter(first: str) -> str:
    """Return what separates the columns: spreadsheets write semicolons in many countries."""
    unquoted = re.sub(r'"[^"]*"', "", first)
    found = max(DELIMITERS, key=unquoted.count)
    return found if found in unquoted else ","


def _broken(reason: str) -> str:
    hint = " (an opening quote that is never closed?)" if "end of data" in reason else ""
    return (
        f"broken row: {reason}{hint}. If a text begins with a quote, double its quotes and put it "
        'in quotes: """Hello"" she said",greeting.'
    )


def _columns(cells: list[str]) -> str:
    return f"{len(cells)} column{'' if len(cells) == 1 else 's'}"
