"""The engine's operations on a torch device."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from klda.engine.arrays import Array, T, is_torch, one_blas_thread
from klda.errors import KldaError, require

BLOCK = 512  # columns per block, where a triangle is computed in blocks
SOLVED_AT_ONCE = 1024  # unknowns, at most, that a product with an inverted block gives
SUMMED = 256  # rows that one thread adds up

_STREAMS: dict[str, list[Any]] = {}
_MAKING_STREAMS = threading.Lock()


@dataclass
class TorchFactor:
    """What solving needs beside the factor in a square."""

    pivots: Array
    used: bool = False
    inverses: Array | None = None  # of the blocks on the diagonal, made when it is used again


class TorchBackend:
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
        self.device = device
        self.dtype = np.dtype(dtype)
        self._options = {"dtype": getattr(torch, dtype), "device": torch.device(device)}

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
        return self._moved(values.detach()).to(**self._options).contiguous()

    def _moved(self, values: Array) -> Array:
        """Move values to the device, without waiting for it where nobody can tell.

        Ordinary memory has been read when the call returns; pinned memory may be read later.
        """
        device = self._options["device"]
        if device.type != "cuda" or values.device.type == "cuda":
            return values.to(device)
        return values.to(device, non_blocking=not values.is_pinned())

    def to_numpy(self, array: Array, dtype: Any = None) -> np.ndarray:
        """Return a tensor as a NumPy array."""
        return np.asarray(array.cpu().numpy(), dtype)

    def empty(self, shape: tuple[int, ...]) -> Array:
        """Return an uninitialised tensor."""
        return self.xp.empty(shape, **self._options)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return a tensor of zeros."""
        return self.xp.zeros(shape, **self._options)

    def copy(self, array: Array) -> Array:
        """Return a copy that shares no memory."""
        return array.clone()

    def concatenate(self, arrays: list[Array]) -> Array:
        """Join tensors along the first axis."""
        return self.xp.cat(arrays)

    def index(self, positions: np.ndarray) -> Array:
        """Return integer positions as a tensor on the device."""
        return self._moved(self.xp.from_numpy(np.ascontiguousarray(positions, np.int64)))

    def cosine_map(
        self,
        rows: Array,
        frequencies: Array,
        phases: Array,
        scale: float,
        room: Array | None = None,
    ) -> Array:
        """Return ``scale * cos(rows frequencies + phases)``, in the room if one is given."""
        out = None if room is None else room[: len(rows)]
        return self.xp.addmm(phases, rows, frequencies, out=out).cos_().mul_(scale)

    def linear(self, rows: Array, weights: Array, biases: Array | None = None) -> Array:
        """Return ``rows weights^T``, plus biases if there are any."""
        if biases is None:
            return rows @ weights.T
        return self.xp.addmm(biases, rows, weights.T)

    def sum_of_squares(self, rows: Array) -> Array:
        """Return the sum of all squared entries, on the device."""
        return self.xp.linalg.vector_norm(rows).double().square()

    def class_sums(self, rows: Array, counts: np.ndarray) -> Array:
        """Sum rows that come class by class.

        Adding up in any order, as ``index_add_`` does, is not deterministic: each class is summed
        in parts, a part by a thread per column.
        """
        n_parts = -(-counts // SUMMED)
        lengths = np.full(n_parts.sum(), SUMMED)
        lengths[np.cumsum(n_parts) - 1] += counts - n_parts * SUMMED
        for sizes in (lengths, n_parts):
            at = self.index(sizes)
            rows = self.xp.segment_reduce(rows, "sum", lengths=at, axis=0, unsafe=True)
        return rows

    def centre(self, rows: Array, centres: Array, counts: np.ndarray) -> None:
        """Subtract from each row the centre of its class, in place; rows as for `class_sums`."""
        rows -= centres[self.index(np.repeat(np.arange(len(counts)), counts))]

    def add_gram(self, square: Array, rows: Array, sign: int) -> None:
        """Add ``sign * rows^T rows`` to the lower triangle, block row by block row."""
        # The faster the products, the more it costs to start them.
        exact = self.xp.get_float32_matmul_precision() == "highest"
        height = 4 * BLOCK if len(rows) < BLOCK else BLOCK if exact else 2 * BLOCK
        # All the memory it takes, before anything changes.
        room = square.new_empty((height, height))
        for start in range(0, len(square), height):
            stop = min(start + height, len(square))
            here = rows[:, start:stop].T
            square[start:stop, :start].addmm_(here, rows[:, :start], alpha=sign)
            corner = room[: stop - start, : stop - start]
            self.xp.mm(here, here.T, out=corner)
            # The corner's upper half belongs to the factor.
            square[start:stop, start:stop].add_(corner.tril_(), alpha=sign)

    def add_lower(self, square: Array, other: Array) -> None:
        """Add the lower triangle of another square, in place."""
        square += other.tril()

    def factorise(self, square: Array, rho: float) -> TorchFactor | None:
        """Factor ``S + rho I`` into the strict upper triangle; None if not positive definite."""
        torch = self.xp
        diagonal = square.diagonal()
        of_scatter = diagonal.clone()
        diagonal += rho
        try:
            factor, info = torch.linalg.cholesky_ex(square)
        finally:  # it may run out of memory
            diagonal.copy_(of_scatter)
        roots = factor.diagonal().clone()
        if int(info) != 0 or not np.isfinite(float(roots.sum())):
            return None
        factor.div_(roots)
        square.tril_().add_(factor.T)
        diagonal.copy_(of_scatter)
        return TorchFactor(roots.square())

    def solve(self, square: Array, factor: TorchFactor, rows: Array) -> Array:
        """Return ``rows (S + rho I)^-1`` by two unit-triangular solves.

        The first time by substitution. Those who solve with the same factor again do it block by
        block, with inverted blocks on the diagonal: a third of the time, once they are there.
        """
        if not factor.used:
            factor.used = True
            triangular = self.xp.linalg.solve_triangular
            solved = triangular(square.T, rows.T, upper=False, unitriangular=True)
            solved /= factor.pivots[:, None]
            solved = triangular(square, solved, upper=True, unitriangular=True)
            return solved.T.contiguous()
        if factor.inverses is None:
            factor.inverses = _inverted_blocks(square)
        n, size = len(square), factor.inverses.shape[1]
        blocks = [slice(start, min(start + size, n)) for start in range(0, n, size)]
        inverses = [
            inverse[: here.stop - here.start, : here.stop - here.start]
            for here, inverse in zip(blocks, factor.inverses, strict=True)
        ]
        left, found = rows.T.contiguous(), []
        for here, inverse in zip(blocks, inverses, strict=True):
            found.append(inverse.T @ left[here])
            left[here.stop :].addmm_(square[here, here.stop :].T, found[-1], alpha=-1)
        left, found = self.xp.cat(found).div_(factor.pivots[:, None]), []
        for here, inverse in zip(blocks[::-1], inverses[::-1], strict=True):
            found.append(inverse @ left[here])
            left[: here.start].addmm_(square[: here.start, here], found[-1], alpha=-1)
        return self.xp.cat([part.T for part in found[::-1]], dim=1)

    def small_solver(self, matrix: Array, *, definite: bool) -> Callable[[Array], Array] | None:
        """Return ``rows -> rows matrix^-1`` for a small symmetric matrix, None if singular."""
        linalg = self.xp.linalg
        if definite:
            factor, info = linalg.cholesky_ex(matrix)
            if int(info) != 0:
                return None
            return partial(_cholesky_solve_tensor, factor)
        pivoted, pivots, info = linalg.lu_factor_ex(matrix)
        if int(info) != 0:
            return None
        return partial(_lu_solve_tensor, pivoted, pivots)

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

    def small_work_on_host(self) -> AbstractContextManager[None]:
        """Return a block in which BLAS uses one thread.

        Its other threads wait busily after each call, and take the processor from the one thread
        that feeds the GPU.
        """
        return one_blas_thread()

    def side_by_side(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Do independent jobs, on a GPU in a thread and a stream each.

        One member's factorisation leaves most of a GPU idle; the work of other members fills it.
        """
        if len(jobs) == 1 or not self.device.startswith("cuda"):
            return [job() for job in jobs]
        cuda = self.xp.cuda
        caller, streams = cuda.current_stream(self.device), _streams(self.device, len(jobs))

        def work(job: Callable[[], T], stream: Any) -> T:
            stream.wait_stream(caller)  # for what was queued before
            with cuda.stream(stream):
                return job()

        try:
            with ThreadPoolExecutor(len(jobs)) as pool:
                return list(pool.map(work, jobs, streams))
        finally:
            for stream in streams:
                caller.wait_stream(stream)


def _inverted_blocks(square: Array) -> Array:
    """Return the inverses of the diagonal blocks of the factor in the strict upper triangle.

    All have the same size; if need be, the last one has more ones on the diagonal. The halves of a
    block are inverted by substitution:
    ``[[A, B], [0, C]]^-1 = [[A^-1, -A^-1 B C^-1], [0, C^-1]]``.
    """
    torch, n = sys.modules["torch"], len(square)
    n_blocks = -(-n // SOLVED_AT_ONCE)
    half = -(-n // (2 * n_blocks))
    missing = 2 * half * n_blocks - n
    if missing:
        square = torch.nn.functional.pad(square, (0, missing, 0, missing))
    down, right = square.stride()
    halves = square.as_strided((2 * n_blocks, half, half), (half * (down + right), down, right))
    aside = square[:, half:].as_strided(
        (n_blocks, half, half), (2 * half * (down + right), down, right)
    )
    ones = torch.eye(half, dtype=square.dtype, device=square.device).expand_as(halves)
    inverses = torch.linalg.solve_triangular(halves, ones, upper=True, unitriangular=True)
    first, second = inverses[::2], inverses[1::2]
    blocks = square.new_zeros((n_blocks, 2 * half, 2 * half))
    blocks[:, :half, :half], blocks[:, half:, half:] = first, second
    blocks[:, :half, half:] = -first @ aside @ second
    return blocks


def _streams(device: str, n: int) -> list[Any]:
    """Return streams of a device, which last as long as the process.

    torch keeps freed memory for the stream that used it: new streams would take new memory.
    """
    torch = sys.modules["torch"]
    with _MAKING_STREAMS:
        streams = _STREAMS.setdefault(device, [])
        if not streams:  # torch loads its solvers when first used, and fails if two threads do
            torch.linalg.cholesky_ex(torch.eye(1, device=device))
        while len(streams) < n:
            streams.append(torch.cuda.Stream(device))
        return streams[:n]


# Functions of the module, not closures: an estimator that holds one must survive pickling.


def _cholesky_solve_tensor(factor: Array, rows: Array) -> Array:
    import torch

    return torch.cholesky_solve(rows.T, factor).T.contiguous()


def _lu_solve_tensor(factor: Array, pivots: Array, rows: Array) -> Array:
    import torch

    return torch.linalg.lu_solve(factor, pivots, rows.T).T.contiguous()
