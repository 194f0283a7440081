"""NumPy files of features or of images, read a block of rows at a time."""

from __future__ import annotations

import contextlib
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda.checks import Modality
from klda.data.batch import Block, Contents
from klda.data.chunks import rows_at_once
from klda.data.damage import TableError, damage_named
from klda.data.table import Table


@contextlib.contextmanager
def read_npy(table: Table) -> Iterator[Contents]:
    """Read the rows of a .npy file."""
    features = np.lib.format.open_memmap(table.path, mode="r")
    row_bytes = _checked_row(table, "the array", features)

    def blocks(columns: Sequence[str] | None, rows: int) -> Iterator[Block]:
        rows = rows_at_once(rows, row_bytes)
        for start in range(0, len(features), rows):
            block = features[start : start + rows]  # not read yet: it may be skipped
            yield Block({"features": block}, min(1.0, (start + rows) / len(features)))

    hint = "Save both together: numpy.savez('rows.npz', features=X, labels=y)."
    yield Contents(["features"], blocks, labels_hint=hint)


def npz_modalities(path: Path) -> tuple[Modality, ...]:
    """Tell what an .npz file holds."""
    with zipfile.ZipFile(path) as archive:
        return ("image",) if "images.npy" in archive.namelist() else ("features",)


@contextlib.contextmanager
def read_npz(table: Table) -> Iterator[Contents]:
    """Read the arrays of an .npz file: inputs, and perhaps labels."""
    with zipfile.ZipFile(table.path) as archive, contextlib.ExitStack() as stack:

        def blocks(columns: Sequence[str] | None, rows: int) -> Iterator[Block]:
            inputs, *labels = columns or ()
            members = {
                name: stack.enter_context(_Member(table.path, archive, name))
                for name in (inputs, *labels)
            }
            row_bytes = _checked_row(table, inputs, members[inputs])
            total = members[inputs].shape[0]
            for name in labels:
                if members[name].shape != (total,):
                    raise TableError(
                        f"{table.path}: {inputs!r} has {total} rows, but {name!r} has shape "
                        f"{members[name].shape}; expected one label per row."
                    )
                row_bytes += members[name].dtype.itemsize
            rows = rows_at_once(rows, row_bytes)
            done = 0
            for found in zip(*(member.blocks(rows) for member in members.values()), strict=True):
                done += len(found[0])
                values = [found[0], *(array.tolist() for array in found[1:])]
                yield Block(dict(zip(members, values, strict=True)), done / total)

        yield Contents([name.removesuffix(".npy") for name in archive.namelist()], blocks)


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

    def blocks(self, rows: int) -> Iterator[np.ndarray]:
        """Yield so many rows at a time."""
        total, row_shape = self.shape[0], self.shape[1:]
        row_bytes = math.prod(row_shape) * self.dtype.itemsize
        start = 0
        with damage_named(lambda: f"{self._where}, after row {start}"):
            for start in range(0, total, rows):
                count = min(rows, total - start)
                payload = self._file.read(count * row_bytes)
                if len(payload) != count * row_bytes:
                    raise EOFError("it has fewer rows than it says")
                yield np.ndarray((count, *row_shape), self.dtype, buffer=payload)
            if self._file.read(1):
                raise ValueError("it has more rows than it says")
