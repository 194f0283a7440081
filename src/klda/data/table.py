"""A file of rows, whatever its kind; and several of them, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.data.arrays import npz_modalities, read_npy, read_npz
from klda.data.arrow import parquet_modalities, read_parquet
from klda.data.batch import (
    BATCH_ROWS,
    START,
    Batch,
    Modality,
    Position,
    TableError,
    damage_named,
)
from klda.data.columns import GUESSED, Columns, input_in_cell, label_in_cell
from klda.data.files import find_files, kind_of, read_folder
from klda.data.text_files import find_header, read_delimited, read_jsonl, read_text
from klda.data.threads import read_ahead
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.labels import Label


@dataclass(frozen=True)
class Table:
    """A file of rows, opened each time :meth:`batches` is called."""

    path: Path  # the file or folder; the name that errors call it by
    kind: str  # how it is read: a suffix, or "folder"
    modality: Modality
    columns: Columns = GUESSED  # those that were asked for
    classes: Collection[Label] = field(default=(), repr=False)  # of the model the rows are for
    content: bytes | None = field(default=None, repr=False)  # if it is not a file on disk
    header: bool = True  # whether the first line of a CSV names the columns, or is a row

    def batches(
        self, *, labels: bool = True, rows: int | None = None, skip: int = 0
    ) -> Iterator[Batch]:
        """Read the file in batches of `rows` rows; the default depends on the modality.

        With `labels` each row must have one; without, no labels are read. The first `skip` rows are
        read but not checked, and leave the batches after them as they are. There is at least one
        batch, unless rows are skipped, and none is empty.
        """
        seen = 0
        for raw in self._unchecked(labels, rows or BATCH_ROWS[self.modality]):
            before, seen = seen, seen + len(raw)
            if seen > skip:
                skipped = max(skip - before, 0)
                yield self.check(raw.without_first(skipped), before + skipped)
        if not seen:
            raise TableError(f"{self.path} is empty: it holds no rows.")

    def _unchecked(self, labels: bool, rows: int) -> Iterator[Batch]:
        seen = 0
        with damage_named(lambda: f"{self.path}, after row {seen}" if seen else self.path):
            for raw in _READERS[self.kind](self, labels, rows):
                seen += len(raw)
                yield raw

    def check(self, raw: Batch, before: int) -> Batch:
        """Check the rows that a reader found; `before` is the number of rows read earlier."""
        inputs, labels = raw.inputs, raw.labels
        if self.modality == "features":
            inputs = np.array(inputs)
            _check_finite(self.path, inputs, before)
        elif isinstance(inputs, list):
            as_input = partial(input_in_cell, modality=self.modality, folder=self.path.parent)
            inputs = self.each(as_input, inputs, before, raw.lines)
        if labels is not None:
            as_own_label = partial(label_in_cell, classes=self.classes)
            labels = self.each(as_own_label, labels, before, raw.lines)
        return replace(raw, inputs=inputs, labels=labels, end=Position(0, before + len(raw)))

    def each(
        self,
        check: Callable[[Any], Any],
        values: Sequence[Any],
        before: int,
        lines: Sequence[int] | None = None,
    ) -> list[Any]:
        """Check the values of a column; an error names the row or the line.

        `before` is the number of rows read earlier.
        """
        checked = []
        for i, value in enumerate(values):
            try:
                checked.append(check(value))
            except KldaError as error:
                where = f"row {before + i + 1}" if lines is None else f"line {lines[i]}"
                raise TableError(f"{self.path}, {where}: {error}") from error
        return checked


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
    kind = kind_of(path)
    with damage_named(lambda: path):
        possible = _modalities(path, kind)
    if modality is None:
        modality = possible[0]
    if modality not in possible:
        raise TableError(
            f"{path} holds {' or '.join(possible)} rows, but {modality} rows are needed here. "
            f"Give {_EXAMPLES[modality]}."
        )
    return Table(path, kind, modality, columns, frozenset(classes))


def open_tables(
    paths: str | Path | Iterable[str | Path],
    *,
    modality: Modality | None = None,
    columns: Columns = GUESSED,
    classes: Collection[Label] = (),
) -> list[Table]:
    """Open all files that `find_files` finds, as `open_table` does.

    All must hold the same kind of rows: by default what the first one holds.
    """
    tables: list[Table] = []
    for path in find_files(paths):
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
    table = Table(Path(name), ".csv", "text", classes=frozenset(classes), content=content)
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


def _modalities(path: Path, kind: str) -> tuple[Modality, ...]:
    if kind == "folder":
        return ("image",)
    if kind == ".npy":
        return ("features",)
    if kind == ".npz":
        return npz_modalities(path)
    if kind == ".parquet":
        return parquet_modalities(path)
    return ("text",) if kind == ".txt" else ("text", "image")


_EXAMPLES: dict[Modality, str] = {
    "text": "a CSV, TSV, JSONL or parquet file with a column of texts",
    "image": "a folder with one folder of images per class",
    "features": "a .npy, .npz or parquet file of feature rows",
}


def _check_finite(path: Path, rows: Any, before: int) -> None:
    """Refuse features that are not numbers, and name the row of the file they are in."""
    if rows.ndim != 2 or rows.dtype.kind not in "fiub":
        return  # not feature rows at all: the encoder says so
    with np.errstate(over="ignore"):
        finite = np.isfinite(rows.astype(np.float32, copy=False)).all(axis=1)
    if not finite.all():
        raise TableError(
            f"{path}, row {before + int(np.argmin(finite)) + 1}: a feature is not finite in "
            "float32 (NaN, infinite or too large). Leave such rows out or repair them."
        )


_READERS: dict[str, Callable[[Table, bool, int], Iterator[Batch]]] = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".jsonl": read_jsonl,
    ".txt": read_text,
    ".parquet": read_parquet,
    ".npy": read_npy,
    ".npz": read_npz,
    "folder": read_folder,
}
