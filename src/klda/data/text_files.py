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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO
from zlib import error as zlib_error

from klda.data.batch import BATCH_ROWS, Batch, TableError
from klda.data.columns import GUESSED, LABEL_COLUMNS, TEXT_COLUMNS, choose_columns, guess_column

if TYPE_CHECKING:
    from klda.data.table import Table

LONGEST_FIELD = 1 << 24  # characters in a field; Python's own limit is 131,072
DELIMITERS = {"\t": "tab", ";": "semicolon", ",": "comma"}
WITHOUT_HEADER = ["text", "label"]
Record = tuple[int, Mapping[str, Any]]  # the line it begins on, and the cell in each column


class TextFile:
    """The decoded lines of a table, and how much of it has been read."""

    def __init__(self, table: Table) -> None:
        self.table = table
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
        """How much of the file has been read, between 0 and 1."""
        return min(1.0, self._raw.tell() / max(self._size, 1))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        return decoded(self._lines(), str(self.table.path))

    def _lines(self) -> Iterator[bytes]:
        done = 0
        try:
            for line in self._file:
                yield line
                done += 1
        except (EOFError, gzip.BadGzipFile, zlib_error) as error:
            raise TableError(
                f"{self.table.path}, after line {done}: the gzip file is damaged or cut short "
                f"({error})."
            ) from error


def decoded(lines: Iterable[bytes], name: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers, from 1; a lone carriage return ends a line, too."""
    parts = (part for line in lines for part in line.splitlines(keepends=True))
    for number, raw in enumerate(parts, 1):
        if number == 1:
            if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise TableError(f"{name} is UTF-16: save it as UTF-8.")
            if raw.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
                raise TableError(f"{name} is an Excel workbook or an archive: save it as CSV.")
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            yield number, raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TableError(
                f"{name}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at position "
                f"{error.start + 1}). Save it as UTF-8."
            ) from error


def read_records(
    file: TextFile, names: list[str], records: Iterator[Record], labels: bool, rows: int
) -> Iterator[Batch]:
    """Read the input and the label column, of those that are named, from records of cells."""
    inputs, label = choose_columns(file.table, names, labels)
    while part := list(itertools.islice(records, rows)):
        lines, cells = zip(*part, strict=True)
        fraction = file.fraction if len(part) == rows else 1.0
        found = None if label is None else [values.get(label) for values in cells]
        yield Batch([values.get(inputs) for values in cells], found, fraction, lines=lines)


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
        except (json.JSONDecodeError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
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


def read_lines(lines: Iterable[bytes], name: str, *, rows: int | None = None) -> Iterator[Batch]:
    """Read texts from a stream that errors call `name`, one per line; empty lines are skipped."""
    texts = (text.rstrip("\r\n") for _, text in decoded(lines, name) if text.strip())
    while batch := list(itertools.islice(texts, rows or BATCH_ROWS["text"])):
        yield Batch(batch, None)


def read_delimited(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the rows of a CSV or TSV file."""
    with TextFile(table) as file:
        lines = _rows(file)
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
