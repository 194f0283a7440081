"""What the engine asks of a backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")
Array = Any  # numpy.ndarray or torch.Tensor, by backend
Steps = Generator[None, None, T]  # work that says ``yield`` where it would wait for a GPU


class Grouping(Protocol):
    """Which group each row belongs to, as a backend needs it.

    Attributes
    ----------
    counts : ndarray of shape (n_groups,)
        Rows of each group.
    """

    counts: np.ndarray

    def __len__(self) -> int:
        """Return the number of rows."""

    def sums(self, rows: Array) -> Array:
        """Sum the rows of each group: ``(n, D)`` to ``(n_groups, D)``."""

    def subtract(self, rows: Array, centres: Array) -> None:
        """Subtract from each row the centre of its group, in place."""


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

    def linear(self, rows: Array, weights: Array, biases: Array | None = None) -> Array:
        """Return ``rows weights^T``, plus biases if there are any."""

    def sum_of_squares(self, rows: Array) -> Any:
        """Return the sum of all squared entries: a number, or a scalar still on the device."""

    def grouping(self, groups: np.ndarray, n_groups: int) -> Grouping:
        """Return what sums by group need to know, once for all who sum such rows."""

    def add_gram(self, square: Array, rows: Array, sign: int) -> None:
        """Add ``sign * rows^T rows`` to the lower triangle of a square, in place."""

    def add_lower(self, square: Array, other: Array) -> None:
        """Add the lower triangle of another square, in place."""

    def factorise(self, square: Array, rho: float) -> Callable[[], Array | None]:
        """Factor ``S + rho I`` into the strict upper triangle.

        Returns what finishes it: that gives the pivots, None on failure. In between, a GPU may do
        other work. Within either call the diagonal is not that of S: no other thread may read it,
        and no interrupt may come.
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

    def each(self, jobs: Sequence[Steps[T]]) -> list[T]:
        """Do independent jobs and return their results in order."""


def is_torch(values: Any) -> bool:
    """Whether the values are a torch tensor, found out without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def in_order(jobs: Sequence[Steps[T]]) -> list[T]:
    """Do jobs one after another, each to its end."""
    return [_result(job) for job in jobs]


def _result(job: Steps[T]) -> T:
    while True:
        try:
            next(job)
        except StopIteration as end:
            return end.value
