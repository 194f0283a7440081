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
import scipy  # its modules are imported when first used
from scipy.special import ndtr

from klda.errors import KldaError
from klda.labels import Label
from klda.learner.ledger import Ledger
from klda.learner.plane_layout import arranged, principal_axes

FEW_SAMPLES = 10
MOST_CLASSES = 2000  # on a map, in a table of pairs: the largest ones
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
    """Two classes that are close."""

    first: Label
    second: Label
    distance: float  # between their means, in units of the corrected spread within classes
    confusion: float  # fraction of the samples of one expected to be taken for the other


@dataclass(frozen=True)
class SmallClass:
    """A class of few samples."""

    label: Label
    samples: int


@dataclass(frozen=True)
class TwoInOne:
    """A class whose samples fall into two groups."""

    label: Label
    sizes: tuple[int, int]  # samples in each group
    # By how many standard deviations the groups are tighter than two halves of one normal cloud.
    gap: float
    ids: tuple[str | int, str | int]  # of the sample nearest to the centre of each group


@dataclass(frozen=True)
class ClassMap:
    """Places of the classes in a plane, coordinates between -1 and 1."""

    labels: list[Label]
    counts: np.ndarray  # (M,), their samples
    places: np.ndarray  # (M, 2)


# ---------------------------------------------------------------- distances and pairs


def squared_distances(estimator: Any, rows: np.ndarray | None = None) -> np.ndarray:
    """Return squared distances ``(M, M)`` between class means in the whitened space.

    The estimator has its statistics (it is not a compact one); `rows` are positions in
    ``classes_``, by default all.
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
    solution = estimator.solution_
    error = 0.0 if solution.evidence is None else solution.evidence.error_rate(solution.scale)
    return np.asarray(squared) / _scale(squared, error)


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


def _largest(counts: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the classes with the most samples, in their order."""
    return np.sort(np.argsort(-counts, kind="stable")[:most])


@dataclass(frozen=True)
class Neighbourhood:
    """How far the classes are from each other: all that their pairs and their map need.

    It holds no part of the model, so that a model which goes on learning can be looked at.
    """

    labels: list[Label]  # up to the 2,000 largest classes
    counts: np.ndarray  # (M,), their samples
    squared: np.ndarray  # (M, M), as `squared_distances` has them

    @classmethod
    def of(cls, estimator: Any) -> Neighbourhood:
        """Measure the distances between the largest classes of an estimator."""
        rows = _largest(estimator.class_count_, MOST_CLASSES)
        squared = squared_distances(estimator, rows)
        return cls(estimator.classes_[rows].tolist(), estimator.class_count_[rows], squared)

    def largest(self, most: int) -> Neighbourhood:
        """Return that of the classes with the most samples."""
        rows = _largest(self.counts, most)
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
        """Place the classes in a plane so that neighbours are those that are easily confused.

        They start from their principal axes in the whitened space (classical scaling), or from an
        earlier map of the same model, in which new ones start at the nearest of the others. That
        needs three of the others: classes that all start on one line would stay there.
        """
        start, pull = principal_axes(self.squared), np.full(len(self.labels), PULL_TO_AXES)
        places = {} if before is None else dict(zip(before.labels, before.places, strict=True))
        known = np.array([label in places for label in self.labels])
        if known.sum() > 2:
            nearest = np.where(known, self.squared, np.inf).argmin(axis=1)
            start = np.array([places[self.labels[i]] for i in nearest])
            pull = np.where(known, PULL_TO_EARLIER, 0.0)
        return ClassMap(self.labels, self.counts, arranged(self.squared, start, pull))


def confusable(
    estimator: Any, limit: int | None = 20, at_least: float = 0.01
) -> list[ConfusablePair]:
    """List the pairs of classes that are most easily confused, the most confusable first.

    ``limit`` is the most to list, None for all; pairs with less expected confusion than
    ``at_least`` are left out.
    """
    return Neighbourhood.of(estimator).pairs(limit, at_least)


def small_classes(estimator: Any, below: int = FEW_SAMPLES) -> list[SmallClass]:
    """List the classes of fewer samples than `below`, the smallest first."""
    counts = sorted(estimator.counts_.items(), key=lambda entry: entry[1])
    return [SmallClass(label, count) for label, count in counts if count < below]


# ---------------------------------------------------------------- two in one


def two_in_one(ledger: Ledger, at_least: float = CLEAR_GAP) -> list[TwoInOne]:
    """List the classes whose samples fall into two groups by at least such a gap, clearest first.

    A class is split by 2-means in the space that the covariance within classes whitens. How much of
    its scatter the split explains is compared with what splitting normal clouds of the same shape
    explains (the gap statistic of Tibshirani, Walther and Hastie 2001, with a normal reference).
    Two ways of saying one thing are two groups as well: the list says where to look.
    """
    groups = {label: ledger.of_class(label) for label in ledger.counts}
    whiten = _whitening(ledger, groups)
    rng = np.random.default_rng(0)
    found = []
    for label, positions in groups.items():
        if len(positions) < SMALLEST_SPLIT:
            continue
        rows = ledger.rows_at(positions).astype(np.float64) @ whiten
        places = _on_principal_axes(rows - rows.mean(axis=0))
        explained, second = _two_means(places)
        fraction = float(second.mean())
        if min(fraction, 1 - fraction) < SMALLEST_GROUP:
            continue
        gap = _gap(explained, places, rng)
        if gap >= at_least:
            sizes = int((~second).sum()), int(second.sum())
            central = [_most_central(places, group) for group in (~second, second)]
            ids = ledger.ids_at(positions[central])
            found.append(TwoInOne(label, sizes, gap, (ids[0], ids[1])))
    return sorted(found, key=lambda one: -one.gap)


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


def _on_principal_axes(rows: np.ndarray) -> np.ndarray:
    left, widths, _ = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(left[:, :SPLIT_AXES] * widths[:SPLIT_AXES])


def _gap(explained: float, places: np.ndarray, rng: np.random.Generator) -> float:
    """Compare what a split explains with what splits of normal clouds of the same shape explain."""
    widths, chance = places.std(axis=0), []
    for _ in range(N_REFERENCES):
        cloud = rng.standard_normal(places.shape)
        chance.append(_two_means((cloud - cloud.mean(axis=0)) / cloud.std(axis=0) * widths)[0])
    return float((explained - np.mean(chance)) / max(float(np.std(chance, ddof=1)), 1e-12))


def _two_means(places: np.ndarray) -> tuple[float, np.ndarray]:
    """Fraction of the scatter that the best of two splits explains, and who is in the second group.

    ``places`` are relative to their mean, along principal axes; the starts halve the first two.
    """
    best, chosen = -1.0, np.zeros(len(places), bool)
    for axis in range(min(2, places.shape[1])):
        second = places[:, axis] > 0
        if not second.any():
            continue
        starts = np.array([places[~second].mean(axis=0), places[second].mean(axis=0)])
        _, groups = scipy.cluster.vq.kmeans2(places, starts, iter=LLOYD_STEPS, minit="matrix")
        second, fraction = groups == 1, float(groups.mean())
        if 0 < fraction < 1:
            between = fraction / (1 - fraction) * (places[second].mean(axis=0) ** 2).sum()
            explained = between / max(float((places**2).mean(axis=0).sum()), 1e-300)
            if explained > best:
                best, chosen = float(explained), second
    return best, chosen


def _most_central(places: np.ndarray, members: np.ndarray) -> int:
    at = np.flatnonzero(members)
    return int(at[((places[at] - places[at].mean(axis=0)) ** 2).sum(axis=1).argmin()])
