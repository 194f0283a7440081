"""Text files, plain or gzipped: CSV, TSV, JSONL, and one text a line."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple
from zlib import error as zlib_error

from klda.tables.chunk import CHUNK_ROWS, Chunk, TableError
from klda.tables.columns import Chosen, choose_columns, input_of, label_of
from klda.tables.files import kind_of

if TYPE_CHECKING:
    from klda.tables.table import Table

LONGEST_FIELD = 1 << 24  # characters in a field of a CSV file; Python's own limit is 131,072


class _Row(NamedTuple):
    line: int
    values: dict[str, Any]


class _Source:
    """The lines of a text file, plain or gzipped, decoded one by one and counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 0
        self._size = max(path.stat().st_size, 1)
        self._raw = path.open("rb")
        compressed = path.suffix.lower() == ".gz"
        self._file: BinaryIO = (
            gzip.GzipFile(fileobj=self._raw) if compressed else self._raw  # type: ignore[assignment]
        )

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        self._raw.close()

    @property
    def fraction(self) -> float:
        return min(1.0, self._raw.tell() / self._size)

    def __iter__(self) -> Iterator[str]:
        lines = iter(self._file)
        while True:
            try:
                raw = next(lines)
            except StopIteration:
                return
            except (EOFError, gzip.BadGzipFile, zlib_error) as error:
                raise TableError(
                    f"{self.path}, after line {self.line}: the gzip file is damaged or cut short "
                    f"({error})."
                ) from error
            self.line += 1
            yield self._decode(raw)

    def _decode(self, raw: bytes) -> str:
        if self.line == 1:
            if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise TableError(f"{self.path} is UTF-16: save it as UTF-8.")
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise TableError(
                f"{self.path}, line {self.line}: not UTF-8 (byte 0x{raw[error.start]:02x} at "
                f"position {error.start + 1}). Save the file as UTF-8."
            ) from error


def read_delimited(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    """Read the rows of a CSV or TSV file."""
    if csv.field_size_limit() < LONGEST_FIELD:
        csv.field_size_limit(LONGEST_FIELD)  # holds for the whole process: never lowered
    with _Source(table.path) as source:
        lines = iter(source)
        first = next((line for line in lines if line.strip()), "")
        blank = ["\n"] * (source.line - 1)  # so that the reader counts lines as the file does
        delimiter = "\t" if kind_of(table.path) == ".tsv" else _delimiter(first)
        text = itertools.chain(blank, [first], lines)
        reader = csv.reader(text, delimiter=delimiter, strict=True)
        header = next(filter(None, _checked_rows(reader, table.path)), None)
        if not header:
            raise TableError(f"{table.path} is empty: it has no header and no rows.")
        names = [name.strip() for name in header]
        if len(set(names)) != len(names):
            raise TableError(
                f"{table.path}, line {len(blank) + 1}: a column name occurs twice: {names}."
            )
        chosen = choose_columns(table, names, labels)
        parsed = itertools.islice(_dict_rows(reader, table.path, names), skip, None)
        yield from _group(parsed, table, chosen, source, rows)


def _delimiter(header: str) -> str:
    """Return the separator of a .csv file: spreadsheets write semicolons in many countries."""
    return ";" if ";" in header and "," not in header else ","


def _checked_rows(reader: Any, path: Path) -> Iterator[list[str]]:
    while True:
        start = reader.line_num + 1
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise TableError(f"{path}, line {start}: {_broken(str(error))}") from error


def _broken(reason: str) -> str:
    if "field limit" in reason:
        return (
            f"a field is longer than {csv.field_size_limit():,} characters. Close the quote that "
            "opens it, or shorten the text."
        )
    hint = " (an opening quote that is never closed?)" if "end of data" in reason else ""
    return f"broken row: {reason}{hint}."


def _dict_rows(reader: Any, path: Path, names: list[str]) -> Iterator[_Row]:
    start = reader.line_num + 1
    for values in _checked_rows(reader, path):
        line, start = start, reader.line_num + 1
        if not values:
            continue
        if len(values) != len(names):
            raise TableError(
                f"{path}, line {line}: broken row: {len(values)} fields where the header has "
                f"{len(names)}. Quote fields that contain the separator."
            )
        yield _Row(line, dict(zip(names, values, strict=True)))


def read_jsonl(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    """Read the rows of a JSONL file."""
    with _Source(table.path) as source:
        parsed = _json_rows(source)
        first = next(parsed, None)
        if first is None:
            return
        chosen = choose_columns(table, list(first.values), labels)
        all_rows = itertools.islice(itertools.chain([first], parsed), skip, None)
        yield from _group(all_rows, table, chosen, source, rows)


def _json_rows(source: _Source) -> Iterator[_Row]:
    for text in source:
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            raise TableError(
                f"{source.path}, line {source.line}: broken row: not JSON ({reason})."
            ) from error
        if not isinstance(values, dict):
            raise TableError(
                f"{source.path}, line {source.line}: broken row: expected one JSON object a line, "
                f'as {{"text": "...", "label": "..."}}.'
            )
        yield _Row(source.line, values)


def read_text(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    """Read a file of texts, one a line."""
    if labels:
        raise TableError(
            f"{table.path}: a .txt file has no labels. Give a CSV, TSV or JSONL file with a column "
            "of texts and one of labels."
        )
    with _Source(table.path) as source:
        named = (
            _Row(source.line, {"text": text.rstrip("\r\n")}) for text in source if text.strip()
        )
        wanted = itertools.islice(named, skip, None)
        yield from _group(wanted, table, Chosen("text", None), source, rows)


def read_lines(lines: Iterable[str], *, rows: int = CHUNK_ROWS) -> Iterator[Chunk]:
    """Chunks of texts, one a line, from any iterable of lines; empty lines are left out.

    Parameters
    ----------
    lines : iterable of str
        For instance standard input.
    rows : int
        Largest number of rows in a chunk.

    Yields
    ------
    Chunk
        Texts without labels.
    """
    texts: list[str] = []
    for line in lines:
        if text := line.strip():
            texts.append(text)
        if len(texts) == rows:
            yield Chunk(texts, None)
            texts = []
    if texts:
        yield Chunk(texts, None)


def _group(
    rows: Iterator[_Row], table: Table, chosen: Chosen, source: _Source, size: int
) -> Iterator[Chunk]:
    inputs: list[Any] = []
    labels: list[str] | None = None if chosen.label is None else []
    for row in rows:
        inputs.append(input_of(row.values.get(chosen.input), table, f"line {row.line}"))
        if labels is not None and chosen.label is not None:
            labels.append(label_of(row.values.get(chosen.label), table, f"line {row.line}"))
        if len(inputs) == size:
            yield Chunk(inputs, labels, source.fraction)
            inputs, labels = [], (None if labels is None else [])
    if inputs:
        yield Chunk(inputs, labels)
