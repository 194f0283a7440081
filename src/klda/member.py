"""A feature map with its statistics and its classifier: what an ensemble has several of."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

import numpy as np

from klda.backend import Array, Backend, Grouping, Steps
from klda.discriminant import Discriminant
from klda.kernel import FourierFeatures
from klda.statistics import ClassStatistics, Label


class StoredStatistics(Protocol):
    """Statistics that are read when first needed."""

    @property
    def counts(self) -> dict[Label, int]:
        """Classes and their counts, known without reading."""

    def __call__(self) -> ClassStatistics:
        """Read them."""


class Member:
    """One feature map with its statistics and classifier."""

    def __init__(
        self,
        backend: Backend,
        kernel: FourierFeatures | None,
        statistics: ClassStatistics | StoredStatistics,
    ) -> None:
        self.backend = backend
        self.kernel = kernel
        self._statistics = statistics
        self._discriminant: Discriminant | None = None
        self._sorted: tuple[Any, np.ndarray] | None = None
        self._stored_counts: dict[Label, int] | None = None

    @property
    def statistics(self) -> ClassStatistics:
        """Statistics, read from where they are stored when first asked for."""
        if not isinstance(self._statistics, ClassStatistics):
            self._statistics = self._statistics()
        return self._statistics

    @property
    def counts(self) -> dict[Label, int]:
        """Samples of each class; reads no stored array."""
        if isinstance(self._statistics, ClassStatistics):
            return dict(zip(self._statistics.labels, self._statistics.counts.tolist(), strict=True))
        if self._stored_counts is None:
            self._stored_counts = self._statistics.counts
        return self._stored_counts

    @property
    def n_samples(self) -> int:
        """Samples of all classes."""
        if isinstance(self._statistics, ClassStatistics):
            return self._statistics.n_samples
        return sum(self.counts.values())

    @property
    def labels(self) -> Collection[Label]:
        """Labels of the classes; nothing is built of all of them."""
        if isinstance(self._statistics, ClassStatistics):
            return self._statistics.positions
        return self.counts

    @property
    def classes(self) -> np.ndarray:
        """Labels of the classes, sorted; made again only when the set of labels changed."""
        known = self._statistics
        made_of = known.order if isinstance(known, ClassStatistics) else known
        if self._sorted is None or self._sorted[0] is not made_of:
            self._sorted = (made_of, np.array(sorted(self.labels)))
        return self._sorted[1]

    @property
    def discriminant(self) -> Discriminant:
        """The classifier that belongs to the statistics."""
        if self._discriminant is None:
            self._discriminant = Discriminant(self.statistics)
        return self._discriminant

    def transform(self, samples: Array, room: Array | None = None) -> Array:
        """Features of samples, in the room or in memory of their own."""
        if self.kernel is None:
            return self.backend.copy(self.backend.asarray(samples))
        return self.kernel.transform(self.backend.asarray(samples), room)

    def change(
        self,
        samples: Array,
        groups: Grouping,
        labels: list,
        sign: int,
        room: Array | None = None,
    ) -> Steps[None]:
        """Learn (``sign=+1``) or remove (``sign=-1``) samples, all in memory at once.

        The room is for their features, and free again afterwards.
        """
        yield from ()  # no step of it waits for a GPU
        statistics = self.statistics
        apply = statistics.learn if sign > 0 else statistics.remove
        known = len(statistics.labels)
        rows = apply(self.transform(samples, room), groups, labels)
        if not statistics.has_scatter:
            return
        if sign < 0 and len(statistics.labels) < known:
            self.discriminant.note_reorder()
            labels = [label for label in labels if label in statistics.positions]
        self.discriminant.note_change(rows, sign, labels)

    def copy(self) -> Member:
        """Return an independent copy; the feature map, which never changes, is shared."""
        return Member(self.backend, self.kernel, self.statistics.copy())
