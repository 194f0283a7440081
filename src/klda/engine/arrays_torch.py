"""The engine's operations on a torch device."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from klda.engine.arrays import Array, is_torch
from klda.errors import KldaError, require

BLOCK = 512  # columns per block, where a triangle is computed in blocks
SUMMED = 256  # rows that one thread adds up


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
            square[start:stop, start:stop].add_(corner, alpha=sign)

    def factorise(self, square: Array, rho: float) -> Array | None:
        """Return the lower triangular L of ``S + rho I = L L^T``; None if that is not definite."""
        shifted = square.clone()
        shifted.diagonal().add_(rho)
        factor, info = self.xp.linalg.cholesky_ex(shifted)  # reads the lower triangle alone
        return factor if int(info) == 0 and np.isfinite(float(factor.diagonal().sum())) else None

    def solve(self, factor: Array, rows: Array) -> Array:
        """Return ``rows (S + rho I)^-1`` from the factor."""
        return self.xp.cholesky_solve(rows.T, factor).T.contiguous()

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


# Functions of the module, not closures: an estimator that holds one must survive pickling.


def _cholesky_solve_tensor(factor: Array, rows: Array) -> Array:
    import torch

    return torch.cholesky_solve(rows.T, factor).T.contiguous()


def _lu_solve_tensor(factor: Array, pivots: Array, rows: Array) -> Array:
    import torch

    return torch.linalg.lu_solve(factor, pivots, rows.T).T.contiguous()
