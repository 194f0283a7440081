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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from klda.engine import sizes
from klda.engine.arrays import Array, Arrays, Backend, Meta, Packed, product
from klda.labels import Label

Change = tuple[Array, int]  # rows of shape (n, D), and whether they were added (1) or removed (-1)


@dataclass(frozen=True, eq=False)
class Scatter:
    """The scatter matrix S that all classes share: a sum of outer products of rows.

    Small changes, rows that were added or removed, are kept beside the matrix that they change,

        S = S0 + V^T J V,      J the signs of the rows,

    and are brought into it once there are many. So teaching a sample copies no matrix, and a change
    that fails leaves everything as it was. Until that happens, ``(S + rho I)^-1`` follows from the
    factor of ``S0 + rho I`` (`klda.engine.inverse`).
    """

    backend: Backend
    size: int  # D
    square: Array | None = None  # S0 in the lower triangle of (D, D); None for zero
    changes: tuple[Change, ...] = ()
    # Sum of squares of every row ever added or removed: what rounding errors are relative to.
    turnover: float = 0.0

    @cached_property
    def trace(self) -> float:
        """The sum of the diagonal."""
        found = 0.0
        if self.square is not None:
            found = float(self.backend.to_numpy(self.square.diagonal(), np.float64).sum())
        return found + sum(sign * float(self.backend.sum_of_squares(v)) for v, sign in self.changes)

    def matrix(self, columns: slice = slice(None)) -> Array:
        """Return the full symmetric matrix, or that of some columns, in double precision."""
        size = len(range(self.size)[columns])
        found = self.backend.double(np.zeros((size, size)))
        if self.square is not None:
            found += self.backend.symmetric(self.square[columns, columns])
        for rows, sign in self.changes:
            part = self.backend.double(rows[:, columns])
            found += sign * product(part.T, part)
        return found

    def add(self, rows: Array, sign: int) -> Scatter:
        """Return the scatter with the outer products of rows added or removed.

        The rows are kept: they must not be changed afterwards.
        """
        turnover = self.turnover + float(self.backend.sum_of_squares(rows))
        added = replace(self, changes=(*self.changes, (rows, sign)), turnover=turnover)
        many = sum(len(kept) for kept, _ in added.changes) > sizes.most_changes(self.size)
        return added.condensed() if many else added

    def condensed(self) -> Scatter:
        """Return the same with all changes brought into the matrix."""
        if not self.changes:
            return self
        square = self._own_square()
        for rows, sign in self.changes:
            self.backend.add_gram(square, rows, sign)
        return replace(self, square=square, changes=())

    def _own_square(self) -> Array:
        """Return a copy of the matrix."""
        if self.square is None:
            return self.backend.zeros((self.size, self.size))
        return self.backend.xp.asarray(self.square, copy=True)

    def merge(self, other: Scatter, sign: int = 1) -> Scatter:
        """Return the sum of two, or their difference."""
        merged = self
        if other.square is not None:
            square = self._own_square()
            square += sign * self.backend.asarray(other.square)
            merged = replace(self, square=square)
        for rows, own in other.changes:
            merged = merged.add(self.backend.asarray(rows), sign * own)
        return replace(merged, turnover=self.turnover + other.turnover)


# Samples class by class, how many there are of each class, and the classes.
Batch = tuple[Array, np.ndarray, Sequence[Label]]


@dataclass(frozen=True, eq=False)
class ClassStatistics:
    """Counts, means and scatter of the classes, in the order they first came; never changed."""

    labels: tuple[Label, ...]  # the classes
    counts: np.ndarray  # (M,): samples of each class
    means: Array  # (M, D): their means
    scatter: Scatter  # of the samples around the means of their classes
    n_scattered: int = 0  # samples behind the scatter; it keeps those of classes that were dropped
    n_changes: int = 0  # samples that were ever added or removed

    @classmethod
    def empty(cls, size: int, backend: Backend) -> ClassStatistics:
        """Return the statistics of nothing."""
        return cls((), np.empty(0, np.int64), backend.zeros((0, size)), Scatter(backend, size))

    @property
    def backend(self) -> Backend:
        """Where the arrays are."""
        return self.scatter.backend

    @cached_property
    def positions(self) -> dict[Label, int]:
        """Where each class is in ``labels``."""
        return {label: i for i, label in enumerate(self.labels)}

    @cached_property
    def order(self) -> np.ndarray:
        """Positions of the classes in the order of their sorted labels."""
        return np.array(sorted(range(len(self.labels)), key=self.labels.__getitem__), np.int64)

    def locate(self, labels: Iterable[Label]) -> np.ndarray:
        """Return the positions of known labels."""
        return np.array([self.positions[label] for label in labels], np.int64)

    # ---------------------------------------------------------------- verbs

    def change(self, batches: Iterable[Batch], sign: int) -> ClassStatistics:
        """Return the statistics with samples added (``sign=1``) or removed (``sign=-1``).

        The rows of a batch are overwritten. A class without samples left is dropped.
        """
        known = self
        for rows, batch, labels in batches:
            known = known._admit([label for label in labels if label not in known.positions])
            here = known.locate(labels)
            moved, after, centres = known._moved(rows, batch, here, sign)
            known.means[self.backend.index(here)], known.counts[here] = moved, after
            self.backend.centre(rows, centres, batch)
            known = replace(
                known,
                scatter=known.scatter.add(rows, sign),
                n_scattered=known.n_scattered + sign * len(rows),
                n_changes=known.n_changes + len(rows),
            )
        return known if sign > 0 else known._dropping_empty()

    def _admit(self, labels: Sequence[Label]) -> ClassStatistics:
        """Return these statistics in arrays of their own, with classes without samples added."""
        new = self.backend.zeros((len(labels), self.scatter.size))
        counts = np.concatenate([self.counts, np.zeros(len(labels), np.int64)])
        means = self.backend.xp.concat([self.means, new])
        return replace(self, labels=(*self.labels, *labels), counts=counts, means=means)

    def _moved(
        self, rows: Array, batch: np.ndarray, here: np.ndarray, sign: int
    ) -> tuple[Array, np.ndarray, Array]:
        """Compute a change of means and counts: the new ones, and what to centre rows on."""
        old, before = self.means[self.backend.index(here)], self.counts[here]
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
        centres = self._moved(rows, batch, self.locate(labels), -1)[2]
        self.backend.centre(rows, centres, batch)
        return rows

    def merge(self, other: ClassStatistics, sign: int = 1) -> ClassStatistics:
        """Return these statistics with all that others learned (``sign=1``) or without (-1)."""
        backend = self.backend
        merged = self._admit([label for label in other.labels if label not in self.positions])
        here = merged.locate(other.labels)
        at, before = backend.index(here), merged.counts[here]
        after = before + sign * other.counts
        part = other.counts / np.maximum(after, 1)
        shift = backend.asarray(other.means) - merged.means[at]
        scatter, both = self.scatter.merge(other.scatter, sign), np.flatnonzero(before * after)
        if len(both):
            weights = backend.asarray(np.sqrt(before * part)[both, None])
            scatter = scatter.add(shift[backend.index(both)] * weights, sign)
        merged.means[at] += sign * shift * backend.asarray(part[:, None])
        merged.counts[here] = after
        merged = replace(
            merged,
            scatter=scatter,
            n_scattered=self.n_scattered + sign * other.n_scattered,
            n_changes=self.n_changes + int(other.counts.sum()),
        )
        return merged if sign > 0 else merged._dropping_empty()

    def _dropping_empty(self) -> ClassStatistics:
        """Return the statistics without classes that have no samples left."""
        left = self.drop([self.labels[i] for i in np.flatnonzero(self.counts == 0)])
        if left.n_scattered <= len(left.labels):
            # Zero by definition: leave no rounding errors.
            left = replace(left, scatter=Scatter(self.backend, self.scatter.size))
        return left

    def drop(self, labels: Sequence[Label]) -> ClassStatistics:
        """Return the statistics without some classes; what these left in the scatter stays."""
        if not labels:
            return self
        gone = set(self.locate(labels).tolist())
        left = self._at([i for i in range(len(self.labels)) if i not in gone])
        n_gone = int(self.counts.sum() - left.counts.sum())
        return replace(left, n_changes=self.n_changes + n_gone)

    def only(self, label: Label) -> ClassStatistics:
        """Return one class alone, with nothing in the scatter: merged, it undoes a drop."""
        alone = self._at([self.positions[label]])
        return replace(alone, scatter=Scatter(self.backend, self.scatter.size), n_scattered=0)

    def _at(self, kept: Sequence[int]) -> ClassStatistics:
        at = np.array(kept, np.int64)
        labels = tuple(self.labels[i] for i in kept)
        means = self.means[self.backend.index(at)]
        return replace(self, labels=labels, counts=self.counts[at], means=means)

    def rename(self, old: Label, new: Label) -> ClassStatistics:
        """Return the statistics with a class that has another name; another's joins the two.

        Then means combine and the scatter gains ``n1 n2 / (n1 + n2) delta delta^T``: exactly as if
        all samples had been learned as one class.
        """
        if new in self.positions:
            alone = self.only(old)
            return self.drop([old]).merge(replace(alone, labels=(new,)))
        return replace(self, labels=tuple(new if one == old else one for one in self.labels))

    def shift(self, offset: Array) -> ClassStatistics:
        """Return the statistics of samples that are all moved by the same offset."""
        return replace(self, means=self.means + self.backend.asarray(offset))

    # ---------------------------------------------------------------- storage

    def pack(self) -> Packed:
        """Return named arrays, classes in the order of their labels, and JSON-able values."""
        arrays = {"means": self.backend.to_numpy(self.means)[self.order]}
        if (np.diff(self.order) != 1).any():  # sums over classes are rounded in the order they came
            arrays["order"] = self.order.astype(np.int32)
        square = self.scatter.condensed().square
        if square is not None:
            lower = np.tri(self.scatter.size, dtype=bool)  # row after row
            arrays["triangle"] = self.backend.to_numpy(square)[lower]
        meta = {"n_scattered": self.n_scattered, "turnover": self.scatter.turnover}
        return Packed(arrays, meta)

    @classmethod
    def unpack(
        cls, arrays: Arrays, meta: Meta, counts: Mapping[Label, int], backend: Backend
    ) -> ClassStatistics:
        """Return the statistics that `pack` described, in memory of their own."""
        means = backend.xp.asarray(backend.asarray(arrays["means"]), copy=True)
        came = np.argsort(arrays.get("order", np.arange(len(means))))
        labels, numbers = list(counts), np.array([*counts.values()], np.int64)
        size, square = int(means.shape[1]), None
        if "triangle" in arrays:
            lower = np.zeros((size, size), arrays["triangle"].dtype)
            lower[np.tri(size, dtype=bool)] = arrays["triangle"]
            square = backend.asarray(lower)
        scatter = Scatter(backend, size, square, turnover=float(meta.get("turnover", 0.0)))
        return cls(
            tuple(labels[i] for i in came),
            numbers[came],
            means[backend.index(came)],
            scatter,
            int(meta["n_scattered"]),
        )
