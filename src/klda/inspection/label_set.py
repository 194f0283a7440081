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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr

from klda.engine.solution import Solution
from klda.inspection.class_map import ClassMap
from klda.labels import Label

FEW_SAMPLES = 10


@dataclass(frozen=True)
class ConfusablePair:
    """Two classes that are close."""

    first: Label
    second: Label
    distance: float  # between their means, in units of the corrected spread within classes
    confusion: float  # fraction of the samples of one expected to be taken for the other


def class_distances(solution: Solution) -> np.ndarray:
    """Return squared distances ``(M, M)`` between class means in the whitened space.

    Of the largest classes, where there are more than a thousand.
    """
    gram = solution.distance.inner()
    own = np.diag(gram)
    squared = np.maximum(own[:, None] + own - gram - gram.T, 0.0)
    np.fill_diagonal(squared, 0.0)
    error = 0.0 if solution.calibration is None else solution.calibration.error_rate
    return np.asarray(squared) / distance_scale(squared, error)


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


@dataclass(frozen=True)
class ClassDistances:
    """How far the classes are from each other: all that their pairs and their map need.

    It holds no part of the model, so that a model which goes on learning can be looked at.
    """

    labels: list[Label]  # up to the 1,024 largest classes
    counts: np.ndarray  # (M,), their samples
    squared: np.ndarray  # (M, M), between their means in the whitened space

    @classmethod
    def of(cls, solution: Solution) -> ClassDistances:
        """Measure the distances between the largest classes of a solution."""
        chosen = solution.distance.chosen
        squared = class_distances(solution)
        return cls(solution.classes[chosen].tolist(), solution.class_counts[chosen], squared)

    def largest(self, most: int) -> ClassDistances:
        """Return that of the classes with the most samples."""
        rows = np.sort(np.argsort(-self.counts, kind="stable")[:most])
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
    solution: Solution, limit: int | None = 20, at_least: float = 0.01
) -> list[ConfusablePair]:
    """List the pairs of classes that are most easily confused, the most confusable first.

    ``limit`` is the most to list, None for all; pairs with less expected confusion than
    ``at_least`` are left out.
    """
    return ClassDistances.of(solution).pairs(limit, at_least)


def small_classes(counts: Mapping[Label, int], below: int = FEW_SAMPLES) -> list[tuple[Label, int]]:
    """List the classes of fewer samples than `below` with their samples, the smallest first."""
    return sorted((one for one in counts.items() if one[1] < below), key=lambda one: one[1])
