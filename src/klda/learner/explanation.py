"""Why an input gets the answer it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from klda.labels import Label
from klda.learner.ledger import NearSample


@dataclass(frozen=True)
class NearClass:
    """A class near an input."""

    label: Label
    probability: float
    score: float  # its discriminant score: the larger, the likelier
    # How far the input is from it: the squared Mahalanobis distance, less that from all classes
    # together, as the decision weighs it. The nearest class's is the input's novelty. For
    # classifiers that know no such distance, by how much the score is below the best.
    distance: float


@dataclass(frozen=True)
class Explanation:
    """Why an input gets the answer it gets."""

    label: Label  # the likeliest class
    classes: list[NearClass]  # the nearest, the likeliest first
    # How much likelier the first is than the second, in log odds: 0 is undecided, 2.2 nine to one.
    margin: float  # NaN while there is only one class
    novelty: float | None  # how unlike anything learned the input is
    threshold: float | None  # the novelty beyond which an input is unknown, if enough was learned
    known: bool | None  # whether the input is like anything learned
    samples: list[NearSample]  # learned samples most like the input, out of a ledger

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold."""
        content = asdict(self)
        content["margin"] = None if np.isnan(self.margin) else self.margin
        return content

    @classmethod
    def of(
        cls,
        labels: Sequence[Label],
        scores: np.ndarray,
        probabilities: np.ndarray,
        *,
        temperature: float,
        novelty: float | None,
        threshold: float | None,
        samples: list[NearSample],
        top: int,
    ) -> Explanation:
        """Put together what a classifier says of one input, from the scores of all its classes.

        Differences of scores, divided by the temperature, are log odds.
        """
        scores = scores.astype(np.float64)
        order = np.argsort(-scores, kind="stable")
        behind = 2 * (scores[order[0]] - scores)
        distances = behind + (0.0 if novelty is None else novelty)
        classes = [
            NearClass(labels[i], float(probabilities[i]), float(scores[i]), float(distances[i]))
            for i in order[:top]
        ]
        margin = (scores[order[0]] - scores[order[1]]) / temperature if len(order) > 1 else np.nan
        known = None if novelty is None or threshold is None else bool(novelty <= threshold)
        first = classes[0].label
        return cls(first, classes, float(margin), novelty, threshold, known, samples)
