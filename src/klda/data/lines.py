"""Text files, plain or gzipped: lines decoded and counted; JSONL, and one text per line."""

from __future__ import annotations

import gzip
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO
from zlib import error as zlib_error

from klda.data.batch import BATCH_ROWS, Batch, RawBatch, TableError
from klda.data.columns import choose_columns

if TYPE_CHECKING:
    from klda.data.table import Table

# The number of a line, and what is in the input and the label column there.
Cells = tuple[int, Any, Any]


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


def batched(
    rows: Iterator[Cells], file: TextFile, has_labels: bool, size: int, skip: int
) -> Iterator[RawBatch]:
    """Put rows into batches."""
    wanted = itertools.islice(rows, skip, None)
    while part := list(itertools.islice(wanted, size)):
        lines, inputs, labels = zip(*part, strict=True)
        fraction = file.fraction if len(part) == size else 1.0
        yield RawBatch(list(inputs), labels if has_labels else None, fraction, lines)


def read_jsonl(table: Table, labels: bool, rows: int, skip: int) -> Iterator[RawBatch]:
    """Read the rows of a JSONL file."""
    with TextFile(table) as file:
        parsed = _objects(file)
        first = next(parsed, None)
        if first is None:
            return
        inputs, label = choose_columns(table, list(first[1]), labels)
        cells = (
            (line, values.get(inputs), None if label is None else values.get(label))
            for line, values in itertools.chain([first], parsed)
        )
        yield from batched(cells, file, label is not None, rows, skip)


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


def read_text(table: Table, labels: bool, rows: int, skip: int) -> Iterator[RawBatch]:
    """Read a file of texts, one per line."""
    if labels:
        raise TableError(
            f"{table.path}: a .txt file has no labels. Give a CSV, TSV or JSONL file with a column "
            "of texts and a column of labels."
        )
    with TextFile(table) as file:
        cells = ((line, text.rstrip("\r\n"), None) for line, text in file if text.strip())
        yield from batched(cells, file, False, rows, skip)


def read_lines(lines: Iterable[bytes], name: str, *, rows: int | None = None) -> Iterator[Batch]:
    """Read texts from a stream that errors call `name`, one per line; empty lines are skipped."""
    texts = (text.rstrip("\r\n") for _, text in decoded(lines, name) if text.strip())
    while batch := list(itertools.islice(texts, rows or BATCH_ROWS["text"])):
        yield Batch(batch, None)
