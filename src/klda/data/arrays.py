"""NumPy files of features or of images, read a block of rows at a time."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import error as zlib_error

import numpy as np

from klda.data.batch import Batch, Modality, TableError
from klda.data.columns import choose_columns

if TYPE_CHECKING:
    from klda.data.table import Table


def read_npy(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the rows of a .npy file."""
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
    for start in range(0, len(features), rows):
        block = features[start : start + rows]  # not read yet: it may be skipped
        yield Batch(block, None, min(1.0, (start + rows) / len(features)))


def _open_npz(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise TableError(f"{path}: not an .npz file, or a truncated one ({error}).") from error


def npz_modalities(path: Path) -> tuple[Modality, ...]:
    """Tell what an .npz file holds."""
    with _open_npz(path) as archive:
        return ("image",) if "images.npy" in archive.namelist() else ("features",)


def read_npz(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the rows of an .npz file, and their labels."""
    with _open_npz(table.path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        chosen, label = choose_columns(table, members, labels)
        with _Member(table.path, archive, chosen) as inputs:
            _check_matrix(table.path, chosen, inputs.shape, 4 if table.modality == "image" else 2)
            if label is None:
                for block, fraction in inputs.blocks(rows):
                    yield Batch(block, None, fraction)
                return
            with _Member(table.path, archive, label) as names:
                if names.shape != inputs.shape[:1]:
                    raise TableError(
                        f"{table.path}: {chosen!r} has {inputs.shape[0]} rows, but {label!r} has "
                        f"shape {names.shape}; expected one label per row."
                    )
                both = zip(inputs.blocks(rows), names.blocks(rows), strict=True)
                for (block, fraction), (values, _) in both:
                    yield Batch(block, values.tolist(), fraction)


def _check_matrix(path: Path, name: str, shape: tuple[int, ...], dimensions: int) -> None:
    if len(shape) != dimensions:
        expected = "(rows, features)" if dimensions == 2 else "(rows, height, width, channels)"
        raise TableError(f"{path}: {name!r} has shape {shape}; expected {expected}.")


class _Member:
    """One array of an .npz, read in blocks of rows, never unpacked as a whole."""

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

    def blocks(self, rows: int) -> Iterator[tuple[np.ndarray, float]]:
        total = self.shape[0]
        row_shape = self.shape[1:]
        row_bytes = int(np.prod(row_shape, dtype=np.int64)) * self.dtype.itemsize
        for start in range(0, total, rows):
            count = min(rows, total - start)
            try:
                payload = self._file.read(count * row_bytes)
            except (zipfile.BadZipFile, zlib_error, EOFError) as error:
                raise TableError(f"{self.path}: {self.name!r} is damaged ({error}).") from error
            if len(payload) != count * row_bytes:
                raise TableError(f"{self.path}: {self.name!r} is cut short at row {start + 1}.")
            block = np.frombuffer(payload, dtype=self.dtype).reshape((count, *row_shape))
            yield block, (start + count) / total
