"""The kinds of files there are, each with its reader; and opening files, whatever their kind.

To add a kind, write a reader (see `Table`) and enter it in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from klda.checks import Modality
from klda.data.arrays import npz_modalities, read_npy, read_npz
from klda.data.arrow import parquet_modalities, read_parquet
from klda.data.batch import START, Batch, Position, TableError, damage_named
from klda.data.columns import GUESSED, Columns
from klda.data.files import find_files, suffix_of
from klda.data.image_folders import read_folder
from klda.data.table import Table
from klda.data.text_files import find_header, read_delimited, read_jsonl, read_text
from klda.data.threads import read_ahead
from klda.labels import Label


class Format(NamedTuple):
    """A kind of file."""

    read: Callable[[Table, bool, int], Iterator[Batch]]
    # What its rows can be, the likeliest first; a function if that depends on the file.
    modalities: tuple[Modality, ...] | Callable[[Path], tuple[Modality, ...]] = ("text", "image")


FORMATS: dict[str, Format] = {
    ".csv": Format(read_delimited),
    ".tsv": Format(partial(read_delimited, delimiter="\t")),
    ".jsonl": Format(read_jsonl),
    ".txt": Format(read_text, ("text",)),
    ".parquet": Format(read_parquet, parquet_modalities),
    ".npy": Format(read_npy, ("features",)),
    ".npz": Format(read_npz, npz_modalities),
}
FOLDER = Format(read_folder, ("image",))
_EXAMPLES: dict[Modality, str] = {
    "text": "a CSV, TSV, JSONL or parquet file with a column of texts",
    "image": "a folder with one folder of images per class",
    "features": "a .npy, .npz or parquet file of feature rows",
}


def open_table(
    path: str | Path,
    *,
    modality: Modality | None = None,
    columns: Columns = GUESSED,
    classes: Collection[Label] = (),
) -> Table:
    """Find out what a file, or a folder of images, holds, without reading its rows.

    Parameters
    ----------
    path : str or Path
        The file or folder.
    modality : {"text", "image", "features"}, optional
        What its rows are, where the kind of file doesn't tell; a mismatch is an error.
    columns : Columns
        Names of the columns, where they can't be guessed.
    classes : collection of label
        Classes of the model that the rows are for.
    """
    path = Path(path)
    if not path.exists():
        raise TableError(f"{path}: there is no such file or folder.")
    format = _format_of(path)
    with damage_named(lambda: path):
        possible = format.modalities(path) if callable(format.modalities) else format.modalities
    if modality is None:
        modality = possible[0]
    if modality not in possible:
        raise TableError(
            f"{path} holds {' or '.join(possible)} rows, but {modality} rows are needed here. "
            f"Give {_EXAMPLES[modality]}."
        )
    return Table(path, modality, format.read, columns, frozenset(classes))


def _format_of(path: Path) -> Format:
    if path.is_dir():
        return FOLDER
    suffix = suffix_of(path)
    if suffix not in FORMATS:
        raise TableError(
            f"{path}: unknown kind of file {suffix or '(no suffix)'!r}. Known are .csv, .tsv, "
            ".jsonl, .txt (each also as .gz), .parquet, .npy, .npz, and folders of images."
        )
    return FORMATS[suffix]


def open_tables(
    paths: str | Path | Iterable[str | Path],
    *,
    modality: Modality | None = None,
    columns: Columns = GUESSED,
    classes: Collection[Label] = (),
) -> list[Table]:
    """Open all files that a user means (see `find_files`), as `open_table` does.

    All must hold the same kind of rows: by default what the first one holds.
    """
    tables: list[Table] = []
    for path in find_files(paths, FORMATS):
        expected = tables[0].modality if tables else modality
        tables.append(open_table(path, modality=expected, columns=columns, classes=classes))
    if not tables:
        raise TableError("paths is empty: name at least one file.")
    return tables


def open_pasted(content: bytes, *, name: str, classes: Collection[Label] = ()) -> Table:
    """Open CSV or TSV that someone pasted or uploaded; errors call it `name`.

    The first line names a text and a label column, or each line is a text and its label: the
    table's ``header`` says which.
    """
    own = frozenset(classes)
    table = Table(Path(name), "text", read_delimited, classes=own, content=content)
    return replace(table, header=find_header(table))


def read(
    tables: Sequence[Table], *, labels: bool, start: Position = START
) -> Generator[Batch, None, None]:
    """Read tables one after the other, a few batches ahead of the caller.

    With `labels` each row must have one. `start` is the ``end`` of the last batch that was used. A
    batch's ``fraction`` is that of all tables, by the sizes of their files.
    """
    yield from read_ahead(_batches(tables, labels, start))


def _batches(tables: Sequence[Table], labels: bool, start: Position) -> Iterator[Batch]:
    sizes = [_size(table.path) for table in tables]
    for i in range(start.file, len(tables)):
        skip = start.rows if i == start.file else 0
        before = sum(sizes[:i])
        for batch in tables[i].batches(labels=labels, skip=skip):
            fraction = (before + sizes[i] * batch.fraction) / sum(sizes)
            yield replace(batch, fraction=fraction, end=Position(i, batch.end.rows))


def _size(path: Path) -> int:
    return max(1, path.stat().st_size) if path.is_file() else 1
