"""The few array operations that the engine needs: with NumPy on the CPU, with torch elsewhere.

`TorchBackend` has the same methods as `NumpyBackend`, where they are documented.

Vectors are rows everywhere: samples ``(n, D)``, means ``(M, D)``, weights ``(M, D)``. A *square* is
a symmetric ``(D, D)`` matrix of which only the lower triangle is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy  # its modules are imported when first used: predicting needs none

from klda.cpus import usable_cpus
from klda.errors import KldaError, require

Arrays: TypeAlias = Mapping[str, np.ndarray]
Meta: TypeAlias = Mapping[str, Any]
Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor, by backend
Backend: TypeAlias = "NumpyBackend | TorchBackend"  # of one device and one floating-point type

BLOCK_BYTES = {"cpu": 80 << 20, "gpu": 1 << 30}  # of features, or of scores, computed at once
BLOCK_ROWS = {"cpu": 4096, "gpu": 1 << 16}  # summed one after another: more lose digits
FEWEST_ROWS = 64  # in a block: all weights are read once per block
CACHED_ROWS = 256  # rows per step, where several operations pass over the same rows
FEW_ROWS = 32  # are lifted in less time than SciPy's BLAS takes to import
WORTH_THREADS = 1 << 22  # values; starting threads costs as much as a million of them
GRAM_COLUMNS = 1024  # per product on a torch device, where a triangle is computed in blocks
SUMMED_ROWS = 256  # that one thread of a GPU adds up


def is_torch(values: Any) -> bool:
    """Whether the values are a torch tensor, found out without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def on_cpu(values: Array) -> np.ndarray:
    """Return an array of whatever kind as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy() if is_torch(values) else values)


def add_prefix(prefix: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Return arrays with a prefix before their names."""
    return {prefix + name: array for name, array in arrays.items()}


def strip_prefix(prefix: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the arrays whose names have a prefix, without it: what `add_prefix` was given."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): np.asarray(arrays[name]) for name in names}


class Packed(NamedTuple):
    """What is stored of something: named arrays, and values as JSON has them."""

    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]

    def put(self, name: str, part: Packed) -> None:
        """Add what is stored of a part of it."""
        self.arrays.update(add_prefix(f"{name}/", part.arrays))
        self.meta[name] = part.meta

    def part(self, name: str) -> Packed:
        """Return what was `put`."""
        return Packed(strip_prefix(f"{name}/", self.arrays), self.meta[name])


def is_finite(array: np.ndarray) -> bool:
    """Whether there is neither NaN nor infinity, found without an array of answers."""
    if array.dtype.kind != "f":
        return True
    return bool(np.isfinite([array.min(initial=0), array.max(initial=0)]).all())


def product(left: Array, right: Array) -> Array:
    """Return the product of two matrices of one type: on the CPU with SciPy's BLAS.

    NumPy has a BLAS of its own: the threads of each of the two wait busily after a call, which
    slows down the other's. So NumPy multiplies a few rows before SciPy's is there, and never after.
    """
    if is_torch(left) or (len(left) <= FEW_ROWS and "scipy.linalg" not in sys.modules):
        return left @ right
    gemm = scipy.linalg.blas.dgemm if left.dtype == np.float64 else scipy.linalg.blas.sgemm
    # BLAS takes Fortran-ordered arrays without a copy: these, or their transposes.
    a, b = (one if one.flags.f_contiguous else one.T for one in (right, left))
    return np.asarray(gemm(1.0, a, b, trans_a=a is right, trans_b=b is left).T)


class _Backend:
    """The engine's operations on one device, in one precision: those that are alike everywhere.

    `xp` is the module of the arrays, for functions that NumPy and torch have under one name.
    """

    xp: Any

    def __init__(self, dtype: str, device: str = "cpu") -> None:
        self.device, self.dtype = device, np.dtype(dtype)
        self._options = {"dtype": getattr(self.xp, dtype), "device": device}

    def to_numpy(self, array: Array, dtype: Any = None) -> np.ndarray:
        """Return an array of this backend as a NumPy array."""
        return np.asarray(on_cpu(array), dtype)

    def double(self, values: Any) -> Array:
        """Return the values in double precision, where the device has it."""
        dtype = self.xp.float32 if self.device.startswith("mps") else self.xp.float64
        return self.xp.asarray(values, dtype=dtype, device=self.device)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return an array of zeros."""
        return self.xp.zeros(shape, **self._options)

    def index(self, positions: np.ndarray) -> Array:
        """Return integer positions for indexing arrays of this backend."""
        return self.xp.asarray(positions, dtype=self.xp.int64, device=self.device)

    def symmetric(self, square: Array) -> Array:
        """Return the whole of a symmetric matrix, given its lower triangle, in double precision."""
        lower = self.xp.tril(self.double(square))
        return lower + self.xp.tril(lower, -1).T


class NumpyBackend(_Backend):
    """The engine's operations on the CPU, through BLAS and LAPACK in place."""

    xp = np

    def _routine(self, name: str) -> Any:
        """Return a routine of BLAS or LAPACK for this precision."""
        name = ("s" if self.dtype == np.float32 else "d") + name
        return getattr(scipy.linalg.blas, name, None) or getattr(scipy.linalg.lapack, name)

    def asarray(self, values: Any) -> np.ndarray:
        """Return the values as a contiguous array, copied only if needed."""
        return np.ascontiguousarray(on_cpu(values), dtype=self.dtype)

    def cosine_map(
        self, rows: np.ndarray, frequencies: np.ndarray, phases: np.ndarray, scale: float
    ) -> np.ndarray:
        """Return ``scale * cos(rows frequencies + phases)``."""
        mapped, factor = product(rows, frequencies), self.dtype.type(scale)

        def turn(start: int, stop: int) -> None:
            part = mapped[start:stop]
            part += phases
            np.cos(part, out=part)
            part *= factor

        _in_threads(turn, len(mapped), CACHED_ROWS, mapped.size)
        return mapped

    def sum_of_squares(self, rows: np.ndarray) -> float:
        """Return the sum of all squared entries: a number, or a scalar still on the device."""
        return float(np.einsum("ij,ij->i", rows, rows).sum(dtype=np.float64))

    def class_sums(self, rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Sum rows that come class by class: ``(n, D)`` to ``(n_classes, D)``, no count zero."""
        # A sparse indicator matrix sums in one pass over the rows, with no loop over classes.
        n, starts = len(rows), np.concatenate([[0], np.cumsum(counts)])
        members = (np.ones(n, self.dtype), np.arange(n), starts)
        return np.asarray(scipy.sparse.csr_array(members, shape=(len(counts), n)) @ rows)

    def centre(self, rows: np.ndarray, centres: np.ndarray, counts: np.ndarray) -> None:
        """Subtract from each row the centre of its class, in place; rows as for `class_sums`."""
        classes = np.repeat(np.arange(len(counts)), counts)

        def subtract(start: int, stop: int) -> None:
            rows[start:stop] -= centres[classes[start:stop]]

        _in_threads(subtract, len(rows), CACHED_ROWS, rows.size)

    def add_gram(self, square: np.ndarray, rows: np.ndarray, sign: int) -> None:
        """Add ``sign * rows^T rows`` to the lower triangle, by one symmetric rank-k update."""
        # The transpose of a C-ordered array is the Fortran-ordered one that BLAS updates in place;
        # there the lower triangle is the upper one.
        self._routine("syrk")(
            float(sign), rows.T, beta=1.0, c=square.T, trans=0, lower=0, overwrite_c=1
        )

    def factorise(self, square: np.ndarray, rho: float) -> np.ndarray | None:
        """Return the lower triangular L of ``S + rho I = L L^T``; None if that is not definite."""
        factor = square.copy()
        np.einsum("ii->i", factor)[:] += self.dtype.type(rho)
        # The lower triangle of a C-ordered array is the upper one of its transpose.
        _, info = self._routine("potrf")(factor.T, lower=0, clean=0, overwrite_a=1)
        diagonal = factor.diagonal()
        if info != 0 or not np.all(np.isfinite(diagonal)) or np.any(diagonal <= 0):
            return None
        return factor

    def solve(self, factor: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return ``rows (S + rho I)^-1`` from the factor."""
        trsm = self._routine("trsm")
        solved = np.array(rows, dtype=self.dtype, order="C")
        trsm(1.0, factor.T, solved.T, side=0, lower=0, trans_a=1, overwrite_b=1)
        trsm(1.0, factor.T, solved.T, side=0, lower=0, trans_a=0, overwrite_b=1)
        return solved

    def top(self, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest of each row and their columns; of equals the earlier first."""
        if k == 1:
            columns = scores.argmax(axis=1)[:, None]
        else:
            columns = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, columns, axis=1), columns


class TorchBackend(_Backend):
    """The engine's operations on a torch device; nothing leaves the device in between.

    Matrix products follow torch's own precision setting: float32 unless the user allows TF32
    with ``torch.set_float32_matmul_precision("high")``.
    """

    def __init__(self, device: str, dtype: str) -> None:
        torch = require("torch", "text")
        try:
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise KldaError(
                f"device={device!r} can't be used ({str(error).splitlines()[0]}); "
                "use 'cpu', 'auto', or a device that torch sees."
            ) from error
        super().__init__(dtype, device)

    @property
    def xp(self) -> Any:
        """The module of the arrays."""
        return sys.modules["torch"]

    def asarray(self, values: Any) -> Array:
        """Return the values as a contiguous tensor on the device."""
        if not is_torch(values):
            values = np.ascontiguousarray(values)
            if values.itemsize > self.dtype.itemsize:  # fewer bytes to move
                values = values.astype(self.dtype)
            values = self.xp.from_numpy(values)
        return values.detach().to(**self._options).contiguous()

    def cosine_map(self, rows: Array, frequencies: Array, phases: Array, scale: float) -> Array:
        """Return ``scale * cos(rows frequencies + phases)``."""
        return self.xp.addmm(phases, rows, frequencies).cos_().mul_(scale)

    def sum_of_squares(self, rows: Array) -> Array:
        """Return the sum of all squared entries, on the device."""
        return self.xp.linalg.vector_norm(rows).double().square()

    def class_sums(self, rows: Array, counts: np.ndarray) -> Array:
        """Sum rows that come class by class.

        Adding up in any order, as ``index_add_`` does, is not deterministic: each class is summed
        in parts, a part by a thread per column.
        """
        n_parts = -(-counts // SUMMED_ROWS)
        lengths = np.full(n_parts.sum(), SUMMED_ROWS)
        lengths[np.cumsum(n_parts) - 1] += counts - n_parts * SUMMED_ROWS
        for sizes in (lengths, n_parts):
            at = self.index(sizes)
            rows = self.xp.segment_reduce(rows, "sum", lengths=at, axis=0, unsafe=True)
        return rows

    def centre(self, rows: Array, centres: Array, counts: np.ndarray) -> None:
        """Subtract from each row the centre of its class, in place; rows as for `class_sums`."""
        rows -= centres[self.index(np.repeat(np.arange(len(counts)), counts))]

    def add_gram(self, square: Array, rows: Array, sign: int) -> None:
        """Add ``sign * rows^T rows`` to the lower triangle, block row by block row."""
        for start in range(0, len(square), GRAM_COLUMNS):
            stop = min(start + GRAM_COLUMNS, len(square))
            square[start:stop, :stop].addmm_(rows[:, start:stop].T, rows[:, :stop], alpha=sign)

    def factorise(self, square: Array, rho: float) -> Array | None:
        """Return the lower triangular L of ``S + rho I = L L^T``; None if that is not definite."""
        shifted = square.clone()
        shifted.diagonal().add_(rho)
        factor, info = self.xp.linalg.cholesky_ex(shifted)  # reads the lower triangle alone
        return factor if int(info) == 0 and np.isfinite(float(factor.diagonal().sum())) else None

    def solve(self, factor: Array, rows: Array) -> Array:
        """Return ``rows (S + rho I)^-1`` from the factor."""
        return self.xp.cholesky_solve(rows.T, factor).T.contiguous()

    def top(self, scores: Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest of each row and their columns; of equals the earlier first."""
        if k == 1:  # of equals, torch has the first, too
            values, columns = scores.max(dim=1, keepdim=True)
        else:
            values, columns = scores.sort(dim=1, descending=True, stable=True)
        return self.to_numpy(values[:, :k]), self.to_numpy(columns[:, :k])


def choose_backend(device: str, dtype: str, values: Any = None) -> Backend:
    """Return the backend for a device: ``"cpu"``, a torch device such as ``"cuda:1"``, or "auto".

    ``"auto"`` is the device of ``values``, the first input, if they are a tensor; otherwise the GPU
    if torch is already imported and sees one, else the CPU.
    """
    if device == "auto":
        torch = sys.modules.get("torch")
        if is_torch(values):
            device = "cpu" if values.device.type == "cpu" else str(values.device)
        else:
            device = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    return NumpyBackend(dtype) if device == "cpu" else TorchBackend(device, dtype)


def row_blocks(n_rows: int, width: int, backend: Backend) -> list[slice]:
    """Split rows into blocks, for each of which an array of this width is computed at once."""
    kind = "cpu" if backend.device == "cpu" else "gpu"
    size = max(FEWEST_ROWS, BLOCK_BYTES[kind] // (width * backend.dtype.itemsize))
    size = min(size, BLOCK_ROWS[kind])
    return [slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size)]


def _in_threads(action: Callable[[int, int], None], n_rows: int, step: int, n_values: int) -> None:
    """Do something to all rows, a few at a time; where there are many values, on all cores.

    BLAS has threads of its own; what NumPy does to each value has not.
    """
    starts = range(0, n_rows, step)
    n_threads = min(usable_cpus(), len(starts)) if n_values >= WORTH_THREADS else 1
    if n_threads == 1:
        for start in starts:
            action(start, min(start + step, n_rows))
        return
    with ThreadPoolExecutor(n_threads) as pool:
        stops = [min(start + step, n_rows) for start in starts]
        for _ in pool.map(action, starts, stops):  # raises what an action raised
            pass
