"""A file of rows, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from klda.data.arrays import npz_modalities, read_npy, read_npz
from klda.data.chunk import CHUNK_ROWS, Chunk, Columns, Modality, TableError
from klda.data.files import kind_of
from klda.data.folders import read_folder
from klda.data.lines import read_delimited, read_jsonl, read_text
from klda.data.parquet import parquet_modalities, read_parquet


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
        reader = _READERS[kind_of(self.path)]
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
    kind = kind_of(path)
    possible = _modalities(path, kind)
    if modality is None:
        modality = possible[0]
    if modality not in possible:
        raise TableError(
            f"{path} holds {' or '.join(possible)} rows, but {modality} rows are needed here. "
            f"Give {_EXAMPLES[modality]}."
        )
    return Table(path, modality, columns or Columns())


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
    "image": "a folder with one folder of images a class",
    "features": "a .npy, .npz or parquet file of feature rows",
}


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


_READERS: dict[str, Callable[[Table, bool, int, int], Iterator[Chunk]]] = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".jsonl": read_jsonl,
    ".txt": read_text,
    ".parquet": read_parquet,
    ".npy": read_npy,
    ".npz": read_npz,
    "folder": read_folder,
}
