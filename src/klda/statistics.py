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

from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.backend import Array, Backend, Grouping

Label = str | int | float

# Squared length of a row, relative to the largest, below which rounding is all that it holds.
NO_LENGTH = {"float32": 1e-8, "float64": 1e-14}
CLASSES_AT_ONCE = 4096  # where means are gone through, so that no second copy of all is made


class GrowingRows:
    """Rows in one array with room to spare, doubled when full: adding a row copies none, mostly."""

    def __init__(self, width: int, backend: Backend) -> None:
        self.backend = backend
        self._buffer = backend.empty((0, width))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> Array:
        """The rows, a view."""
        return self._buffer[: self._length]

    def extend(self, n: int) -> Array:
        """Make room for more rows and return the view of them, uninitialised."""
        known, needed = self._length, self._length + n
        if needed > len(self._buffer):
            grown = self.backend.empty((max(needed, 2 * known), self._buffer.shape[1]))
            grown[:known] = self.values
            self._buffer = grown
        self._length = needed
        return self._buffer[known:needed]

    def replace(self, values: Array) -> None:
        """Hold these rows instead; they are taken over, not copied."""
        self._buffer, self._length = values, len(values)

    def clear(self) -> None:
        """Hold no rows, and no room for any."""
        self.replace(self.backend.empty((0, self._buffer.shape[1])))


class Scatter:
    """The within-class scatter S, a sum of outer products of rows.

    While there are few rows it keeps the rows (*thin*); beyond half of D it keeps the square.
    """

    def __init__(self, n_components: int, backend: Backend) -> None:
        self.n_components = n_components
        self.backend = backend
        self.square: Array | None = None
        self._rows = GrowingRows(n_components, backend)
        self._gram = backend.empty((0, 0))
        self.signs = np.empty(0, np.int64)
        self._turnover: Any = 0.0  # a number, or a scalar that is still on the device

    @property
    def turnover(self) -> float:
        """Sum of squares of every row ever added or taken away."""
        return float(self._turnover)

    @turnover.setter
    def turnover(self, value: float) -> None:
        self._turnover = value

    @property
    def is_thin(self) -> bool:
        """Whether rows are kept, and no square."""
        return self.square is None

    @property
    def rows(self) -> Array:
        """The rows kept while thin; ``signs`` says which were added (+1) and which taken (-1)."""
        return self._rows.values

    def gram(self) -> Array:
        """Return the inner products of the kept rows; only those of new rows are worked out."""
        known, total = len(self._gram), len(self.signs)
        if known < total:
            fresh = self.rows[known:] @ self.rows.T
            grown = self.backend.empty((total, total))
            grown[:known, :known] = self._gram
            grown[known:] = fresh
            grown[:known, known:] = fresh[:, :known].T
            self._gram = grown
        return self._gram

    def change(self, rows: Array, sign: int) -> None:
        """Add (``sign=+1``) or take away (``sign=-1``) the outer products of rows."""
        self._turnover = self._turnover + self.backend.sum_of_squares(rows)
        if self.is_thin and len(self.signs) + len(rows) <= self.n_components // 2:
            self._keep(rows, sign)
        else:
            self.densify()
            self.backend.add_gram(self.square, rows, sign)

    def densify(self) -> None:
        """Turn kept rows into the square."""
        if self.square is not None:
            return
        self.square = self.backend.zeros((self.n_components, self.n_components))
        for sign in (1, -1):
            chosen = np.flatnonzero(self.signs == sign)
            if len(chosen) == len(self.signs) > 0:
                self.backend.add_gram(self.square, self.rows, sign)
            elif len(chosen):
                self.backend.add_gram(self.square, self.rows[self.backend.index(chosen)], sign)
        self._drop_rows()

    def merge(self, other: Scatter) -> None:
        """Add another scatter."""
        if other.is_thin:
            for sign in (1, -1):
                chosen = np.flatnonzero(other.signs == sign)
                if len(chosen):
                    rows = other.rows[other.backend.index(chosen)]
                    self.change(self.backend.asarray(rows), sign)
            return
        self.densify()
        self.backend.add_lower(self.square, self.backend.asarray(other.square))
        self.turnover += other.turnover

    def clear(self) -> None:
        """Return to no samples at all."""
        self.square = None
        self.turnover = 0.0
        self._drop_rows()

    def trace(self) -> float:
        """Return the sum of the diagonal of S."""
        if self.is_thin:
            if not len(self.signs):
                return 0.0
            lengths = self.backend.to_numpy((self.rows * self.rows).sum(1))
            return float(lengths.astype(np.float64) @ self.signs)
        assert self.square is not None
        diagonal = self.backend.to_numpy(self.square.diagonal())
        return float(diagonal.astype(np.float64).sum())

    def dense(self) -> np.ndarray:
        """Return the full symmetric matrix S as a NumPy array."""
        if self.is_thin:
            rows = self.backend.to_numpy(self.rows)
            if (self.signs < 0).any():  # what is left may be far smaller than what went
                rows = rows.astype(np.float64)
            signed = rows * self.signs[:, None].astype(rows.dtype)
            return np.asarray(signed.T @ rows, self.backend.dtype)
        lower = np.tril(self.backend.to_numpy(self.square))
        return np.asarray(lower + np.tril(lower, -1).T)

    def settled_rows(self) -> np.ndarray:
        """Return rows with the same sum of outer products, of which none was taken away.

        As kept, if none was. Otherwise they are mixed anew from all of them (two small
        eigen-decompositions), so that nothing is left of those that are gone.
        """
        rows = self.backend.to_numpy(self.rows)
        if (self.signs > 0).all():
            return np.ascontiguousarray(rows)
        wide = rows.astype(np.float64)
        lengths, turned = np.linalg.eigh(wide @ wide.T)
        least = NO_LENGTH[self.backend.dtype.name] * max(float(lengths.max()), 0.0)
        kept = lengths > least
        roots, turned = np.sqrt(lengths[kept]), turned[:, kept]
        inner = roots[:, None] * ((turned.T * self.signs) @ turned) * roots
        squares, mixing = np.linalg.eigh(inner)
        left = squares > least
        mixing = mixing[:, left] * np.sqrt(squares[left]) / roots[:, None]
        return np.asarray(mixing.T @ (turned.T @ wide), self.backend.dtype)

    def restore_rows(self, rows: Array, signs: np.ndarray) -> None:
        """Take over rows that were kept before."""
        self._rows.replace(rows)
        self.signs = signs

    def copy(self) -> Scatter:
        """Return an independent copy."""
        twin = Scatter(self.n_components, self.backend)
        twin.square = None if self.square is None else self.backend.copy(self.square)
        twin._rows.replace(self.backend.copy(self.rows))
        twin.signs = self.signs.copy()
        twin.turnover = self.turnover
        return twin

    def _keep(self, rows: Array, sign: int) -> None:
        self._rows.extend(len(rows))[:] = rows
        self.signs = np.concatenate([self.signs, np.full(len(rows), sign)])

    def _drop_rows(self) -> None:
        self._rows.clear()
        self._gram = self.backend.empty((0, 0))
        self.signs = np.empty(0, np.int64)


class ClassStatistics:
    """Counts, means and scatter of the classes learned so far, in the order they first came."""

    def __init__(self, n_components: int, backend: Backend, *, with_scatter: bool = True) -> None:
        self.backend = backend
        self.n_components = n_components
        self.labels: list[Label] = []
        self.positions: dict[Label, int] = {}
        self._counts = np.empty(0, np.int64)  # with room to spare, as the means
        self._order: np.ndarray | None = None
        self._scatter = Scatter(n_components, backend) if with_scatter else None
        self.n_scattered = 0  # samples behind the scatter; forgotten classes stay in it
        self._means = GrowingRows(n_components, backend)

    @property
    def has_scatter(self) -> bool:
        """Whether a scatter is kept, or counts and means only."""
        return self._scatter is not None

    @property
    def scatter(self) -> Scatter:
        """The within-class scatter."""
        if self._scatter is None:
            raise AttributeError("These statistics keep counts and means only.")
        return self._scatter

    @scatter.setter
    def scatter(self, scatter: Scatter) -> None:
        self._scatter = scatter

    @property
    def n_samples(self) -> int:
        """Samples of the classes known now."""
        return int(self.counts.sum())

    @property
    def means(self) -> Array:
        """Class means, one row a class."""
        return self._means.values

    @property
    def counts(self) -> np.ndarray:
        """Samples of each class."""
        return self._counts[: len(self.labels)]

    @property
    def order(self) -> np.ndarray:
        """Positions of the classes in the order of their sorted labels; kept until these change."""
        if self._order is None:
            by_label = sorted(range(len(self.labels)), key=self.labels.__getitem__)
            self._order = np.array(by_label, np.int64)
        return self._order

    def locate(self, labels: Sequence[Label]) -> np.ndarray:
        """Positions of known labels."""
        return np.array([self.positions[label] for label in labels], np.int64)

    def learn(self, rows: Array, groups: Grouping, labels: Sequence[Label]) -> Array:
        """Add samples, grouped in the order of ``labels``. Returns the rows of the change.

        ``rows`` is overwritten.
        """
        self._admit([label for label in labels if label not in self.positions])
        return self._change(rows, groups, labels, 1)

    def remove(self, rows: Array, groups: Grouping, labels: Sequence[Label]) -> Array:
        """Take samples away that were learned before. Returns the rows of the change.

        A class without samples left is dropped. ``rows`` is overwritten.
        """
        change = self._change(rows, groups, labels, -1)
        self.drop([label for label in labels if self.counts[self.positions[label]] == 0])
        self._settle()
        return change

    def merge(self, other: ClassStatistics) -> None:
        """Add all that another model learned."""
        self._admit([label for label in other.labels if label not in self.positions])
        here = self.locate(other.labels)
        if self.has_scatter:
            self.scatter.merge(other.scatter)
        for start in range(0, len(here), CLASSES_AT_ONCE):
            part = slice(start, start + CLASSES_AT_ONCE)
            self._merge_means(here[part], other.means[part], other.counts[part])
        self.n_scattered += other.n_scattered

    def _merge_means(self, here: np.ndarray, means: Array, counts: np.ndarray) -> None:
        before, after = self.counts[here], self.counts[here] + counts
        at = self.backend.index(here)
        shift = self.backend.asarray(means) - self.means[at]
        both = np.flatnonzero(before)
        if self.has_scatter and len(both):
            weights = np.sqrt(before * (counts / after))
            chosen = self.backend.index(both)
            scaled = shift[chosen] * self.backend.asarray(weights[both, None])
            self.scatter.change(scaled, 1)
        self.means[at] += shift * self.backend.asarray((counts / after)[:, None])
        self.counts[here] = after

    def drop(self, labels: Sequence[Label]) -> None:
        """Drop classes from the answers; what they left in the scatter stays."""
        if not labels:
            return
        gone = set(self.locate(labels).tolist())
        kept = np.array([i for i in range(len(self.labels)) if i not in gone], np.int64)
        means, counts = self.means[self.backend.index(kept)], self.counts[kept]
        self.restore([self.labels[i] for i in kept], counts, means)

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name."""
        position = self.positions.pop(old)
        self.labels[position] = new
        self.positions[new] = position
        self._order = None

    def restore(self, labels: Sequence[Label], counts: np.ndarray, means: Array) -> None:
        """Take over classes that were known before."""
        self.labels = list(labels)
        self.positions = {label: i for i, label in enumerate(self.labels)}
        self._counts, self._order = counts, None
        self._means.replace(means)

    def copy(self) -> ClassStatistics:
        """Return an independent copy."""
        twin = ClassStatistics(self.n_components, self.backend, with_scatter=False)
        twin.restore(self.labels, self.counts.copy(), self.backend.copy(self.means))
        twin._scatter = None if self._scatter is None else self._scatter.copy()
        twin.n_scattered = self.n_scattered
        return twin

    def rows_of_removal(self, rows: Array, groups: Grouping, labels: Sequence[Label]) -> Array:
        """Return the rows that taking samples away would take out of the scatter.

        Nothing changes but ``rows``, which is overwritten.
        """
        *_, centres = self._moved(rows, groups, labels, -1)
        groups.subtract(rows, centres)
        return rows

    def _change(self, rows: Array, groups: Grouping, labels: Sequence[Label], sign: int) -> Array:
        here, means, counts, centres = self._moved(rows, groups, labels, sign)
        self.means[self.backend.index(here)] = means
        self.counts[here] = counts
        self.n_scattered += sign * len(groups)
        if self.has_scatter:
            groups.subtract(rows, centres)
            self.scatter.change(rows, sign)
        return rows

    def _moved(
        self, rows: Array, groups: Grouping, labels: Sequence[Label], sign: int
    ) -> tuple[np.ndarray, Array, np.ndarray, Array]:
        """Work out a change: the classes' positions, means, counts, and the centres of its rows."""
        here = self.locate(labels)
        batch = groups.counts
        batch_means = groups.sums(rows)
        batch_means /= self.backend.asarray(batch[:, None])
        before = self.counts[here]
        after = before + sign * batch
        means = self.means[self.backend.index(here)]
        gap = batch_means - means
        means += gap * self.backend.asarray((sign * batch / np.maximum(after, 1))[:, None])
        # Without (n1 = before when adding, after when removing) and with the batch:
        without, whole = (before, after) if sign > 0 else (after, before)
        # How far the mean of the batch is from the mean without it:
        distance = gap if sign > 0 else batch_means - means
        pull = self.backend.asarray(np.sqrt(without / whole)[:, None])
        return here, means, after, batch_means - pull * distance

    def _admit(self, labels: Sequence[Label]) -> None:
        if not labels:
            return
        known, needed = len(self.labels), len(self.labels) + len(labels)
        if needed > len(self._counts):
            grown = np.zeros(max(needed, 2 * known), np.int64)
            grown[:known] = self.counts
            self._counts = grown
        self._counts[known:needed] = 0
        self._means.extend(len(labels))[:] = 0
        for label in labels:
            self.positions[label] = len(self.labels)
            self.labels.append(label)
        self._order = None

    def _settle(self) -> None:
        """With one sample a class or none the scatter is zero by definition: leave no rounding."""
        if self.has_scatter and self.n_scattered <= len(self.labels):
            self.scatter.clear()
