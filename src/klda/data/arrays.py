"""NumPy files of features or of images, read a block of rows at a time."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from klda.checks import Modality
from klda.data.batch import Batch, TableError, damage_named, rows_at_once
from klda.data.table import Table


def read_npy(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the rows of a .npy file."""
    if labels:
        raise TableError(
            f"{table.path}: a .npy file has no labels. Save features and labels together: "
            "numpy.savez('rows.npz', features=X, labels=y)."
        )
    features = np.lib.format.open_memmap(table.path, mode="r")
    row_bytes = _checked_row(table, "the array", features)
    rows = rows_at_once(rows, row_bytes)
    for start in range(0, len(features), rows):
        block = features[start : start + rows]  # not read yet: it may be skipped
        yield Batch(block, None, min(1.0, (start + rows) / len(features)))


def npz_modalities(path: Path) -> tuple[Modality, ...]:
    """Tell what an .npz file holds."""
    with zipfile.ZipFile(path) as archive:
        return ("image",) if "images.npy" in archive.namelist() else ("features",)


def read_npz(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the rows of an .npz file, and their labels."""
    with zipfile.ZipFile(table.path) as archive:
        members = [name.removesuffix(".npy") for name in archive.namelist()]
        chosen, label = table.choose_columns(members, labels)
        with _Member(table.path, archive, chosen) as inputs:
            row_bytes = _checked_row(table, chosen, inputs)
            if label is None:
                for block, fraction in inputs.blocks(rows_at_once(rows, row_bytes)):
                    yield Batch(block, None, fraction)
                return
            with _Member(table.path, archive, label) as names:
                if names.shape != inputs.shape[:1]:
                    raise TableError(
                        f"{table.path}: {chosen!r} has {inputs.shape[0]} rows, but {label!r} has "
                        f"shape {names.shape}; expected one label per row."
                    )
                rows = rows_at_once(rows, row_bytes + names.dtype.itemsize)
                both = zip(inputs.blocks(rows), names.blocks(rows), strict=True)
                for (block, fraction), (values, _) in both:
                    yield Batch(block, values.tolist(), fraction)


def _checked_row(table: Table, name: str, array: np.ndarray | _Member) -> int:
    """Return the bytes of a row of inputs; raise if the array has no such rows."""
    dimensions, shape = 4 if table.modality == "image" else 2, array.shape
    row_bytes = math.prod(shape[1:]) * array.dtype.itemsize
    if len(shape) != dimensions or not row_bytes:
        expected = "(rows, features)" if dimensions == 2 else "(rows, height, width, channels)"
        raise TableError(f"{table.path}: {name!r} has shape {shape}; expected {expected}.")
    return row_bytes


class _Member:
    """One array of an .npz, read in blocks of rows, never unpacked as a whole."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, name: str) -> None:
        self._where = f"{path}, array {name!r}"
        with damage_named(lambda: self._where):
            self._file = archive.open(f"{name}.npy")
            version = np.lib.format.read_magic(self._file)
            read: Callable[..., Any] = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            self.shape, fortran, self.dtype = read(self._file)
            if any(length < 0 for length in self.shape):
                raise ValueError(f"a shape of {self.shape}")
        if self.dtype.hasobject or (fortran and len(self.shape) > 1):
            raise TableError(
                f"{self._where} must be an array of numbers or strings in C order, not "
                f"{'of objects' if self.dtype.hasobject else 'in Fortran order'}. Save it with "
                "numpy.ascontiguousarray(array), strings with array.astype(str)."
            )

    def __enter__(self) -> _Member:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def blocks(self, rows: int) -> Iterator[tuple[np.ndarray, float]]:
        total, row_shape = self.shape[0], self.shape[1:]
        row_bytes = math.prod(row_shape) * self.dtype.itemsize
        start = 0
        with damage_named(lambda: f"{self._where}, after row {start}"):
            for start in range(0, total, rows):
                count = min(rows, total - start)
                payload = self._file.read(count * row_bytes)
                if len(payload) != count * row_bytes:
                    raise EOFError("it has fewer rows than it says")
                block = np.ndarray((count, *row_shape), self.dtype, buffer=payload)
                yield block, (start + count) / total
            if self._file.read(1):
                raise ValueError("it has more rows than it says")
