"""The few array operations that the engine needs, on the CPU.

`klda.engine.arrays_torch` has the same ones for torch devices: what is said here of an operation
holds there too.

Vectors are rows everywhere: samples ``(n, D)``, means ``(M, D)``, weights ``(M, D)``. A *square* is
a symmetric ``(D, D)`` matrix of which only the lower triangle is used.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import scipy  # its modules are imported when first used: predicting needs none

from klda.engine.cpus import usable_cpus

Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor, by backend

CACHED_ROWS = 256  # rows per step, where several operations pass over the same rows
FEW_ROWS = 32  # are lifted in less time than SciPy's BLAS takes to import
MOST_COUNTED = np.iinfo(np.int32).max  # values that SciPy's BLAS can count
WORTH_THREADS = 1 << 22  # values; starting threads costs as much as a million of them


def is_torch(values: Any) -> bool:
    """Whether the values are a torch tensor, found out without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def on_cpu(values: Array) -> np.ndarray:
    """Return an array of whatever kind as a NumPy array."""
    return np.asarray(values.detach().cpu().numpy() if is_torch(values) else values)


def add_prefix(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays with a prefix before their names."""
    return {prefix + name: array for name, array in arrays.items()}


def strip_prefix(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays whose names have a prefix, without it: what `add_prefix` was given."""
    names = [name for name in arrays if name.startswith(prefix)]
    return {name.removeprefix(prefix): np.asarray(arrays[name]) for name in names}


def is_finite(array: np.ndarray) -> bool:
    """Whether there is neither NaN nor infinity, found without an array of answers."""
    if array.dtype.kind != "f":
        return True
    return bool(np.isfinite([array.min(initial=0), array.max(initial=0)]).all())


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of two matrices in double precision, with SciPy's BLAS.

    NumPy has a BLAS of its own, and the threads of each would wait for the other.
    """
    # The transpose of a C-ordered array is the Fortran-ordered one that BLAS takes without a copy.
    return np.asarray(scipy.linalg.blas.dgemm(1.0, right.T, left.T).T)


class NumpyBackend:
    """The engine's operations on the CPU, through BLAS and LAPACK in place.

    All products are SciPy's, but those of a few rows. NumPy comes with a BLAS of its own, whose
    threads wait busily for a while after each call and would hold up those of SciPy's.
    """

    device = "cpu"
    xp = np  # the module of the arrays: for functions that NumPy and torch have under one name

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    def _routine(self, name: str) -> Any:
        """Return a routine of BLAS or LAPACK for this precision."""
        name = ("s" if self.dtype == np.float32 else "d") + name
        return getattr(scipy.linalg.blas, name, None) or getattr(scipy.linalg.lapack, name)

    def asarray(self, values: Any) -> np.ndarray:
        """Return the values as a contiguous array, copied only if needed."""
        return np.ascontiguousarray(on_cpu(values), dtype=self.dtype)

    def to_numpy(self, array: np.ndarray, dtype: Any = None) -> np.ndarray:
        """Return an array of this backend as a NumPy array."""
        return np.asarray(array, dtype)

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an uninitialised array."""
        return np.empty(shape, self.dtype)

    def zeros(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of zeros."""
        return np.zeros(shape, self.dtype)

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Return a copy that shares no memory."""
        return array.copy()

    def concatenate(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Join arrays along the first axis."""
        return np.concatenate(arrays)

    def index(self, positions: np.ndarray) -> np.ndarray:
        """Return integer positions for indexing arrays of this backend."""
        return positions

    def cosine_map(
        self,
        rows: np.ndarray,
        frequencies: np.ndarray,
        phases: np.ndarray,
        scale: float,
        room: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return ``scale * cos(rows frequencies + phases)``, in the room if one is given."""
        size = (len(rows), frequencies.shape[1])
        out = self.empty(size) if room is None else room[: len(rows)]
        if len(rows) <= FEW_ROWS:
            mapped = np.matmul(rows, frequencies, out=out)
        else:
            gemm = self._routine("gemm")
            mapped = gemm(1.0, frequencies.T, rows.T, beta=0.0, c=out.T, overwrite_c=1).T
        factor = self.dtype.type(scale)

        def turn(start: int, stop: int) -> None:
            part = mapped[start:stop]
            part += phases
            np.cos(part, out=part)
            part *= factor

        _in_threads(turn, len(mapped), CACHED_ROWS, mapped.size)
        return mapped

    def linear(
        self, rows: np.ndarray, weights: np.ndarray, biases: np.ndarray | None = None
    ) -> np.ndarray:
        """Return ``rows weights^T``, plus biases if there are any."""
        if len(rows) <= FEW_ROWS:
            products = np.matmul(rows, weights.T)
            return products if biases is None else products + biases
        scores = self.empty((len(rows), len(weights)))
        scores[:] = 0 if biases is None else biases
        gemm = self._routine("gemm")
        return gemm(1.0, weights.T, rows.T, beta=1.0, c=scores.T, trans_a=1, overwrite_c=1).T

    def sum_of_squares(self, rows: np.ndarray) -> float:
        """Return the sum of all squared entries: a number, or a scalar still on the device."""
        flat = np.ravel(rows)
        dot = np.vdot if flat.size > MOST_COUNTED else self._routine("dot")
        return float(dot(flat, flat))

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

    def small_solver(
        self, matrix: np.ndarray, *, definite: bool
    ) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return ``rows -> rows matrix^-1`` for a small symmetric matrix, None if singular."""
        try:
            if definite:
                factor = scipy.linalg.cho_factor(matrix, lower=True, check_finite=False)
                return partial(_solve_rows, scipy.linalg.cho_solve, factor)
            with warnings.catch_warnings():
                warnings.simplefilter("error", scipy.linalg.LinAlgWarning)
                pivoted = scipy.linalg.lu_factor(matrix, check_finite=False)
        except (scipy.linalg.LinAlgError, scipy.linalg.LinAlgWarning):
            return None
        if not np.all(np.isfinite(pivoted[0])) or np.any(np.diag(pivoted[0]) == 0):
            return None
        return partial(_solve_rows, scipy.linalg.lu_solve, pivoted)

    def top(self, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest of each row and their columns; of equals the earlier first."""
        if k == 1:
            columns = scores.argmax(axis=1)[:, None]
            return np.take_along_axis(scores, columns, axis=1), columns
        if k >= scores.shape[1]:
            columns = np.argsort(-scores, axis=1, kind="stable")
            return np.take_along_axis(scores, columns, axis=1), columns
        columns = np.argpartition(scores, -k, axis=1)[:, -k:]
        least = np.take_along_axis(scores, columns, axis=1).min(axis=1, keepdims=True)
        tied = np.flatnonzero(np.count_nonzero(scores >= least, axis=1) > k)
        if len(tied):  # which of the equals were taken is left to chance: take the first
            columns[tied] = np.argsort(-scores[tied], axis=1, kind="stable")[:, :k]
        columns.sort(axis=1)
        values = np.take_along_axis(scores, columns, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        return np.take_along_axis(values, order, 1), np.take_along_axis(columns, order, 1)


# A function of the module, not a closure: an estimator that holds one must survive pickling.


def _solve_rows(solve: Callable[..., np.ndarray], factor: Any, rows: np.ndarray) -> np.ndarray:
    return solve(factor, rows.T, check_finite=False).T


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
