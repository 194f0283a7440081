"""Which inputs to label next: uncertain ones, unlike what is known and unlike each other."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from klda.checks import REFUSED
from klda.engine.solution import Solution
from klda.inspection.similar import NEAR, squared_distances, typical_distance
from klda.labels import Label

ALIKE = 0.5  # of the typical squared distance: inputs that are probably of one class
# Doubt to this power is what an input counts. With 1, 2, 3 and 4 it took 820, 680, 620 and 800
# labels on Banking77 (training rows, `klda bench suggest --part train`), on another draw with 2, 3
# and 4 600, 620 and 640.
POWER = 2
LEAST_DOUBT = 1e-3


@dataclass(frozen=True)
class Suggestion:
    """An input to be labelled.

    Attributes
    ----------
    row : int
        Which of the inputs, from 0 on.
    label : label or None
        The likeliest class; None if nothing is known yet.
    probability : float or None
        Its probability.
    known : bool or None
        Whether it is like anything learned; None if that can't be told.
    alike : list of int
        The inputs like it, the likest first, of those that are nearer to no other suggestion: they
        probably belong to one class.
    """

    row: int
    label: Label | None
    probability: float | None
    known: bool | None
    alike: list[int]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold."""
        return asdict(self)


def find_suggestions(solution: Solution | None, rows: np.ndarray, n: int) -> list[Suggestion]:
    """Return the n inputs whose labels will tell most: new kinds first, then the most doubtful.

    Inputs are gathered into n clusters, in which they count the more, the more their answer is in
    doubt; the one in the middle of a cluster stands for it. Without a solution all count the same.
    There are fewer than n if more would be near-duplicates of others.
    """
    from sklearn.cluster import KMeans

    answers = None if solution is None else solution.answer(rows, novelty=True)
    doubt = np.ones(len(rows))
    if answers is not None:
        doubt = np.maximum(1 - answers.probabilities[:, 0], LEAST_DOUBT) ** POWER
    n = min(n, len(rows))
    with warnings.catch_warnings():  # of fewer different inputs than clusters
        warnings.simplefilter("ignore")
        clusters = KMeans(n, n_init=1, random_state=0).fit(rows, sample_weight=doubt)
    usual = typical_distance(rows)
    limit = np.inf if solution is None else solution.threshold(REFUSED)
    weights = np.bincount(clusters.labels_, doubt, n)
    found: list[Suggestion] = []
    for i in np.argsort(-weights, kind="stable"):
        part = np.flatnonzero(clusters.labels_ == i)
        if not len(part):
            continue
        middle = part[squared_distances(rows[part], clusters.cluster_centers_[i]).argmin()]
        others = squared_distances(rows[[one.row for one in found]], rows[middle])
        if (others <= NEAR * usual).any():
            continue  # a near-duplicate of another suggestion
        gaps = squared_distances(rows[part], rows[middle]) / usual
        order = [at for at in np.argsort(gaps, kind="stable") if gaps[at] <= ALIKE]
        alike = [row for row in part[order].tolist() if row != middle]
        if answers is None:
            found.append(Suggestion(int(middle), None, None, None, alike))
            continue
        known = bool(answers.novelty[middle] <= limit) if np.isfinite(limit) else None
        label, chance = answers.labels[middle, 0].item(), float(answers.probabilities[middle, 0])
        found.append(Suggestion(int(middle), label, chance, known, alike))
    return sorted(found, key=lambda one: one.known is not False)  # what is new comes first
