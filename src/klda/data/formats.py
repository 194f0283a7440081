"""The kinds of files there are, each with its reader; and opening files, whatever their kind.

To add a kind, write a reader, which yields what it finds (`Contents`), and enter it in `FORMATS`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from klda.checks import Modality
from klda.data.arrays import npz_modalities, read_npy, read_npz
from klda.data.batch import GUESSED, START, Batch, Contents, Layout, Position
from klda.data.chunks import HEAD_ROWS
from klda.data.damage import TableError, damage_named
from klda.data.delimited import looks_delimited, read_delimited
from klda.data.documents import FASTTEXT, read_fasttext, read_json, read_lines, read_rasa
from klda.data.files import find_files, suffix_of
from klda.data.image_folders import read_folder
from klda.data.lines import ByteFile, TextFile
from klda.data.parquet import parquet_modalities, read_parquet
from klda.data.table import Table
from klda.data.threads import read_ahead
from klda.data.workbooks import read_workbook
from klda.labels import Label


class Format(NamedTuple):
    """A kind of file."""

    read: Callable[[Table], AbstractContextManager[Contents]]
    # What its rows can be, the likeliest first; a function if that depends on the file.
    modalities: tuple[Modality, ...] | Callable[[Path], tuple[Modality, ...]] = ("text", "image")


# By their first bytes.
NO_TABLES = {
    b"\xd0\xcf\x11\xe0": "a workbook of an old Excel: save it as .xlsx",
    b"%PDF": "a PDF: copy its texts into a table",
    b"\x89PNG": "an image: give a folder with one folder of images per class",
    b"\xff\xd8\xff": "an image: give a folder with one folder of images per class",
}


@contextmanager
def read_any(table: Table, suffix: str = "") -> Iterator[Contents]:
    """Read a table of cells: the kind of file that its first bytes show, or else its suffix."""
    with ByteFile(table.open() if table.open else table.path, str(table.path)) as file:
        head, suffix = file.head, suffix or suffix_of(table.path)
        if head.startswith(b"PAR1"):
            with read_parquet(table, file.seekable()) as found:
                yield found
        elif head.startswith(b"PK\x03\x04"):
            yield read_workbook(file, table.layout)
        elif other := next(
            (said for start, said in NO_TABLES.items() if head.startswith(start)), ""
        ):
            raise TableError(f"{table.path} is {other}.")
        else:
            yield _read_text(TextFile(file, table.layout.encoding), suffix, table.layout)


def _read_text(file: TextFile, suffix: str, layout: Layout) -> Contents:
    start = file.head.lstrip()
    if start[:6].casefold() in ("<html>", "<html ", "<!doct", "<table", "<?xml "):
        raise TableError(
            f"{file.name} is a web page or XML: open it in a spreadsheet, and save it as .xlsx or "
            ".csv."
        )
    if suffix in (".csv", ".tsv"):  # whatever they begin with
        return read_delimited(file, layout, "\t" if suffix == ".tsv" else None)
    if suffix == ".yml":
        return read_rasa(file)
    if suffix in (".json", ".jsonl") or start[:1] in ("{", "["):
        return read_json(file, lines=suffix == ".jsonl")
    if FASTTEXT in start.partition("\n")[0]:
        return read_fasttext(file)
    lines = start.splitlines(keepends=True)[:HEAD_ROWS]
    if suffix == ".txt" and not looks_delimited(lines[:-1] or lines):  # the last may be cut off
        return read_lines(file)
    return read_delimited(file, layout)


TABLE = Format(read_any)
FORMATS: dict[str, Format] = {
    ".csv": TABLE,
    ".tsv": TABLE,
    ".jsonl": TABLE,
    ".json": TABLE,
    ".xlsx": TABLE,
    ".txt": Format(read_any, ("text",)),
    ".yml": Format(read_any, ("text",)),
    ".parquet": Format(read_parquet, parquet_modalities),
    ".npy": Format(read_npy, ("features",)),
    ".npz": Format(read_npz, npz_modalities),
}
FOLDER = Format(read_folder, ("image",))
# What is read of a folder: settings often lie beside data.
IN_FOLDERS = FORMATS.keys() - {".json", ".yml"}
_EXAMPLES: dict[Modality, str] = {
    "text": "a CSV, TSV, JSONL, parquet or xlsx file with a column of texts",
    "image": "a folder with one folder of images per class",
    "features": "a .npy, .npz or parquet file of feature rows",
}


def open_table(
    path: str | Path,
    *,
    modality: Modality | None = None,
    layout: Layout = GUESSED,
    classes: Collection[Label] = (),
) -> Table:
    """Find out what a file, or a folder of images, holds, without reading its rows.

    `modality` is what its rows are, where the kind of file doesn't tell; a mismatch is an error.
    The `layout` says what can't be guessed; `classes` are those of the model the rows are for.
    """
    path = Path(path)
    if not path.exists():
        raise TableError(f"{path}: there is no such file or folder.")
    format = FOLDER if path.is_dir() else FORMATS.get(suffix_of(path), TABLE)
    with damage_named(lambda: path):
        possible = format.modalities(path) if callable(format.modalities) else format.modalities
    if modality is None:
        modality = possible[0]
    if modality not in possible:
        raise TableError(
            f"{path} holds {' or '.join(possible)} rows, but {modality} rows are needed here. "
            f"Give {_EXAMPLES[modality]}."
        )
    return Table(path, modality, format.read, layout, frozenset(classes))


def open_tables(
    paths: str | Path | Iterable[str | Path],
    *,
    modality: Modality | None = None,
    layout: Layout = GUESSED,
    classes: Collection[Label] = (),
) -> list[Table]:
    """Open all files that a user means (see `find_files`), as `open_table` does.

    All must hold the same kind of rows: by default what the first one holds.
    """
    tables: list[Table] = []
    for path in find_files(paths, IN_FOLDERS):
        expected = tables[0].modality if tables else modality
        tables.append(open_table(path, modality=expected, layout=layout, classes=classes))
    if not tables:
        raise TableError("paths is empty: name at least one file.")
    return tables


def open_bytes(
    content: bytes | BinaryIO,
    *,
    name: str,
    suffix: str = "",
    layout: Layout = GUESSED,
    classes: Collection[Label] = (),
) -> Table:
    """Open a table of texts that was sent, pasted or piped; errors call it `name`.

    Its kind is that of its first bytes, or else of the suffix, by default that of the name. A
    stream can be read once.
    """

    def opened() -> Any:
        return io.BytesIO(content) if isinstance(content, bytes) else content

    read = partial(read_any, suffix=suffix)
    return Table(Path(name), "text", read, layout, frozenset(classes), opened)


def read(
    tables: Sequence[Table], *, labels: bool, start: Position = START, **options: Any
) -> Generator[Batch, None, None]:
    """Read tables one after the other, a few batches ahead of the caller.

    `labels` and other options are as for :meth:`Table.batches`, `start` is the ``end`` of the last
    batch that was used. A batch's ``fraction`` is that of all tables, by the sizes of their files.
    """
    yield from read_ahead(_batches(tables, start, labels=labels, **options))


def _batches(tables: Sequence[Table], start: Position, **options: Any) -> Iterator[Batch]:
    sizes = [_size(table.path) for table in tables]
    for i in range(start.file, len(tables)):
        skip = start.rows if i == start.file else 0
        before = sum(sizes[:i])
        for batch in tables[i].batches(skip=skip, **options):
            fraction = (before + sizes[i] * batch.fraction) / sum(sizes)
            yield replace(batch, fraction=fraction, end=Position(i, batch.end.rows))


def _size(path: Path) -> int:
    return max(1, path.stat().st_size) if path.is_file() else 1
