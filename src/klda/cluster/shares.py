"""Shares: what a group of rows adds to a model, as a value that travels and adds up.

A share holds counts, class means and the scatter of its rows as a packed triangle, never the random
features themselves: for D components and M classes that is ``4 (D (D + 1) / 2 + M D)`` bytes in
float32, whatever the number of rows. While a group has fewer than D / 2 rows, its centred rows are
smaller than the triangle and travel instead.

Shares are merged in any order, two at a time, and give the statistics that one process would have
gathered (to rounding, because sums are taken in another order). So do the *probes*: one process
keeps a fair choice of 1,024 samples to find temperature, threshold and ridge with, once all is
learned. Which samples these are follows from their row numbers alone, so each share brings along
those of its rows that were chosen, and in the end they are the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from klda import state
from klda.backend import Backend, choose_backend
from klda.calibration import MOST_PENDING, Pending
from klda.classifiers import KINDS
from klda.kernel import FourierFeatures
from klda.member import Member
from klda.statistics import ClassStatistics

Kernel = tuple[np.ndarray, np.ndarray, float]


@dataclass(frozen=True)
class Recipe:
    """All that workers need to have in common: the classifier's settings and its random features.

    Attributes
    ----------
    kind : str
        Name of the classifier.
    parameters : dict
        What it was made with.
    n_features : int
        Length of a feature row.
    kernels : tuple
        Frequencies, phases and gamma of each member; None where there is no kernel.
    text_labels : bool
        Whether classes are texts, or integers.
    """

    kind: str
    parameters: dict[str, Any]
    n_features: int
    kernels: tuple[Kernel | None, ...]
    text_labels: bool

    @classmethod
    def of(cls, classifier: Any) -> Recipe:
        """Describe a classifier that has learned something."""
        to_numpy = classifier._members[0].backend.to_numpy
        kernels = tuple(
            None
            if member.kernel is None
            else (
                to_numpy(member.kernel.frequencies),
                to_numpy(member.kernel.phases),
                member.kernel.gamma,
            )
            for member in classifier._members
        )
        parameters = classifier.get_params()
        if not isinstance(parameters.get("random_state"), int):
            parameters.pop("random_state", None)  # a generator; what it drew is in the kernels
        text_labels = isinstance(next(iter(classifier._counts()), ""), str)
        return cls(
            type(classifier).__name__, parameters, classifier.n_features_in_, kernels, text_labels
        )

    @property
    def width(self) -> int:
        """Number of components D that the statistics are kept in."""
        kernel = self.kernels[0]
        return self.n_features if kernel is None else len(kernel[1])

    def blank(self, device: str) -> Any:
        """Return a classifier with these random features that has learned nothing."""
        model = KINDS[self.kind](**(self.parameters | {"device": device}))
        backend = choose_backend(device, model.dtype)
        model.n_features_in_ = self.n_features
        model._members = [
            Member(
                backend,
                _on_device(kernel, backend),
                ClassStatistics(self.width, backend, with_scatter=model._keeps_scatter),
            )
            for kernel in self.kernels
        ]
        model._start_anew()
        return model


def _on_device(kernel: Kernel | None, backend: Backend) -> FourierFeatures | None:
    if kernel is None:
        return None
    frequencies, phases, gamma = kernel
    return FourierFeatures(backend.asarray(frequencies), backend.asarray(phases), gamma, backend)


@dataclass(frozen=True)
class PackedStatistics:
    """Statistics of one member, ready to travel; arrays named as in a model folder."""

    labels: list[Any]
    counts: list[int]
    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, statistics: ClassStatistics) -> PackedStatistics:
        """Pack statistics."""
        arrays: dict[str, np.ndarray] = {}
        numbers = state._pack_statistics(statistics, slice(None), "", arrays)
        return cls(list(statistics.labels), statistics.counts.tolist(), numbers, arrays)

    @property
    def dtype(self) -> str:
        """Precision they are kept in."""
        return str(self.arrays["means"].dtype)

    def unpack(self, backend: Backend) -> ClassStatistics:
        """Return the statistics, in memory of their own: what arrives by Ray is read-only."""
        meta = {"classes": self.labels, "counts": self.counts, "compact": False}
        return state._Reader("", self.arrays, meta, self.numbers, backend)()


@dataclass(frozen=True)
class Probes:
    """Samples chosen to be judged as if not learned: the place each one takes, and since when."""

    slots: np.ndarray
    since: np.ndarray
    rows: np.ndarray
    labels: list[Any]

    def merge(self, other: Probes) -> Probes:
        """Keep the later of two samples for one place, as a single process does."""
        slots = np.concatenate([self.slots, other.slots])
        since = np.concatenate([self.since, other.since])
        rows = np.concatenate([self.rows, other.rows])
        labels = [*self.labels, *other.labels]
        order = np.lexsort((since, slots))
        last = np.flatnonzero(np.diff(slots[order], append=-1))
        kept = order[last]
        return Probes(slots[kept], since[kept], rows[kept], [labels[i] for i in kept])


@dataclass(frozen=True)
class Share:
    """What a group of rows adds to a model; see the module."""

    rows: int
    members: tuple[PackedStatistics, ...]
    probes: Probes | None


class Gatherer:
    """Learns a group of rows into a share.

    Parameters
    ----------
    recipe : Recipe
        The same for all.
    first_row : int
        Number of the group's first row among all that are learned, from 0.
    device : str
        Where the statistics are gathered.
    """

    def __init__(self, recipe: Recipe, first_row: int, device: str) -> None:
        self._model = recipe.blank(device)
        self._first_row = first_row
        self._rows = 0
        pending = getattr(self._model, "_pending", None)
        if pending is not None:
            # All places are taken by nothing: a sample then goes where it would have gone had the
            # rows before been learned here, too.
            pending.seen = first_row
            pending.samples = [None] * MOST_PENDING
            pending.labels = [None] * MOST_PENDING

    def learn(self, batch: tuple[np.ndarray, list[Any]]) -> None:
        """Learn encoded rows and their labels."""
        rows, labels = batch
        self._model.partial_fit(rows, labels)
        self._rows += len(labels)

    def share(self) -> Share:
        """Return what was learned."""
        members = tuple(PackedStatistics.of(member.statistics) for member in self._model._members)
        return Share(self._rows, members, self._probes())

    def _probes(self) -> Probes | None:
        pending = getattr(self._model, "_pending", None)
        if pending is None or not self._model.calibrated:
            return None
        slots = [i for i, sample in enumerate(pending.samples) if sample is not None]
        width = self._model.n_features_in_
        return Probes(
            np.array(slots, np.int64),
            np.full(len(slots), self._first_row, np.int64),
            np.array([pending.samples[i] for i in slots]).reshape(-1, width),
            [pending.labels[i] for i in slots],
        )


def merge(one: Share, other: Share) -> Share:
    """Add two shares.

    Parameters
    ----------
    one, other : Share
        Of different rows, gathered by the same recipe.

    Returns
    -------
    Share
        That of all their rows.
    """
    members = []
    for mine, theirs in zip(one.members, other.members, strict=True):
        backend = choose_backend("cpu", mine.dtype)
        total = mine.unpack(backend)
        total.merge(theirs.unpack(backend))
        members.append(PackedStatistics.of(total))
    probes = one.probes
    if one.probes is not None and other.probes is not None:
        probes = one.probes.merge(other.probes)
    return Share(one.rows + other.rows, tuple(members), probes)


def base_of(classifier: Any) -> Any | None:
    """Return a copy of a classifier to add shares to; None if it has learned nothing.

    Fails at once for a model that can't learn, and leaves the classifier as it is.
    """
    fitted = hasattr(classifier, "n_features_in_")
    return clone(classifier).merge(classifier) if fitted else None


def add_to(model: Any, share: Share) -> Any:
    """Add a share to a classifier.

    Parameters
    ----------
    model : estimator
        One that `base_of` or `Recipe.blank` made; it is changed.
    share : Share
        What is added.

    Returns
    -------
    estimator
        The same.
    """
    for member, packed in zip(model._members, share.members, strict=True):
        member.statistics.merge(packed.unpack(member.backend))
        if member.statistics.has_scatter:
            member.discriminant.reset()
    model._solutions = None
    if share.probes is not None:
        order = np.argsort(share.probes.slots).tolist()
        chosen = Pending()
        chosen.samples = list(np.array(share.probes.rows[order]))
        chosen.labels = [share.probes.labels[i] for i in order]
        chosen.seen = share.rows
        model._pending.merge(chosen)
    return model
