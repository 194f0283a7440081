"""Reading rows from files, a chunk at a time: a million-row file never sits in memory.

Three kinds of input come out, named as the modalities of the foundation models are:

- ``text``: CSV, TSV, JSONL (each also as ``.gz``), parquet, and ``.txt`` (one text a line);
- ``image``: a folder with one folder a class, a folder of images, an ``.npz`` with ``images``, or a
  table with a column of paths;
- ``features``: ``.npy``, ``.npz`` and parquet with rows computed elsewhere.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import itertools
import json
import random
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple
from zlib import error as zlib_error

import numpy as np

from klda._optional import require
from klda.errors import KldaError
from klda.pipeline import ahead

Modality = Literal["text", "image", "features"]

TEXT_COLUMNS = (
    *("text", "texts", "sentence", "utterance", "query", "question", "message", "content"),
    *("body", "input", "phrase", "document"),
)
IMAGE_COLUMNS = ("image", "path", "file", "filename", "image_path", "file_name")
FEATURE_COLUMNS = ("features", "feature", "embedding", "embeddings", "vector", "x")
LABEL_COLUMNS = ("label", "labels", "intent", "category", "class", "target", "topic", "tag", "y")
IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
)
CHUNK_ROWS = 4096
# Rows read, encoded and learned at once.
ROWS: dict[Modality, int] = {"text": 512, "image": 256, "features": 8192}
SEEK_BYTES = 1 << 20
LONGEST_FIELD = 1 << 24  # characters in a field of a CSV file; Python's own limit is 131,072
IDENTITY_BYTES = 1 << 16  # read from both ends of a file to tell it from a changed one

_INPUT_COLUMNS: dict[Modality, tuple[str, ...]] = {
    "text": TEXT_COLUMNS,
    "image": IMAGE_COLUMNS,
    "features": FEATURE_COLUMNS,
}


class TableError(KldaError):
    """A file that can't be read as rows; the message names the file, the place and the fix."""


@dataclass(frozen=True)
class Columns:
    """Which columns hold the input and the label; None means: guess from the names."""

    input: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Some consecutive rows of a file.

    Attributes
    ----------
    inputs : list or ndarray
        Texts, image paths, or an array with one row a sample.
    labels : list of str or None
        One label a row; None when the file has none.
    fraction : float
        How much of the file has been read after this chunk, between 0 and 1.
    """

    inputs: Any
    labels: list[str] | None
    fraction: float = 1.0

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Table:
    """A file of rows, opened anew each time :meth:`chunks` is called.

    Attributes
    ----------
    path : Path
        The file or folder.
    modality : {"text", "image", "features"}
        What its rows are.
    """

    path: Path
    modality: Modality
    columns: Columns = field(default_factory=Columns)

    def chunks(
        self, *, labels: bool = True, rows: int = CHUNK_ROWS, skip: int = 0
    ) -> Iterator[Chunk]:
        """Read the file in chunks.

        Parameters
        ----------
        labels : bool
            Whether each row must have a label; without, labels are read where they are found.
        rows : int
            Largest number of rows in a chunk.
        skip : int
            Rows at the beginning to leave out. A multiple of ``rows`` leaves the chunks after them
            as they are.

        Yields
        ------
        Chunk
            Consecutive rows; none empty, and at least one chunk unless rows are left out.
        """
        reader = _READERS[_kind(self.path)]
        seen = skip
        try:
            for chunk in reader(self, labels, rows, skip):
                if self.modality == "features":
                    _check_finite(self.path, chunk.inputs, seen)
                seen += len(chunk)
                yield chunk
        except OSError as error:
            raise TableError(f"{self.path}: {error.strerror or error}") from error
        if not seen:
            raise TableError(f"{self.path} is empty: it holds no rows.")


def open_table(
    path: str | Path, *, modality: Modality | None = None, columns: Columns | None = None
) -> Table:
    """Find out what a file holds, without reading its rows.

    Parameters
    ----------
    path : str or Path
        A file, or a folder of images.
    modality : {"text", "image", "features"}, optional
        What its rows are, where the file's kind alone doesn't tell; a mismatch is an error.
    columns : Columns, optional
        Names of the columns, where they can't be guessed.

    Returns
    -------
    Table
        Ready to be read.

    Raises
    ------
    TableError
        If the file does not exist, is of an unknown kind, or can't hold such inputs.
    """
    path = Path(path)
    if not path.exists():
        raise TableError(f"{path}: there is no such file or folder.")
    kind = _kind(path)
    possible = _modalities(path, kind)
    if modality is None:
        modality = possible[0]
    if modality not in possible:
        raise TableError(
            f"{path} holds {' or '.join(possible)} rows, but {modality} rows are needed here. "
            f"Give {_EXAMPLES[modality]}."
        )
    return Table(path, modality, columns or Columns())


@dataclass(frozen=True)
class Place:
    """A place in a sequence of files: so many rows of one, and all of those before it."""

    file: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Piece:
    """A chunk of rows, and the place that is reached when it is done."""

    chunk: Chunk
    place: Place


def read(
    tables: Sequence[Table], *, labels: bool, start: Place | None = None
) -> Generator[Piece, None, None]:
    """Read files one after the other, a few chunks ahead of the caller.

    Parameters
    ----------
    tables : sequence of Table
        The files.
    labels : bool
        Whether each row must have a label.
    start : Place, optional
        Where to begin; at the first row by default.

    Yields
    ------
    Piece
        Chunks in their order.
    """
    yield from ahead(_pieces(tables, labels, start or Place()))


def _pieces(tables: Sequence[Table], labels: bool, start: Place) -> Iterator[Piece]:
    for i in range(start.file, len(tables)):
        done = start.rows if i == start.file else 0
        rows = ROWS[tables[i].modality]
        for chunk in tables[i].chunks(labels=labels, rows=rows, skip=done):
            done += len(chunk)
            yield Piece(chunk, Place(i, done))


def as_label(text: str, integers: bool) -> str | int:
    """Turn a label as written in a file or on the command line into the model's kind.

    Parameters
    ----------
    text : str
        As written.
    integers : bool
        Whether the model's classes are integers.

    Returns
    -------
    str or int
        The label.
    """
    if not integers:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise KldaError(
            f"The label {text!r} is not an integer, but this model's classes are integers."
        ) from error


def find_files(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Turn what a user names into files: patterns and folders of data files become their files.

    Parameters
    ----------
    paths : str, Path, or iterable of them
        Files; folders of images, which stay as they are; folders that hold data files and nothing
        else to read; patterns such as ``shards/*.parquet`` (``**`` for folders at any depth).

    Returns
    -------
    list of Path
        In the order given, each once; those of one pattern or folder sorted by name.

    Raises
    ------
    TableError
        If a pattern matches nothing.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    found: dict[Path, Path] = {}  # what two names lead to is one file, and is read once
    for path in map(Path, given):
        for match in [path] if path.exists() else _matches(path):
            for file in _data_files(match) or [match]:
                found.setdefault(file.resolve(), file)
    return list(found.values())


def _matches(pattern: Path) -> list[Path]:
    if not glob.has_magic(str(pattern)):
        return [pattern]  # opening it says that it is not there
    matches = sorted(map(Path, glob.glob(str(pattern), recursive=True)))  # noqa: PTH207
    if not matches:
        raise TableError(
            f"{pattern}: no file matches this pattern (searched from {Path.cwd()})."
            if not pattern.is_absolute()
            else f"{pattern}: no file matches this pattern."
        )
    opened = {folder for match in matches for folder in match.parents}
    return [match for match in matches if match not in opened]  # what is in them is named itself


def _data_files(folder: Path) -> list[Path]:
    """Files of a folder of data files, sorted; none for a file or a folder of images."""
    if not folder.is_dir():
        return []
    entries = sorted(entry for entry in folder.iterdir() if not _hidden(entry))
    if any(entry.is_dir() or entry.suffix.lower() in IMAGE_SUFFIXES for entry in entries):
        return []
    return [entry for entry in entries if _suffix(entry) in _READERS]


def identity(path: Path) -> dict[str, Any]:
    """Return what tells a file from a changed one: size, time, and a digest of some of it.

    Parameters
    ----------
    path : Path
        A file, or a folder of images (then of the names, sizes and times in it).

    Returns
    -------
    dict
        JSON-able; equal as long as the file was not changed. Empty for a pipe, which can be read
        only once.
    """
    if not path.is_file() and not path.is_dir():
        return {}
    if path.is_dir():
        entries = [(str(i.relative_to(path)), *_stamp(i)) for i in _images(path)]
        digest = hashlib.sha256(json.dumps(entries).encode())
        return {"images": len(entries), "digest": digest.hexdigest()}
    size, changed = _stamp(path)
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(IDENTITY_BYTES))
        file.seek(max(0, size - IDENTITY_BYTES))
        digest.update(file.read(IDENTITY_BYTES))
    return {"size": size, "changed_ns": changed, "digest": digest.hexdigest()}


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


_EXAMPLES: dict[Modality, str] = {
    "text": "a CSV, TSV, JSONL or parquet file with a column of texts",
    "image": "a folder with one folder of images a class",
    "features": "a .npy, .npz or parquet file of feature rows",
}


def _kind(path: Path) -> str:
    if path.is_dir():
        return "folder"
    suffix = _suffix(path)
    if suffix not in _READERS:
        raise TableError(
            f"{path}: unknown kind of file {suffix or '(no suffix)'!r}. Known are .csv, .tsv, "
            ".jsonl, .txt (each also as .gz), .parquet, .npy, .npz, and folders of images."
        )
    return suffix


def _suffix(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] == ".gz":
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    return {".ndjson": ".jsonl", ".pq": ".parquet"}.get(suffix, suffix)


def _modalities(path: Path, kind: str) -> tuple[Modality, ...]:
    if kind == "folder":
        return ("image",)
    if kind == ".npy":
        return ("features",)
    if kind == ".npz":
        with _open_npz(path) as archive:
            return ("image",) if "images.npy" in archive.namelist() else ("features",)
    if kind == ".parquet":
        return _parquet_modalities(path)
    return ("text",) if kind == ".txt" else ("text", "image")


# ---------------------------------------------------------------------------------------------
# Text tables


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


def _read_delimited(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    if csv.field_size_limit() < LONGEST_FIELD:
        csv.field_size_limit(LONGEST_FIELD)  # holds for the whole process: never lowered
    with _Source(table.path) as source:
        lines = iter(source)
        first = next((line for line in lines if line.strip()), "")
        blank = ["\n"] * (source.line - 1)  # so that the reader counts lines as the file does
        delimiter = "\t" if _kind(table.path) == ".tsv" else _delimiter(first)
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
        chosen = _choose(table, names, labels)
        parsed = itertools.islice(_dict_rows(reader, table.path, names, chosen.label), skip, None)
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


def _dict_rows(reader: Any, path: Path, names: list[str], label: str | None) -> Iterator[_Row]:
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
        row = dict(zip(names, values, strict=True))
        if label is not None:  # "hello, pin" is of the class "pin"
            row[label] = row[label].strip()
        yield _Row(line, row)


def _read_jsonl(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    with _Source(table.path) as source:
        parsed = _json_rows(source)
        first = next(parsed, None)
        if first is None:
            return
        chosen = _choose(table, list(first.values), labels)
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


def _read_lines(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
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
        yield from _group(wanted, table, _Chosen("text", None), source, rows)


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


class _Chosen(NamedTuple):
    input: str
    label: str | None


def _choose(table: Table, names: Sequence[str], need_labels: bool) -> _Chosen:
    """Pick the input and label columns: as asked for, else by their names."""
    guesses = _INPUT_COLUMNS[table.modality]
    inputs = _find(table, names, table.columns.input, guesses)
    label = _find(table, names, table.columns.label, LABEL_COLUMNS)
    # In a table of two columns, knowing one tells the other.
    if len(names) == 2 and (inputs is None) != (label is None):
        other = next(name for name in names if name not in (inputs, label))
        inputs, label = inputs or other, label or other
    if inputs is None and len(names) == 1 and not need_labels:
        inputs = names[0]
    if inputs is None:
        raise _no_column(table, names, table.modality, "--input-column", guesses)
    if label is None and need_labels:
        raise _no_column(table, names, "label", "--label-column", LABEL_COLUMNS)
    if inputs == label:
        if need_labels:
            raise TableError(
                f"{table.path}: the column {label!r} can't hold both the {table.modality} and the "
                f"label; its columns are: {', '.join(names)}. Name both with --input-column and "
                "--label-column."
            )
        label = None
    return _Chosen(inputs, label)


def _find(
    table: Table, names: Sequence[str], asked: str | None, guesses: Sequence[str]
) -> str | None:
    if asked is not None:
        if asked not in names:
            raise TableError(
                f"{table.path} has no column {asked!r}; its columns are: {', '.join(names)}."
            )
        return asked
    lower = {name.lower(): name for name in reversed(names)}
    return next((lower[guess] for guess in guesses if guess in lower), None)


def _no_column(
    table: Table, names: Sequence[str], what: str, option: str, guesses: Sequence[str]
) -> TableError:
    return TableError(
        f"{table.path}: can't tell which column holds the {what}; its columns are: "
        f"{', '.join(names)}. Name it with {option} (guessed are: {', '.join(guesses)})."
    )


def _group(
    rows: Iterator[_Row], table: Table, chosen: _Chosen, source: _Source, size: int
) -> Iterator[Chunk]:
    inputs: list[Any] = []
    labels: list[str] | None = None if chosen.label is None else []
    for row in rows:
        inputs.append(_input_of(row.values.get(chosen.input), table, f"line {row.line}"))
        if labels is not None and chosen.label is not None:
            labels.append(_label_of(row.values.get(chosen.label), table, f"line {row.line}"))
        if len(inputs) == size:
            yield Chunk(inputs, labels, source.fraction)
            inputs, labels = [], (None if labels is None else [])
    if inputs:
        yield Chunk(inputs, labels)


def _input_of(value: Any, table: Table, place: str) -> str | Path:
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


def _label_of(value: Any, table: Table, place: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise TableError(f"{table.path}, {place}: the label is empty.")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise TableError(
            f"{table.path}, {place}: the label is {value!r}; expected a string or an integer."
        )
    _check_unicode(str(value), table, place, "label")
    return str(value)


def _check_unicode(text: str, table: Table, place: str, what: str) -> None:
    """Refuse half a surrogate pair, which JSON can write and nothing can save or encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TableError(
            f"{table.path}, {place}: the {what} is not valid Unicode: {text[error.start]!r} at "
            f"character {error.start + 1}. Repair it or leave the row out."
        ) from error


def _check_finite(path: Path, rows: Any, before: int) -> None:
    """Refuse features that are no numbers, by the row of the file that they are in."""
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        return  # not feature rows at all, which the encoder says
    with np.errstate(over="ignore"):
        finite = np.isfinite(rows.astype(np.float32, copy=False)).all(axis=1)
    if not finite.all():
        raise TableError(
            f"{path}, row {before + int(np.argmin(finite)) + 1}: a feature is not finite in "
            "float32 (NaN, infinite or too large). Leave such rows out or repair them."
        )


# ---------------------------------------------------------------------------------------------
# Parquet


def _open_parquet(path: Path) -> Any:
    parquet = require("pyarrow.parquet", "parquet")
    arrow = require("pyarrow", "parquet")
    try:
        return parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise TableError(f"{path}: not a parquet file, or a damaged one ({error}).") from error


def _parquet_modalities(path: Path) -> tuple[Modality, ...]:
    with _open_parquet(path) as file:
        schema = file.schema_arrow
    if _feature_columns(schema, Columns()) is not None and not any(
        str(schema.field(name).type) in ("string", "large_string")
        for name in schema.names
        if name.lower() in TEXT_COLUMNS
    ):
        return ("features", "text", "image")
    return ("text", "image", "features")


def _feature_columns(schema: Any, columns: Columns) -> list[str] | None:
    """One column of lists, or all columns of floating-point numbers; None when there is neither."""
    types = require("pyarrow.types", "parquet")
    if columns.input is not None:
        return [columns.input]
    lists = [
        name
        for name in schema.names
        if types.is_list(schema.field(name).type)
        or types.is_large_list(schema.field(name).type)
        or types.is_fixed_size_list(schema.field(name).type)
    ]
    if lists:
        named = [name for name in lists if name.lower() in FEATURE_COLUMNS]
        return (named or lists)[:1]
    floats = [name for name in schema.names if types.is_floating(schema.field(name).type)]
    return floats or None


def _read_parquet(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    with _open_parquet(table.path) as file:
        total = max(file.metadata.num_rows, 1)
        if table.modality == "features":
            yield from _parquet_features(table, file, labels, rows, skip)
            return
        chosen = _choose(table, file.schema_arrow.names, labels)
        wanted = [name for name in chosen if name is not None]
        done = skip
        for batch in _record_batches(file, wanted, rows, skip):
            values = batch.column(chosen.input).to_pylist()
            inputs = [_input_of(v, table, f"row {done + i}") for i, v in enumerate(values, 1)]
            names = _parquet_labels(batch, chosen.label, table, done)
            done += len(inputs)
            if inputs:
                yield Chunk(inputs, names, done / total)


def _record_batches(file: Any, columns: list[str], rows: int, skip: int) -> Iterator[Any]:
    """Record batches of so many rows, across row groups; groups that are left out are not read."""
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    first = 0
    while first < len(sizes) and sizes[first] <= skip:
        skip -= sizes[first]
        first += 1
    held: list[Any] = []
    for batch in file.iter_batches(
        batch_size=rows, columns=columns, row_groups=list(range(first, len(sizes)))
    ):
        left_out = min(skip, len(batch))
        skip -= left_out
        held.append(batch.slice(left_out))
        while (count := sum(map(len, held))) >= rows:
            whole = _joined(held)
            yield whole.slice(0, rows)
            held = [whole.slice(rows)] if count > rows else []
    if any(map(len, held)):
        yield _joined(held)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    arrow = require("pyarrow", "parquet")
    return arrow.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _parquet_labels(batch: Any, label: str | None, table: Table, done: int) -> list[str] | None:
    if label is None:
        return None
    values = batch.column(label).to_pylist()
    return [_label_of(v, table, f"row {done + i}") for i, v in enumerate(values, 1)]


def _parquet_features(
    table: Table, file: Any, need_labels: bool, rows: int, skip: int
) -> Iterator[Chunk]:
    total = max(file.metadata.num_rows, 1)
    schema = file.schema_arrow
    inputs = _feature_columns(schema, table.columns)
    if inputs is None:
        raise TableError(
            f"{table.path}: found neither a column of lists nor columns of floating-point numbers "
            f"to take as features; its columns are: {', '.join(schema.names)}."
        )
    label = _find(table, schema.names, table.columns.label, LABEL_COLUMNS)
    if label is None and need_labels:
        raise _no_column(table, schema.names, "label", "--label-column", LABEL_COLUMNS)
    wanted = [*inputs, *([] if label is None else [label])]
    done = skip
    for batch in _record_batches(file, wanted, rows, skip):
        features = _stack(batch, inputs, table, done)
        names = _parquet_labels(batch, label, table, done)
        done += len(features)
        if len(features):
            yield Chunk(features, names, done / total)


def _stack(batch: Any, inputs: list[str], table: Table, done: int) -> np.ndarray:
    """Feature rows of a record batch, from one column of lists or one column a feature."""
    columns = [batch.column(name) for name in inputs]
    if any(column.null_count for column in columns):
        raise TableError(f"{table.path}, rows {done + 1} and on: a feature is missing.")
    if len(columns) > 1:
        return np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])
    flat = columns[0].flatten().to_numpy(zero_copy_only=False)
    if len(columns[0]) == 0 or flat.size % len(columns[0]):
        raise TableError(f"{table.path}, rows {done + 1} and on: rows of different lengths.")
    compute = require("pyarrow.compute", "parquet")
    lengths = compute.list_value_length(columns[0]).unique().to_pylist()
    if len(lengths) > 1:
        raise TableError(
            f"{table.path}, rows {done + 1} and on: rows of different lengths: {sorted(lengths)}."
        )
    return np.asarray(flat).reshape(len(columns[0]), -1)


# ---------------------------------------------------------------------------------------------
# NumPy files


def _read_npy(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    if labels:
        raise TableError(
            f"{table.path}: a .npy file has no labels. Save features and labels together: "
            "numpy.savez('rows.npz', features=X, labels=y)."
        )
    try:
        features = np.load(table.path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise TableError(f"{table.path}: not a .npy file of numbers ({error}).") from error
    _check_matrix(table.path, "the array", features.shape, 2)
    for start in range(skip, len(features), rows):
        block = np.array(features[start : start + rows])
        yield Chunk(block, None, min(1.0, (start + rows) / len(features)))


def _open_npz(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise TableError(f"{path}: not an .npz file, or a truncated one ({error}).") from error


def _read_npz(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    with _open_npz(table.path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        guesses = ("images",) if table.modality == "image" else FEATURE_COLUMNS
        chosen = _find(table, names, table.columns.input, guesses)
        label = _find(table, names, table.columns.label, LABEL_COLUMNS)
        if chosen is None:
            raise _no_column(table, names, table.modality, "--input-column", guesses)
        if label is None and labels:
            raise _no_column(table, names, "label", "--label-column", LABEL_COLUMNS)
        yield from _npz_chunks(table, archive, _Chosen(chosen, label), rows, skip)


def _npz_chunks(
    table: Table, archive: zipfile.ZipFile, names: _Chosen, rows: int, skip: int
) -> Iterator[Chunk]:
    chosen, label = names
    with _Member(table.path, archive, chosen) as inputs:
        _check_matrix(table.path, chosen, inputs.shape, 4 if table.modality == "image" else 2)
        if label is None:
            for block, fraction in inputs.blocks(rows, skip):
                yield Chunk(block, None, fraction)
            return
        with _Member(table.path, archive, label) as labels:
            if labels.shape != inputs.shape[:1]:
                raise TableError(
                    f"{table.path}: {chosen!r} has {inputs.shape[0]} rows, but {label!r} has shape "
                    f"{labels.shape}; expected one label a row."
                )
            done = skip
            for (block, fraction), (found, _) in zip(
                inputs.blocks(rows, skip), labels.blocks(rows, skip), strict=True
            ):
                values = [
                    _label_of(value, table, f"row {done + i}")
                    for i, value in enumerate(found.tolist(), 1)
                ]
                done += len(values)
                yield Chunk(block, values, fraction)


def _check_matrix(path: Path, name: str, shape: tuple[int, ...], dimensions: int) -> None:
    if len(shape) != dimensions:
        expected = "(rows, features)" if dimensions == 2 else "(rows, height, width, channels)"
        raise TableError(f"{path}: {name!r} has shape {shape}; expected {expected}.")


class _Member:
    """One array of an .npz, read in blocks of rows without unpacking the whole of it."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, name: str) -> None:
        self.path, self.name = path, name
        self._file = archive.open(f"{name}.npy")
        try:
            version = np.lib.format.read_magic(self._file)
            read: Callable[..., Any] = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            self.shape, fortran, self.dtype = read(self._file)
        except ValueError as error:
            raise TableError(f"{path}: {name!r} is not an array ({error}).") from error
        if self.dtype.hasobject or (fortran and len(self.shape) > 1):
            raise TableError(
                f"{path}: {name!r} must be an array of numbers or strings in C order, not "
                f"{'of objects' if self.dtype.hasobject else 'in Fortran order'}. Save it with "
                "numpy.ascontiguousarray(array), strings with array.astype(str)."
            )

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def blocks(self, rows: int, skip: int) -> Iterator[tuple[np.ndarray, float]]:
        total = self.shape[0]
        row_shape = self.shape[1:]
        row_bytes = int(np.prod(row_shape, dtype=np.int64)) * self.dtype.itemsize
        for start in range(skip, total, rows):
            count = min(rows, total - start)
            try:
                if start == skip:
                    self._pass_over(skip * row_bytes)
                payload = self._file.read(count * row_bytes)
            except (zipfile.BadZipFile, zlib_error, EOFError) as error:
                raise TableError(f"{self.path}: {self.name!r} is damaged ({error}).") from error
            if len(payload) != count * row_bytes:
                raise TableError(f"{self.path}: {self.name!r} is cut short at row {start + 1}.")
            block = np.frombuffer(payload, dtype=self.dtype).reshape((count, *row_shape))
            yield block, (start + count) / total

    def _pass_over(self, size: int) -> None:
        # In small steps: a member's own seek reads 16 MB at a time.
        for start in range(0, size, SEEK_BYTES):
            self._file.read(min(SEEK_BYTES, size - start))


# ---------------------------------------------------------------------------------------------
# Folders of images


def _read_folder(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    """Image paths of a folder with one folder a class, or (for predicting) of a flat folder."""
    classes = sorted(
        entry for entry in table.path.iterdir() if entry.is_dir() and not _hidden(entry)
    )
    if not classes and labels:
        raise TableError(
            f"{table.path} has no folders in it: the images of each class go into a folder of "
            "their own, named after the class."
        )
    pairs: list[tuple[Path, str | None]] = []
    for folder in classes:
        images = _images(folder)
        if not images and labels:
            raise TableError(
                f"{folder} holds no images; known suffixes are {', '.join(sorted(IMAGE_SUFFIXES))}."
            )
        pairs.extend((image, folder.name) for image in images)
    if not classes:
        pairs.extend((image, None) for image in _images(table.path))
    if labels:
        # Mixed, so that the first chunk, from which a bandwidth may be taken, shows all classes.
        random.Random(0).shuffle(pairs)
    for start in range(skip, len(pairs), rows):
        block = pairs[start : start + rows]
        names = None if not classes else [str(name) for _, name in block]
        yield Chunk([path for path, _ in block], names, min(1.0, (start + rows) / len(pairs)))


def _images(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not _hidden(path)
    )


def _hidden(path: Path) -> bool:
    return path.name.startswith(".")


_READERS: dict[str, Callable[[Table, bool, int, int], Iterator[Chunk]]] = {
    ".csv": _read_delimited,
    ".tsv": _read_delimited,
    ".jsonl": _read_jsonl,
    ".txt": _read_lines,
    ".parquet": _read_parquet,
    ".npy": _read_npy,
    ".npz": _read_npz,
    "folder": _read_folder,
}
