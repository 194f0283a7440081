"""What a model knows: for each class a count and a mean, for all classes one scatter matrix.

Learning, removing and merging are exact: the statistics do not depend on how the samples were
ordered, batched or mixed. A class that has ``n1`` samples with mean ``mu`` and gets ``n2`` more
with mean ``m`` adds ``sum (z - c)(z - c)^T`` to the scatter, where

    c = m - sqrt(n1 / (n1 + n2)) * (m - mu)

because ``sum (z - c)(z - c)^T = sum (z - m)(z - m)^T + n2 (m - c)(m - c)^T``, and the last term is
then the ``n1 n2 / (n1 + n2) * (m - mu)(m - mu)^T`` of Chan, Golub and LeVeque (1979). So a batch
of n samples changes the scatter by n rows, whatever classes it holds, and taking the samples away
takes the same rows away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Backend
from klda.labels import Label

CLASSES_AT_ONCE = 4096  # so that passing over all means makes no second copy of them


class GrowingRows:
    """Rows in one array with spare capacity, doubled when full.

    Attributes
    ----------
    values : array of shape (n, width)
        The rows, a view.
    """

    def __init__(self, width: int, backend: Backend) -> None:
        self.backend = backend
        self._nothing: Array = backend.empty((0, width))
        self._buffer = self.values = self._nothing

    def extend(self, n: int) -> Array:
        """Append n uninitialised rows and return the view of them."""
        known, needed = len(self.values), len(self.values) + n
        if needed > len(self._buffer):
            grown = self.backend.empty((max(needed, 2 * known), self._buffer.shape[1]))
            grown[:known] = self.values
            self._buffer = grown
        self.values = self._buffer[:needed]
        return self._buffer[known:needed]

    def replace(self, values: Array) -> None:
        """Hold these rows instead; they are taken over, not copied."""
        self._buffer = self.values = values

    def clear(self) -> None:
        """Hold no rows; this takes no memory and so can't fail."""
        self.replace(self._nothing)


class ClassStatistics:
    """Counts, means and scatter of the classes learned so far, in the order they first came.

    Attributes
    ----------
    labels : list
        The classes.
    positions : dict
        Where each is in ``labels``.
    counts : ndarray of shape (M,)
        Samples of each class.
    with_scatter : bool
        Whether there is a scatter; else counts and means are enough.
    n_scattered : int
        Samples behind the scatter; it keeps those of classes that were dropped.
    turnover : float, or a scalar still on the device
        Sum of squares of every row ever added to the scatter or removed: what rounding errors are
        relative to.
    """

    def __init__(self, n_components: int, backend: Backend, *, with_scatter: bool = True) -> None:
        self.backend = backend
        self.n_components = n_components
        self.labels: list[Label] = []
        self.positions: dict[Label, int] = {}
        self.counts = np.empty(0, np.int64)
        self.with_scatter = with_scatter
        self.n_scattered = 0
        self.turnover: Any = 0.0
        self._square: Array = None  # made when there is something in the scatter
        self._means = GrowingRows(n_components, backend)
        self._order: np.ndarray | None = None

    @property
    def means(self) -> Array:
        """Class means, one row per class."""
        return self._means.values

    @property
    def square(self) -> Array:
        """The scatter S in the lower triangle of a ``(D, D)`` array, see `klda.engine.arrays`."""
        if self._square is None:
            self._square = self.backend.zeros((self.n_components, self.n_components))
        return self._square

    def trace(self) -> float:
        """Return the sum of the diagonal of S."""
        return float(self.backend.to_numpy(self.square.diagonal(), np.float64).sum())

    def scatter(self) -> np.ndarray:
        """Return the full symmetric matrix S."""
        lower = np.tril(self.backend.to_numpy(self.square))
        return np.asarray(lower + np.tril(lower, -1).T)

    def _scatter_rows(self, rows: Array, sign: int) -> None:
        """Add or remove the outer products of rows."""
        turnover = self.turnover + self.backend.sum_of_squares(rows)
        self.backend.add_gram(self.square, rows, sign)
        self.turnover = turnover

    @property
    def order(self) -> np.ndarray:
        """Positions of the classes in the order of their sorted labels."""
        if self._order is None:
            by_label = sorted(range(len(self.labels)), key=self.labels.__getitem__)
            self._order = np.array(by_label, np.int64)
        return self._order

    def locate(self, labels: Sequence[Label]) -> np.ndarray:
        """Return the positions of known labels."""
        return np.array([self.positions[label] for label in labels], np.int64)

    def change(self, rows: Array, batch: np.ndarray, labels: Sequence[Label], sign: int) -> Array:
        """Add (``sign=+1``) or remove (``sign=-1``) samples that come class by class.

        ``batch`` says how many there are of each class, in the order of ``labels``.

        All of it happens, or nothing if memory runs out. A class without samples left is dropped.

        Returns
        -------
        array of shape (n, D)
            The rows by which the scatter changed; in place of ``rows``, which is overwritten.
        """
        known = len(self.labels)
        try:
            self._admit([label for label in labels if label not in self.positions])
            self._change(rows, batch, self.locate(labels), sign)
        except BaseException:
            self._restore(self.labels[:known], self.counts[:known], self.means[:known])
            raise
        if sign < 0 and self.n_scattered <= len(self.labels):
            self._square, self.turnover = None, 0.0  # zero by definition: leave no rounding errors
        return rows

    def _change(self, rows: Array, batch: np.ndarray, here: np.ndarray, sign: int) -> None:
        at, before = self.backend.index(here), self.counts[here]
        old = self.means[at]
        moved, after, centres = self._moved(rows, batch, old, before, sign)
        if self.with_scatter:
            self.backend.centre(rows, centres, batch)
        self.means[at], self.counts[here] = moved, after
        try:
            drop = self.prepare_drop([self.labels[i] for i in here[after == 0]])
            if self.with_scatter:
                self._scatter_rows(rows, sign)
        except BaseException:
            self.means[at], self.counts[here] = old, before
            raise
        self.n_scattered += sign * len(rows)
        drop()

    def _moved(
        self, rows: Array, batch: np.ndarray, old: Array, before: np.ndarray, sign: int
    ) -> tuple[Array, np.ndarray, Array]:
        """Compute a change of means and counts: the new ones, and what to centre rows on."""
        after = before + sign * batch
        # Without the batch (n1 = before when adding, after when removing) and with it:
        without, whole = (before, after) if sign > 0 else (after, before)
        factors = [batch, sign * batch / np.maximum(after, 1), np.sqrt(without / whole)]
        size, weight, pull = self.backend.asarray(np.stack(factors)[:, :, None])
        batch_means = self.backend.class_sums(rows, batch)
        batch_means /= size
        gap = batch_means - old
        means = old + gap * weight
        distance = gap if sign > 0 else batch_means - means
        return means, after, batch_means - pull * distance

    def rows_of_removal(self, rows: Array, batch: np.ndarray, labels: Sequence[Label]) -> Array:
        """Return the rows that removing samples would remove from the scatter.

        Nothing changes but ``rows``, which is overwritten.
        """
        here = self.locate(labels)
        old = self.means[self.backend.index(here)]
        centres = self._moved(rows, batch, old, self.counts[here], -1)[2]
        self.backend.centre(rows, centres, batch)
        return rows

    def merge(self, other: ClassStatistics) -> None:
        """Add all that another model learned."""
        self._admit([label for label in other.labels if label not in self.positions])
        here = self.locate(other.labels)
        if other._square is not None:
            self.backend.add_lower(self.square, self.backend.asarray(other._square))
            self.turnover = self.turnover + float(other.turnover)
        for part in class_blocks(len(here)):
            self._merge_means(here[part], other.means[part], other.counts[part])
        self.n_scattered += other.n_scattered

    def _merge_means(self, here: np.ndarray, means: Array, counts: np.ndarray) -> None:
        before, after = self.counts[here], self.counts[here] + counts
        at = self.backend.index(here)
        shift = self.backend.asarray(means) - self.means[at]
        both = np.flatnonzero(before)
        if self.with_scatter and len(both):
            weights = np.sqrt(before * (counts / after))
            chosen = self.backend.index(both)
            scaled = shift[chosen] * self.backend.asarray(weights[both, None])
            self._scatter_rows(scaled, 1)
        self.means[at] += shift * self.backend.asarray((counts / after)[:, None])
        self.counts[here] = after

    def prepare_drop(self, labels: Sequence[Label]) -> Callable[[], None]:
        """Return a callable that drops classes from the answers.

        All memory is allocated now, so the call can't fail. What the classes left in the scatter
        stays.
        """
        if not labels:
            return lambda: None
        gone = set(self.locate(labels).tolist())
        kept = np.array([i for i in range(len(self.labels)) if i not in gone], np.int64)
        means, counts = self.means[self.backend.index(kept)], self.counts[kept]
        return partial(self._restore, [self.labels[i] for i in kept], counts, means)

    def only(self, label: Label) -> ClassStatistics:
        """Return one class alone, with nothing in the scatter: what `merge` undoes a drop with."""
        part = ClassStatistics(self.n_components, self.backend, with_scatter=self.with_scatter)
        at = self.locate([label])
        part._restore([label], self.counts[at], self.means[self.backend.index(at)])
        return part

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name."""
        position = self.positions.pop(old)
        self.labels[position] = new
        self.positions[new] = position
        self._order = None

    def copy(self) -> ClassStatistics:
        """Return an independent copy."""
        twin = ClassStatistics(self.n_components, self.backend, with_scatter=self.with_scatter)
        twin._restore(self.labels, self.counts.copy(), self.backend.copy(self.means))
        twin._square = None if self._square is None else self.backend.copy(self._square)
        twin.n_scattered, twin.turnover = self.n_scattered, self.turnover
        return twin

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return named arrays, classes in the order of their labels, and JSON-able values."""
        arrays = {"means": self.backend.to_numpy(self.means)[self.order]}
        if (np.diff(self.order) != 1).any():  # sums over classes are rounded in the order they came
            arrays["order"] = self.order.astype(np.int32)
        meta: dict[str, Any] = {"n_scattered": self.n_scattered}
        if self.with_scatter:
            meta["turnover"] = float(self.turnover)
        if self._square is not None:
            arrays["triangle"] = pack_triangle(self.backend.to_numpy(self._square))
        return arrays, meta

    @classmethod
    def unpack(
        cls,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        counts: Mapping[Label, int],
        backend: Backend,
    ) -> ClassStatistics:
        """Return the statistics that `pack` described, in memory of their own.

        Version 0.1.0 stored a small scatter as the rows that it is made of.
        """
        means = backend.copy(backend.asarray(arrays["means"]))
        statistics = cls(means.shape[1], backend, with_scatter="turnover" in meta)
        came = np.argsort(arrays.get("order", np.arange(len(means))))
        labels, numbers = list(counts), np.array([*counts.values()], np.int64)
        statistics._restore([labels[i] for i in came], numbers[came], means[backend.index(came)])
        statistics.n_scattered = int(meta["n_scattered"])
        if "triangle" in arrays:
            square = unpack_triangle(arrays["triangle"], means.shape[1])
            statistics._square = backend.asarray(square)
        for sign in (1, -1) if "rows" in arrays else ():
            rows = arrays["rows"][arrays["signs"] == sign]
            if len(rows):
                statistics._scatter_rows(backend.asarray(rows), sign)
        statistics.turnover = float(meta.get("turnover", 0.0))
        return statistics

    def _restore(self, labels: Sequence[Label], counts: np.ndarray, means: Array) -> None:
        """Hold these classes instead."""
        self.labels = list(labels)
        self.positions = {label: i for i, label in enumerate(self.labels)}
        self.counts, self._order = counts, None
        self._means.replace(means)

    def _admit(self, labels: Sequence[Label]) -> None:
        """Add classes without samples."""
        if not labels:
            return
        self._means.extend(len(labels))[:] = 0
        self.counts = np.concatenate([self.counts, np.zeros(len(labels), np.int64)])
        for label in labels:
            self.positions[label] = len(self.labels)
            self.labels.append(label)
        self._order = None


def class_blocks(n_classes: int) -> Iterator[slice]:
    """Split classes into blocks whose means are worked on at once."""
    for start in range(0, n_classes, CLASSES_AT_ONCE):
        yield slice(start, start + CLASSES_AT_ONCE)


def pack_triangle(square: np.ndarray) -> np.ndarray:
    """Return the lower triangle of a square as a vector, row after row."""
    size = len(square)
    packed = np.empty(size * (size + 1) // 2, square.dtype)
    start = 0
    for i in range(size):
        packed[start : start + i + 1] = square[i, : i + 1]
        start += i + 1
    return packed


def unpack_triangle(packed: np.ndarray, size: int) -> np.ndarray:
    """Return the square whose lower triangle is the packed one and whose upper one is zero."""
    square = np.zeros((size, size), packed.dtype)
    start = 0
    for i in range(size):
        square[i, : i + 1] = packed[start : start + i + 1]
        start += i + 1
    return square
