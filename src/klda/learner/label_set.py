"""Health of the label set: classes easily confused or too small; and their map.

It follows from the statistics alone. The distance between two classes is that of their means in
the space that the precision P whitens,

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
from scipy.optimize import brentq
from scipy.special import ndtr

from klda.errors import KldaError
from klda.labels import Label
from klda.learner.class_map import ClassMap

FEW_SAMPLES = 10
MOST_CLASSES = 2000  # on a map, in a table of pairs: the largest ones


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
    return np.asarray(squared) / distance_scale(squared, error)


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


def distance_scale(squared: np.ndarray, error: float) -> float:
    """Find what to divide squared distances by to make the confusions add up to the error."""
    distances = np.sqrt(squared)[~np.eye(len(squared), dtype=bool)]

    def excess(log_root: float) -> float:
        expected = ndtr(-distances / (2 * np.exp(log_root))).sum() / len(squared)
        return float(expected) - error

    farthest = np.log(1e6)
    if not excess(-farthest) < 0 < excess(farthest):
        return 1.0
    return float(np.exp(2 * brentq(excess, -farthest, farthest)))


def _largest(counts: np.ndarray, most: int) -> np.ndarray:
    """Return the positions of the classes with the most samples, in their order."""
    return np.sort(np.argsort(-counts, kind="stable")[:most])


@dataclass(frozen=True)
class ClassDistances:
    """How far the classes are from each other: all that their pairs and their map need.

    It holds no part of the model, so that a model which goes on learning can be looked at.
    """

    labels: list[Label]  # up to the 2,000 largest classes
    counts: np.ndarray  # (M,), their samples
    squared: np.ndarray  # (M, M), as `squared_distances` has them

    @classmethod
    def of(cls, estimator: Any) -> ClassDistances:
        """Measure the distances between the largest classes of an estimator."""
        rows = _largest(estimator.class_count_, MOST_CLASSES)
        squared = squared_distances(estimator, rows)
        return cls(estimator.classes_[rows].tolist(), estimator.class_count_[rows], squared)

    def largest(self, most: int) -> ClassDistances:
        """Return that of the classes with the most samples."""
        rows = _largest(self.counts, most)
        labels = [self.labels[i] for i in rows]
        return ClassDistances(labels, self.counts[rows], self.squared[np.ix_(rows, rows)])

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

    def map(self) -> ClassMap:
        """Place the classes in a plane."""
        return ClassMap.of(self.labels, self.counts, self.squared)


def confusable(
    estimator: Any, limit: int | None = 20, at_least: float = 0.01
) -> list[ConfusablePair]:
    """List the pairs of classes that are most easily confused, the most confusable first.

    ``limit`` is the most to list, None for all; pairs with less expected confusion than
    ``at_least`` are left out.
    """
    return ClassDistances.of(estimator).pairs(limit, at_least)


def small_classes(estimator: Any, below: int = FEW_SAMPLES) -> list[SmallClass]:
    """List the classes of fewer samples than `below`, the smallest first."""
    counts = sorted(estimator.counts_.items(), key=lambda entry: entry[1])
    return [SmallClass(label, count) for label, count in counts if count < below]
