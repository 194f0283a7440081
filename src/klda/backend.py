"""The few array operations that the engine needs, on the CPU (BLAS) and on a GPU (torch).

Vectors are rows everywhere: samples ``(n, D)``, means ``(M, D)``, weights ``(M, D)``.

A *square* is one ``(D, D)`` array that holds two things at once. Its lower triangle with the
diagonal is the scatter matrix S. Its strict upper triangle is the unit-triangular factor of the
last factorisation, ``S + rho I = U^T diag(pivots) U`` with ``U`` unit upper triangular, whose
diagonal of ones needs no room. So a model at rest holds one square and nothing else of that size.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import scipy.linalg
from scipy.linalg import blas, lapack

from klda._lanes import side_by_side
from klda.errors import KldaError

T = TypeVar("T")
Array = Any  # numpy.ndarray or torch.Tensor, by backend

CACHED_ROWS = 256  # rows a step, where a CPU goes over the same rows several times
BLOCK = 512  # columns a block, where a triangle is walked in blocks
MIRRORED = 256  # rows and columns a block, where a CPU copies one triangle to the other
WORTH_THREADS = 1 << 22  # values; starting threads costs as much as a million


class Backend(Protocol):
    """Array operations of one device and one floating-point type."""

    device: str
    dtype: np.dtype

    def asarray(self, values: Any) -> Array:
        """Return the values as a contiguous array of this backend, copied only if needed."""

    def to_numpy(self, array: Array) -> np.ndarray:
        """Return an array of this backend as a NumPy array."""

    def empty(self, shape: tuple[int, ...]) -> Array:
        """Return an uninitialised array."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return an array of zeros."""

    def copy(self, array: Array) -> Array:
        """Return a copy that shares no memory."""

    def widen(self, array: Array) -> Array:
        """Return the array in double precision."""

    def concatenate(self, arrays: list[Array]) -> Array:
        """Join arrays along the first axis."""

    def index(self, positions: np.ndarray) -> Array:
        """Return integer positions for indexing arrays of this backend."""

    def room(self, n_rows: int, width: int) -> Array | None:
        """Return memory that `cosine_map` may write to again and again, None if it needs none."""

    def cosine_map(
        self,
        rows: Array,
        frequencies: Array,
        phases: Array,
        scale: float,
        room: Array | None = None,
    ) -> Array:
        """Return ``scale * cos(rows frequencies + phases)``, in the room if one is given."""

    def linear(self, rows: Array, weights: Array, biases: Array) -> Array:
        """Return ``rows weights^T + biases``."""

    def sum_of_squares(self, rows: Array) -> float:
        """Return the sum of all squared entries."""

    def subtract_grouped(self, rows: Array, centres: Array, groups: np.ndarray) -> None:
        """Subtract from each row the centre of its group, in place."""

    def group_sums(self, rows: Array, groups: np.ndarray, n_groups: int) -> Array:
        """Sum the rows of each group: ``(n, D)`` and group numbers to ``(n_groups, D)``."""

    def add_gram(self, square: Array, rows: Array, sign: int) -> None:
        """Add ``sign * rows^T rows`` to the lower triangle of a square, in place."""

    def add_lower(self, square: Array, other: Array) -> None:
        """Add the lower triangle of another square, in place."""

    def factorise(self, square: Array, rho: float) -> Array | None:
        """Factor ``S + rho I`` into the strict upper triangle; return pivots, None on failure.

        Meanwhile the diagonal is not that of S: no other thread may read it, and no interrupt may
        come in between.
        """

    def solve(self, square: Array, pivots: Array, rows: Array) -> Array:
        """Return ``rows (S + rho I)^-1`` from the factor in the strict upper triangle."""

    def small_solver(self, matrix: Array, *, definite: bool) -> Callable[[Array], Array] | None:
        """Return ``rows -> rows matrix^-1`` for a small symmetric matrix, None if singular."""

    def softmax(self, scores: Array) -> Array:
        """Return probabilities in double precision, each row summing to one."""

    def shares(self, scores: Array, log_totals: np.ndarray) -> Array:
        """Return ``exp(scores - log_total)`` of each row in double precision."""

    def log_total(self, scores: Array, temperature: float) -> np.ndarray:
        """Return ``log sum exp(scores / temperature)`` of each row in double precision."""

    def top(self, scores: Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest of each row and their columns; of equals the earlier first."""

    def log(self, probabilities: Array) -> Array:
        """Return the logarithm, finite at zero."""

    def each(self, actions: Sequence[Callable[[], T]]) -> list[T]:
        """Run independent actions and return their results in order."""


class NumpyBackend:
    """The engine's operations on the CPU, through BLAS and LAPACK in place."""

    device = "cpu"

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)

    @property
    def _prefix(self) -> str:
        return "s" if self.dtype == np.float32 else "d"

    def _blas(self, name: str) -> Any:
        return getattr(blas, self._prefix + name)

    def _product(self, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Write ``left right`` to contiguous memory, by the BLAS that does the rest of the work.

        NumPy comes with a BLAS of its own, whose threads wait busily for a while after each call
        and would hold up those of SciPy's.
        """
        gemm = self._blas("gemm")
        gemm(1.0, right.T, left.T, beta=0.0, c=out.T, overwrite_c=1)
        return out

    def asarray(self, values: Any) -> np.ndarray:
        """Return the values as a contiguous array, copied only if needed."""
        if is_torch(values):
            values = values.detach().cpu().numpy()
        return np.ascontiguousarray(values, dtype=self.dtype)

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        """Return the array itself."""
        return array

    def empty(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an uninitialised array."""
        return np.empty(shape, self.dtype)

    def zeros(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return an array of zeros."""
        return np.zeros(shape, self.dtype)

    def copy(self, array: np.ndarray) -> np.ndarray:
        """Return a copy that shares no memory."""
        return array.copy()

    def widen(self, array: np.ndarray) -> np.ndarray:
        """Return the array in double precision."""
        return array.astype(np.float64)

    def concatenate(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Join arrays along the first axis."""
        return np.concatenate(arrays)

    def index(self, positions: np.ndarray) -> np.ndarray:
        """Return integer positions for indexing."""
        return positions

    def room(self, n_rows: int, width: int) -> np.ndarray | None:
        """Return memory for rows: what the system gives anew for each block, it clears first."""
        return self.empty((n_rows, width))

    def cosine_map(
        self,
        rows: np.ndarray,
        frequencies: np.ndarray,
        phases: np.ndarray,
        scale: float,
        room: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return ``scale * cos(rows frequencies + phases)``, in the room if one is given."""
        room = self.empty((len(rows), frequencies.shape[1])) if room is None else room[: len(rows)]
        mapped = self._product(rows, frequencies, room)
        factor = self.dtype.type(scale)

        def turn(start: int, stop: int) -> None:
            part = mapped[start:stop]
            part += phases
            np.cos(part, out=part)
            part *= factor

        _in_threads(turn, len(mapped), CACHED_ROWS, mapped.size)
        return mapped

    def linear(self, rows: np.ndarray, weights: np.ndarray, biases: np.ndarray) -> np.ndarray:
        """Return ``rows weights^T + biases``."""
        scores = rows @ weights.T
        scores += biases
        return scores

    def sum_of_squares(self, rows: np.ndarray) -> float:
        """Return the sum of all squared entries."""
        flat = np.ravel(rows)
        return float(self._blas("dot")(flat, flat))

    def subtract_grouped(self, rows: np.ndarray, centres: np.ndarray, groups: np.ndarray) -> None:
        """Subtract from each row the centre of its group, in place."""
        for start in range(0, len(rows), CACHED_ROWS):
            stop = start + CACHED_ROWS
            rows[start:stop] -= centres[groups[start:stop]]

    def group_sums(self, rows: np.ndarray, groups: np.ndarray, n_groups: int) -> np.ndarray:
        """Sum the rows of each group."""
        # A sparse indicator matrix sums in one pass over the rows, with no loop over groups.
        n = len(groups)
        indicator = scipy.sparse.csr_array(
            (np.ones(n, self.dtype), (groups, np.arange(n))), shape=(n_groups, n)
        )
        return np.asarray(indicator @ rows)

    def add_gram(self, square: np.ndarray, rows: np.ndarray, sign: int) -> None:
        """Add ``sign * rows^T rows`` to the lower triangle, by one symmetric rank-k update."""
        # The transpose of a C-ordered array is the Fortran-ordered one that BLAS updates in place;
        # there the lower triangle is the upper one.
        self._blas("syrk")(
            float(sign), rows.T, beta=1.0, c=square.T, trans=0, lower=0, overwrite_c=1
        )

    def add_lower(self, square: np.ndarray, other: np.ndarray) -> None:
        """Add the lower triangle of another square, in place."""
        for i in range(len(square)):
            square[i, : i + 1] += other[i, : i + 1]

    def factorise(self, square: np.ndarray, rho: float) -> np.ndarray | None:
        """Factor ``S + rho I`` into the strict upper triangle; None if not positive definite.

        In place: S is mirrored into the upper triangle and factored there. The two triangles
        share the diagonal, which is put back at the end.
        """
        n = len(square)

        def mirror(start: int, stop: int) -> None:
            square[start:stop, stop:] = square[stop:, start:stop].T
            corner = square[start:stop, start:stop]
            np.copyto(corner, np.tril(corner) + np.tril(corner, -1).T)

        def make_unit(start: int, stop: int) -> None:
            scale = 1 / roots[start:stop, None]
            square[start:stop, stop:] *= scale
            corner = square[start:stop, start:stop]
            np.copyto(corner, np.tril(corner) + np.triu(corner, 1) * scale)

        _in_threads(mirror, n, MIRRORED, n * n)
        diagonal = np.einsum("ii->i", square)
        of_scatter = diagonal.copy()
        diagonal += self.dtype.type(rho)
        # The upper triangle of a C-ordered array is the lower one of its transpose.
        potrf = getattr(lapack, self._prefix + "potrf")
        _, info = potrf(square.T, lower=1, clean=0, overwrite_a=1)
        roots = diagonal.copy()
        diagonal[:] = of_scatter
        if info != 0 or not np.all(np.isfinite(roots)) or np.any(roots <= 0):
            return None
        _in_threads(make_unit, n, MIRRORED, n * n)
        return roots**2

    def solve(self, square: np.ndarray, pivots: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return ``rows (S + rho I)^-1`` by two unit-triangular solves."""
        trsm = self._blas("trsm")
        solved = np.array(rows, dtype=self.dtype, order="C")
        trsm(1.0, square.T, solved.T, side=0, lower=1, trans_a=0, diag=1, overwrite_b=1)
        solved /= pivots
        trsm(1.0, square.T, solved.T, side=0, lower=1, trans_a=1, diag=1, overwrite_b=1)
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

    def softmax(self, scores: np.ndarray) -> np.ndarray:
        """Return probabilities in double precision, each row summing to one."""
        shifted = np.asarray(scores, dtype=np.float64)
        shifted = shifted - shifted.max(axis=1, keepdims=True)
        np.exp(shifted, out=shifted)
        shifted /= shifted.sum(axis=1, keepdims=True)
        return shifted

    def shares(self, scores: np.ndarray, log_totals: np.ndarray) -> np.ndarray:
        """Return ``exp(scores - log_total)`` of each row in double precision."""
        return np.exp(np.asarray(scores, dtype=np.float64) - log_totals[:, None])

    def log_total(self, scores: np.ndarray, temperature: float) -> np.ndarray:
        """Return ``log sum exp(scores / temperature)`` of each row in double precision."""
        largest = scores.max(axis=1).astype(np.float64)
        shifted = scores - largest[:, None]
        shifted /= temperature
        np.exp(shifted, out=shifted)
        return np.asarray(largest / temperature + np.log(shifted.sum(axis=1)))

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

    def log(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the logarithm, finite at zero."""
        return np.log(np.maximum(probabilities, np.finfo(np.float64).tiny))

    def each(self, actions: Sequence[Callable[[], T]]) -> list[T]:
        """Run actions one after another: each keeps all cores busy, and scratch is shared."""
        return [action() for action in actions]


class TorchBackend:
    """The engine's operations on a torch device; nothing leaves the device in between.

    Matrix products follow torch's own precision setting: float32 unless the user allows TF32
    with ``torch.set_float32_matmul_precision("high")``.
    """

    def __init__(self, device: str, dtype: str) -> None:
        import torch

        self.device = device
        self.dtype = np.dtype(dtype)
        self._options = {"dtype": getattr(torch, dtype), "device": torch.device(device)}

    @property
    def _torch(self) -> Any:
        return sys.modules["torch"]

    def asarray(self, values: Any) -> Array:
        """Return the values as a contiguous tensor on the device."""
        if not is_torch(values):
            values = self._torch.from_numpy(np.ascontiguousarray(values))
        return values.detach().to(**self._options).contiguous()

    def to_numpy(self, array: Array) -> np.ndarray:
        """Return a tensor as a NumPy array."""
        return np.asarray(array.cpu().numpy())

    def empty(self, shape: tuple[int, ...]) -> Array:
        """Return an uninitialised tensor."""
        return self._torch.empty(shape, **self._options)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return a tensor of zeros."""
        return self._torch.zeros(shape, **self._options)

    def copy(self, array: Array) -> Array:
        """Return a copy that shares no memory."""
        return array.clone()

    def widen(self, array: Array) -> Array:
        """Return the tensor in double precision."""
        return array.double()

    def concatenate(self, arrays: list[Array]) -> Array:
        """Join tensors along the first axis."""
        return self._torch.cat(arrays)

    def index(self, positions: np.ndarray) -> Array:
        """Return integer positions as a tensor on the device."""
        return self._torch.as_tensor(np.asarray(positions, np.int64), device=self.device)

    def room(self, n_rows: int, width: int) -> Array | None:
        """Return None: torch keeps freed memory for the next block itself."""
        return None

    def cosine_map(
        self,
        rows: Array,
        frequencies: Array,
        phases: Array,
        scale: float,
        room: Array | None = None,
    ) -> Array:
        """Return ``scale * cos(rows frequencies + phases)``."""
        return self._torch.addmm(phases, rows, frequencies).cos_().mul_(scale)

    def linear(self, rows: Array, weights: Array, biases: Array) -> Array:
        """Return ``rows weights^T + biases``."""
        return self._torch.addmm(biases, rows, weights.T)

    def sum_of_squares(self, rows: Array) -> float:
        """Return the sum of all squared entries."""
        return float(self._torch.linalg.vector_norm(rows)) ** 2

    def subtract_grouped(self, rows: Array, centres: Array, groups: np.ndarray) -> None:
        """Subtract from each row the centre of its group, in place."""
        rows -= centres[self.index(groups)]

    def group_sums(self, rows: Array, groups: np.ndarray, n_groups: int) -> Array:
        """Sum the rows of each group."""
        return self.zeros((n_groups, rows.shape[1])).index_add_(0, self.index(groups), rows)

    def add_gram(self, square: Array, rows: Array, sign: int) -> None:
        """Add ``sign * rows^T rows`` to the lower triangle, block row by block row."""
        # The faster the products, the more it costs to start them.
        exact = self._torch.get_float32_matmul_precision() == "highest"
        height = BLOCK if exact else 2 * BLOCK
        for start in range(0, len(square), height):
            stop = min(start + height, len(square))
            here = rows[:, start:stop].T
            square[start:stop, :start].addmm_(here, rows[:, :start], alpha=sign)
            # The corner's upper half belongs to the factor.
            square[start:stop, start:stop].add_((here @ here.T).tril_(), alpha=sign)

    def add_lower(self, square: Array, other: Array) -> None:
        """Add the lower triangle of another square, in place."""
        square += other.tril()

    def factorise(self, square: Array, rho: float) -> Array | None:
        """Factor ``S + rho I`` into the strict upper triangle; None if not positive definite."""
        torch = self._torch
        diagonal = square.diagonal()
        of_scatter = diagonal.clone()
        diagonal += rho
        factor, info = torch.linalg.cholesky_ex(square)
        roots = factor.diagonal().clone()
        done = int(info) == 0 and bool(torch.isfinite(roots).all())
        if done:
            factor /= roots
            square.tril_().add_(factor.T)
        diagonal.copy_(of_scatter)
        return roots.square() if done else None

    def solve(self, square: Array, pivots: Array, rows: Array) -> Array:
        """Return ``rows (S + rho I)^-1`` by two unit-triangular solves."""
        triangular = self._torch.linalg.solve_triangular
        solved = triangular(square.T, rows.T, upper=False, unitriangular=True)
        solved = triangular(square, solved / pivots[:, None], upper=True, unitriangular=True)
        return solved.T.contiguous()

    def small_solver(self, matrix: Array, *, definite: bool) -> Callable[[Array], Array] | None:
        """Return ``rows -> rows matrix^-1`` for a small symmetric matrix, None if singular."""
        linalg = self._torch.linalg
        if definite:
            factor, info = linalg.cholesky_ex(matrix)
            if int(info) != 0:
                return None
            return partial(_cholesky_solve_tensor, factor)
        pivoted, pivots, info = linalg.lu_factor_ex(matrix)
        if int(info) != 0:
            return None
        return partial(_lu_solve_tensor, pivoted, pivots)

    def softmax(self, scores: Array) -> Array:
        """Return probabilities in double precision, each row summing to one."""
        return self._torch.softmax(scores, dim=1, dtype=self._torch.float64)

    def shares(self, scores: Array, log_totals: np.ndarray) -> Array:
        """Return ``exp(scores - log_total)`` of each row in double precision."""
        totals = self._torch.as_tensor(log_totals, device=self.device)
        return (scores.double() - totals[:, None]).exp_()

    def log_total(self, scores: Array, temperature: float) -> np.ndarray:
        """Return ``log sum exp(scores / temperature)`` of each row in double precision."""
        return self.to_numpy(self._torch.logsumexp(scores.double() / temperature, dim=1))

    def top(self, scores: Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the k largest of each row and their columns; of equals the earlier first."""
        k = min(k, scores.shape[1])
        if k == 1:  # of equals, torch has the first, too
            values, columns = scores.max(dim=1, keepdim=True)
            return self.to_numpy(values), self.to_numpy(columns)
        values, columns = scores.topk(k, dim=1)
        tied = ((scores >= values[:, -1:]).sum(dim=1) > k).nonzero()[:, 0]
        if len(tied):  # which of the equals were taken is left to chance: take the first
            order = scores[tied].argsort(dim=1, descending=True, stable=True)
            columns[tied] = order[:, :k]
        columns = columns.sort(dim=1).values
        values, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
        return self.to_numpy(values), self.to_numpy(columns.gather(1, order))

    def log(self, probabilities: Array) -> Array:
        """Return the logarithm, finite at zero."""
        return probabilities.clamp_min(float(np.finfo(np.float64).tiny)).log()

    def each(self, actions: Sequence[Callable[[], T]]) -> list[T]:
        """Run actions side by side on a GPU, each in a stream of its own."""
        if len(actions) == 1 or not self.device.startswith("cuda"):
            return [action() for action in actions]
        return side_by_side(self.device, actions)


def _in_threads(action: Callable[[int, int], None], n_rows: int, step: int, n_values: int) -> None:
    """Do something to all rows, a few at a time; where there are many values, on all cores.

    BLAS has threads of its own; what NumPy does to each value has not.
    """
    starts = range(0, n_rows, step)
    n_threads = min(_n_cores(), len(starts)) if n_values >= WORTH_THREADS else 1
    if n_threads == 1:
        for start in starts:
            action(start, min(start + step, n_rows))
        return
    with ThreadPoolExecutor(n_threads) as pool:
        stops = [min(start + step, n_rows) for start in starts]
        for _ in pool.map(action, starts, stops):  # raises what an action raised
            pass


def _n_cores() -> int:
    """Cores that this process may use; as for BLAS, OMP_NUM_THREADS asks for fewer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores or 1, int(wanted)) if wanted.isdigit() and int(wanted) else cores or 1


# Functions of the module, not closures: an estimator that holds one must survive pickling.


def _solve_rows(solve: Callable[..., np.ndarray], factor: Any, rows: np.ndarray) -> np.ndarray:
    return solve(factor, rows.T, check_finite=False).T


def _cholesky_solve_tensor(factor: Array, rows: Array) -> Array:
    import torch

    return torch.cholesky_solve(rows.T, factor).T.contiguous()


def _lu_solve_tensor(factor: Array, pivots: Array, rows: Array) -> Array:
    import torch

    return torch.linalg.lu_solve(factor, pivots, rows.T).T.contiguous()


def is_torch(values: Any) -> bool:
    """Whether the values are a torch tensor, found out without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def choose_backend(device: str, dtype: str, values: Any = None) -> Backend:
    """Return the backend for a device.

    Parameters
    ----------
    device : str
        ``"cpu"``, a torch device such as ``"cuda"`` or ``"cuda:1"``, or ``"auto"``: the device of
        ``values`` if they are a tensor on a GPU, else the GPU if torch is already imported and
        sees one, else the CPU.
    dtype : str
        ``"float32"`` or ``"float64"``.
    values : array-like, optional
        The first input, whose device ``"auto"`` follows.
    """
    if dtype not in ("float32", "float64"):
        raise KldaError(f"dtype={dtype!r} is not known; use 'float32' or 'float64'.")
    if device == "auto":
        device = _automatic_device(values)
    if device == "cpu":
        return NumpyBackend(dtype)
    return TorchBackend(_checked_device(device), dtype)


def _automatic_device(values: Any) -> str:
    if is_torch(values):
        return "cpu" if values.device.type == "cpu" else str(values.device)
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"


def _checked_device(device: str) -> str:
    from klda._optional import require

    torch = require("torch", "text")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise KldaError(
            f"device={device!r} can't be used ({str(error).splitlines()[0]}); "
            "use 'cpu', 'auto', or a device that torch sees."
        ) from error
    return device
