"""Health of the label set: classes easily confused, too small, or two in one; and their map.

All but the two in one from the statistics alone. The distance between two classes is that of
their means in the space that the precision P whitens,

    d^2 = (mu_i - mu_j)^T P (mu_i - mu_j) = (w_i - w_j) . (mu_i - mu_j).

Of two normal classes ``Phi(-d / 2)`` of the samples fall on the wrong side. But these distances are
too large, since P was fitted to the same samples, and classes are not normal. They are divided by a
scale: the one at which the expected confusions of all pairs add up to the fraction of learned
samples that the model gets wrong when they are left out. Where none were left out it is 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr

from klda.errors import KldaError
from klda.labels import Label
from klda.learner.ledger import Ledger
from klda.learner.plane_layout import arranged, principal_axes, turned_to

FEW_SAMPLES = 10
MOST_CLASSES = 2000  # on a map, in a table of pairs: the largest ones
FEW_CLASSES = 12  # two principal axes are enough for a map of these
PULL_TO_AXES = 2.0  # of 0.1 to 2, the steadiest on made-up classes, and as good at neighbours
PULL_TO_EARLIER = 10.0  # a class moves by 0.1 of a map's half width for a gain of 0.1 in divergence
SMALLEST_SPLIT = 20  # samples below which two groups in a class tell nothing
SMALLEST_GROUP = 0.15  # fraction of a class's samples
N_REFERENCES = 20
LLOYD_STEPS = 20
CLEAR_GAP = 6.0  # two classes of real data put together have 7 to 17, most single ones below 4
SPLIT_AXES = 16  # principal axes of a class in which it is split


@dataclass(frozen=True)
class ConfusablePair:
    """Two classes that are close.

    Attributes
    ----------
    first, second : label
        The classes.
    distance : float
        Between their means, in units of the corrected spread within classes.
    confusion : float
        Fraction of the samples of one that are expected to be taken for the other.
    """

    first: Label
    second: Label
    distance: float
    confusion: float


@dataclass(frozen=True)
class SmallClass:
    """A class of few samples."""

    label: Label
    samples: int


@dataclass(frozen=True)
class TwoInOne:
    """A class whose samples fall into two groups.

    Attributes
    ----------
    label : label
        The class.
    sizes : tuple of int
        Samples in each group.
    gap : float
        By how many standard deviations the two groups are tighter than two halves of one normal
        cloud of the same shape would be.
    ids : tuple
        Ids of the sample nearest to the centre of each group.
    """

    label: Label
    sizes: tuple[int, int]
    gap: float
    ids: tuple[str | int, str | int]


@dataclass(frozen=True)
class ClassMap:
    """Places of the classes in a plane.

    Attributes
    ----------
    labels : list
        Classes.
    counts : ndarray of shape (M,)
        Their samples.
    places : ndarray of shape (M, 2)
        Coordinates between -1 and 1.
    """

    labels: list[Label]
    counts: np.ndarray
    places: np.ndarray


# ---------------------------------------------------------------- distances and pairs


def squared_distances(estimator: Any, rows: np.ndarray | None = None) -> np.ndarray:
    """Squared distances between class means in the whitened space, divided by the scale.

    Parameters
    ----------
    estimator : KLDA, KLDAEnsemble or LDA
        With the statistics (not a compact one).
    rows : ndarray of int, optional
        Positions in ``classes_``; by default all.

    Returns
    -------
    ndarray of shape (M, M)
        Symmetric, in the order of ``classes_``.
    """
    if estimator.nearest_mean:
        raise KldaError(
            f"{type(estimator).__name__} has no whitened space; use a KLDA, KLDAEnsemble or LDA."
        )
    grams = [gram if rows is None else gram[np.ix_(rows, rows)] for gram in _grams(estimator)]
    total: Any = 0.0
    for gram in grams:
        own = np.diag(gram)
        total = total + own[:, None] + own - gram - gram.T
    squared = np.maximum((total + total.T) / (2 * len(grams)), 0.0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(squared) / _scale(squared, _error_left_out(estimator))


def _grams(estimator: Any) -> list[np.ndarray]:
    """Return, for each member, inner products of the class means in the whitened space."""
    rules = estimator.solution_.rules
    if all(len(rule.familiarity.anchors) == estimator.n_classes_ for rule in rules):
        return [rule.familiarity.inner() for rule in rules]
    means, weights = estimator.means_, estimator.coef_
    if means.ndim == 2:
        means, weights = means[None], weights[None]
    centred = [mean.astype(np.float64) - mean.mean(axis=0) for mean in means]
    return [weight.astype(np.float64) @ m.T for weight, m in zip(weights, centred, strict=True)]


def _scale(squared: np.ndarray, error: float) -> float:
    """Find what to divide squared distances by to make the confusions add up to the error."""
    others = ~np.eye(len(squared), dtype=bool)
    distances = np.sqrt(squared)[others]

    def expected(root: float) -> float:
        return float(ndtr(-distances / (2 * root)).sum() / len(squared))

    if not 0 < error < expected(1e6):
        return 1.0
    # Halving on a logarithmic scale: confusion grows with the root of the scale.
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = np.sqrt(low * high)
        low, high = (middle, high) if expected(middle) < error else (low, middle)
    return float(low * high)


def _error_left_out(estimator: Any) -> float:
    """Fraction of the samples judged as if not learned that are wrong; 0 where none were judged."""
    solution = estimator.solution_
    if solution.evidence is None:
        return 0.0
    return solution.evidence.error_rate(solution.scale)


@dataclass(frozen=True)
class Neighbourhood:
    """How far the classes are from each other: all that their pairs and their map need.

    It holds no part of the model, so that a model which goes on learning can be looked at.

    Attributes
    ----------
    labels : list
        Up to the 2,000 largest classes.
    counts : ndarray of shape (M,)
        Their samples.
    squared : ndarray of shape (M, M)
        See `squared_distances`.
    """

    labels: list[Label]
    counts: np.ndarray
    squared: np.ndarray

    @classmethod
    def of(cls, estimator: Any) -> Neighbourhood:
        """Measure the distances between the largest classes of an estimator."""
        rows = _largest(estimator)
        squared = squared_distances(estimator, rows)
        return cls(estimator.classes_[rows].tolist(), estimator.class_count_[rows], squared)

    def largest(self, most: int) -> Neighbourhood:
        """Return that of the classes with the most samples."""
        rows = np.sort(np.argsort(-self.counts, kind="stable")[:most])
        labels = [self.labels[i] for i in rows]
        return Neighbourhood(labels, self.counts[rows], self.squared[np.ix_(rows, rows)])

    def pairs(self, limit: int | None = 20, at_least: float = 0.01) -> list[ConfusablePair]:
        """List the pairs that are most easily confused; see `confusable`."""
        first, second = np.triu_indices(len(self.labels), 1)
        distances = np.sqrt(self.squared[first, second])
        confusion = ndtr(-distances / 2)
        order = np.argsort(distances, kind="stable")[:limit]
        return [
            ConfusablePair(
                self.labels[first[i]],
                self.labels[second[i]],
                float(distances[i]),
                float(confusion[i]),
            )
            for i in order
            if confusion[i] >= at_least
        ]

    def map(self, before: ClassMap | None = None) -> ClassMap:
        """Place the classes in a plane; see `class_map`.

        Parameters
        ----------
        before : ClassMap, optional
            An earlier map of the same model: classes stay about where they were in it.

        Returns
        -------
        ClassMap
            Of the same classes, in the same order.
        """
        few = len(self.labels) <= FEW_CLASSES
        axes = principal_axes(self.squared)
        earlier = None if before is None else self._places_in(before)
        if earlier is None:
            places = axes if few else arranged(self.squared, axes, PULL_TO_AXES)
        elif few:
            places = turned_to(earlier.places, axes)
        else:
            pull = np.where(earlier.known, PULL_TO_EARLIER, 0.0)
            places = arranged(self.squared, earlier.places, pull)
        return ClassMap(self.labels, self.counts, places)

    def _places_in(self, before: ClassMap) -> _Earlier | None:
        """Find classes where they were, and new ones at their nearest class that was there."""
        places = dict(zip(before.labels, before.places, strict=True))
        known = np.array([label in places for label in self.labels])
        if not known.any():
            return None
        nearest = np.where(known, self.squared, np.inf).argmin(axis=1)
        return _Earlier(np.array([places[self.labels[i]] for i in nearest]), known)


@dataclass(frozen=True)
class _Earlier:
    places: np.ndarray
    known: np.ndarray


def confusable(
    estimator: Any, limit: int | None = 20, at_least: float = 0.01
) -> list[ConfusablePair]:
    """List the pairs of classes that are most easily confused.

    Parameters
    ----------
    estimator : KLDA, KLDAEnsemble or LDA
        With the statistics.
    limit : int or None
        How many pairs; None lists all.
    at_least : float
        Leave out pairs with less expected confusion.

    Returns
    -------
    list of ConfusablePair
        The most confusable first.
    """
    return Neighbourhood.of(estimator).pairs(limit, at_least)


def small_classes(estimator: Any, below: int = FEW_SAMPLES) -> list[SmallClass]:
    """List the classes of fewer samples than `below`, the smallest first."""
    counts = estimator.class_count_
    labels = estimator.classes_.tolist()
    return [
        SmallClass(labels[i], int(counts[i]))
        for i in np.argsort(counts, kind="stable")
        if counts[i] < below
    ]


def _largest(estimator: Any) -> np.ndarray:
    counts = estimator.class_count_
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_CLASSES])


# ---------------------------------------------------------------- two in one


def two_in_one(ledger: Ledger, at_least: float = CLEAR_GAP) -> list[TwoInOne]:
    """List the classes whose samples fall into two groups.

    A class is split by 2-means in the space that the covariance within classes whitens. How much of
    its scatter the split explains is compared with what splitting normal clouds of the same shape
    explains (the gap statistic of Tibshirani, Walther and Hastie 2001, with a normal reference).
    Two ways of saying one thing are two groups as well: the list says where to look.

    Parameters
    ----------
    ledger : Ledger
        Of the samples learned.
    at_least : float
        Leave out classes with a smaller gap.

    Returns
    -------
    list of TwoInOne
        The clearest first.
    """
    groups = {label: ledger.of_class(label) for label in ledger.counts}
    whiten = _whitening(ledger, groups)
    rng = np.random.default_rng(0)
    found = []
    for label, positions in groups.items():
        if len(positions) < SMALLEST_SPLIT:
            continue
        rows = ledger.rows_at(positions).astype(np.float64) @ whiten
        split = _split(rows - rows.mean(axis=0), rng)
        if split is None or split.gap < at_least:
            continue
        ids = ledger.ids_at(positions[list(split.centres)])
        found.append(TwoInOne(label, split.sizes, split.gap, (ids[0], ids[1])))
    return sorted(found, key=lambda one: -one.gap)


@dataclass(frozen=True)
class _Split:
    sizes: tuple[int, int]
    gap: float
    centres: tuple[int, int]


def _split(rows: np.ndarray, rng: np.random.Generator) -> _Split | None:
    # Along its own principal axes a cloud is as wide as its singular values say.
    left, widths, _ = np.linalg.svd(rows, full_matrices=False)
    widths = widths[:SPLIT_AXES]
    places = left[:, :SPLIT_AXES] * widths
    explained, second = _two_means(places)
    fraction = float(second.mean())
    if min(fraction, 1 - fraction) < SMALLEST_GROUP:
        return None
    chance = []
    for _ in range(N_REFERENCES):
        cloud = rng.standard_normal(places.shape)
        cloud = (cloud - cloud.mean(axis=0)) / cloud.std(axis=0) * (widths / np.sqrt(len(rows)))
        chance.append(_two_means(cloud)[0])
    gap = (explained - float(np.mean(chance))) / max(float(np.std(chance, ddof=1)), 1e-12)
    return _Split(
        (int((~second).sum()), int(second.sum())),
        gap,
        (_most_central(places, ~second), _most_central(places, second)),
    )


def _two_means(places: np.ndarray) -> tuple[float, np.ndarray]:
    """Share of the scatter that the best of two splits explains, and who is in the second group.

    ``places`` are relative to their mean, along principal axes; the starts halve the first two.
    """
    best, chosen = -1.0, np.zeros(len(places), bool)
    total = float((places**2).sum())
    for axis in range(min(2, places.shape[1])):
        second = places[:, axis] > 0
        for _ in range(LLOYD_STEPS):
            if second.all() or not second.any():
                break
            a, b = places[~second].mean(axis=0), places[second].mean(axis=0)
            moved = places @ (b - a) > (b @ b - a @ a) / 2
            if (moved == second).all():
                break
            second = moved
        fraction = float(second.mean())
        if 0 < fraction < 1:
            between = (
                len(places) * fraction / (1 - fraction) * (places[second].mean(axis=0) ** 2).sum()
            )
            if between / max(total, 1e-300) > best:
                best, chosen = float(between / max(total, 1e-300)), second
    return best, chosen


def _most_central(places: np.ndarray, members: np.ndarray) -> int:
    at = np.flatnonzero(members)
    return int(at[((places[at] - places[at].mean(axis=0)) ** 2).sum(axis=1).argmin()])


def _whitening(ledger: Ledger, groups: dict[Label, np.ndarray]) -> np.ndarray:
    """Root of the inverse of the covariance within classes, with a ridge of a tenth."""
    scatter: Any = 0.0
    for positions in groups.values():
        rows = ledger.rows_at(positions).astype(np.float64)
        rows -= rows.mean(axis=0)
        scatter = scatter + rows.T @ rows
    values, vectors = np.linalg.eigh(scatter / max(len(ledger) - len(groups), 1))
    values = np.maximum(values, 0.0)
    scale = 1 / np.sqrt(values + max(0.1 * values.mean(), 1e-300))
    return np.asarray(vectors * scale)


# ---------------------------------------------------------------- the map


def class_map(estimator: Any) -> ClassMap:
    """Place the classes in a plane so that neighbours are those that are easily confused.

    A few classes are placed by their principal axes in the whitened space (classical scaling). Of
    many, two axes show next to nothing (of CLINC150's classes 7% of the spread), so these start
    from there and are arranged as t-SNE does it, which keeps neighbours together.

    Parameters
    ----------
    estimator : KLDA, KLDAEnsemble or LDA
        With the statistics.

    Returns
    -------
    ClassMap
        Up to the 2,000 largest classes; the same each time.
    """
    return Neighbourhood.of(estimator).map()
