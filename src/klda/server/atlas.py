"""Where the classes lie, and which are easily confused: from the statistics alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from klda.learner import Learner
from klda.server.changes import Label

MOST_CLASSES = 1500  # the ones with the most samples; a picture can't show more
MOST_PAIRS = 30


@dataclass(frozen=True)
class Place:
    """A class on the map; coordinates between -1 and 1."""

    label: Label
    count: int
    x: float
    y: float


@dataclass(frozen=True)
class Pair:
    """Two classes that are easily confused.

    Attributes
    ----------
    first, second : label
        The classes.
    closeness : float
        1 for the two closest classes; for others, how much farther apart they are: the ratio of
        the distances.
    """

    first: Label
    second: Label
    closeness: float


@dataclass(frozen=True)
class Atlas:
    """Map of the classes and their confusable pairs, the worst first."""

    places: list[Place]
    pairs: list[Pair]

    @classmethod
    def of(cls, learner: Learner) -> Atlas:
        """Draw the map of a learner.

        Parameters
        ----------
        learner : Learner
            May have no classes; one that can't learn any more has no means, and gets no map.

        Returns
        -------
        Atlas
            The map.
        """
        counts = learner.classes
        if len(counts) < 2:
            return cls([Place(label, n, 0.0, 0.0) for label, n in counts.items()], [])
        labels, sizes = list(counts), np.array(list(counts.values()))
        kept = np.sort(np.argsort(-sizes, kind="stable")[:MOST_CLASSES])
        squared = _distances(learner, kept)
        xy = _project(squared)
        places = [
            Place(labels[i], int(sizes[i]), round(float(x), 4), round(float(y), 4))
            for i, (x, y) in zip(kept, xy, strict=True)
        ]
        return cls(places, _pairs(squared, [labels[i] for i in kept]))


def _distances(learner: Learner, kept: np.ndarray) -> np.ndarray:
    """Squared distances ``(mu_i - mu_j)^T P (mu_i - mu_j)`` between classes."""
    means, weights = learner.classifier.means_, learner.classifier.coef_
    if means.ndim == 3:  # an ensemble: its first member tells the story
        means, weights = means[0], weights[0]
    gram = weights[kept].astype(np.float64) @ means[kept].T.astype(np.float64)
    own = np.diag(gram)
    squared = own[:, None] + own[None, :] - gram - gram.T
    np.fill_diagonal(squared, 0.0)
    return np.maximum(squared, 0.0)


def _project(squared: np.ndarray) -> np.ndarray:
    """Two coordinates that keep the distances as well as two can (classical scaling)."""
    # Square roots twice: without, a few far classes push all others into one spot.
    distances = np.sqrt(np.sqrt(squared))
    n = len(distances)
    centred = -0.5 * (distances - distances.mean(0) - distances.mean(1)[:, None] + distances.mean())
    first = max(0, n - 2)
    values, vectors = eigh(centred, subset_by_index=(first, n - 1))
    xy = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    if xy.shape[1] < 2:
        xy = np.pad(xy, ((0, 0), (0, 2 - xy.shape[1])))
    # Each axis fills the picture: what is near what matters, not the shape of the whole.
    xy -= (xy.max(axis=0) + xy.min(axis=0)) / 2
    return xy / np.maximum(np.abs(xy).max(axis=0), 1e-12)


def _pairs(squared: np.ndarray, labels: list[Label]) -> list[Pair]:
    first, second = np.triu_indices(len(labels), 1)
    distances = np.sqrt(squared[first, second])
    order = np.argsort(distances, kind="stable")[:MOST_PAIRS]
    least = max(float(distances[order[0]]), 1e-12)
    return [
        Pair(labels[first[i]], labels[second[i]], min(1.0, least / max(distances[i], 1e-12)))
        for i in order
    ]
