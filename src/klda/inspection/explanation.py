"""Why an input gets the answer it gets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from klda.engine.rows import Rows, SampleId
from klda.engine.solution import Solution, softmax
from klda.inspection.tables import text_table
from klda.inspection.verdict import Verdict, verdict
from klda.labels import Label


@dataclass(frozen=True)
class NearSample:
    """A learned sample near an input."""

    id: SampleId  # the id it was given, or its running number
    label: Label
    similarity: float  # cosine between the two feature rows


@dataclass(frozen=True)
class NearClass:
    """A class near an input."""

    label: Label
    probability: float
    score: float  # its discriminant score: the larger, the likelier
    # How far the input is from it: the squared Mahalanobis distance, less that from all classes
    # together, as the decision weighs it. The nearest class's is the input's novelty.
    distance: float


@dataclass(frozen=True)
class Explanation:
    """Why an input gets the answer it gets."""

    label: Label  # the likeliest class
    classes: list[NearClass]  # the nearest, the likeliest first
    # How much likelier the first is than the second, in log odds: 0 is undecided, 2.2 nine to one.
    margin: float  # NaN while there is only one class
    novelty: float  # how unlike anything learned the input is
    threshold: float | None  # the novelty beyond which an input is unknown, if enough was learned
    known: bool | None  # whether the input is like anything learned
    samples: list[NearSample]  # learned samples most like the input, out of a ledger

    @property
    def verdict(self) -> Verdict:
        """How far the answer can be relied on."""
        n_classes = 1 if np.isnan(self.margin) else 2
        return verdict(self.classes[0].probability, self.known, n_classes)

    def __str__(self) -> str:
        said = f"{self.label}, {self.verdict.words}"
        if self.verdict == Verdict.NEW:
            said = f"{self.verdict.words}; the closest class is {self.label}"
        head = ["nearest classes", "probability"]
        rows = [[one.label, f"{one.probability:.1%}"] for one in self.classes]
        if not self.verdict.has_probability:
            head, rows = head[:1], [row[:1] for row in rows]
        parts = [said, text_table(head, rows)]
        if self.samples:
            near = [(one.label, one.id, f"{one.similarity:.3f}") for one in self.samples]
            parts.append(text_table(("nearest samples", "id", "similarity"), near))
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold."""
        content = asdict(self)
        content["margin"] = None if np.isnan(self.margin) else self.margin
        return content


def explain_rows(
    solution: Solution,
    rows: np.ndarray,
    ledger: Rows | None,
    limits: np.ndarray,
    top: int,
    samples: int,
) -> list[Explanation]:
    """Explain the answers for feature rows; differences of scores over temperature are log odds.

    `limits` are the novelties beyond which the rows are unknown, infinite where that can't be told.
    """
    labels, temperature = solution.classes.tolist(), solution.temperature
    all_scores = solution.scores(rows).astype(np.float64)
    probabilities = softmax(all_scores / temperature)
    novelties = solution.distance.of_scores(all_scores).tolist()
    found = []
    for i, (scores, novelty) in enumerate(zip(all_scores, novelties, strict=True)):
        threshold = float(limits[i]) if np.isfinite(limits[i]) else None
        order = np.argsort(-scores, kind="stable")
        distances = 2 * (scores[order[0]] - scores) + novelty
        classes = [
            NearClass(labels[j], float(probabilities[i, j]), float(scores[j]), float(distances[j]))
            for j in order[:top]
        ]
        lead = float(scores[order[0]] - scores[order[1]]) if len(order) > 1 else np.nan
        near = [] if ledger is None else nearest_samples(ledger, rows[i], samples)
        found.append(
            Explanation(
                classes[0].label,
                classes,
                lead / temperature,
                novelty,
                threshold,
                None if threshold is None else novelty <= threshold,
                near,
            )
        )
    return found


def nearest_samples(kept: Rows, row: np.ndarray, k: int) -> list[NearSample]:
    """Find the k samples most like an input, the most similar first."""
    tiny = np.finfo(np.float32).tiny
    unit = row / max(float(np.linalg.norm(row)), tiny)
    parts = [np.empty(0, np.float32)]
    for chunk in kept.chunks:  # the power of two makes no difference to a cosine
        values = chunk.astype(np.float32)
        parts.append((values @ unit) / np.maximum(np.linalg.norm(values, axis=1), tiny))
    similarity = np.concatenate(parts)
    best = np.argsort(-similarity, kind="stable")[:k]
    columns = kept.ids_at(best), kept.labels[best].tolist(), similarity[best].tolist()
    return list(map(NearSample, *columns))
