"""How well predictions agree with the labels: accuracy, a table by class, and the confusion."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda.inspection.tables import html_table, text_table

BINS = 15


@dataclass(frozen=True)
class ClassResult:
    """Results of one class."""

    label: Any
    samples: int  # that have this label
    predicted: int  # that got this answer
    correct: int  # that have this label and got this answer

    @property
    def recall(self) -> float:
        """Fraction of the class's samples that were found; NaN for a class without samples."""
        return self.correct / self.samples if self.samples else float("nan")

    @property
    def precision(self) -> float:
        """Fraction of the answers with this class that were right; NaN where none was given."""
        return self.correct / self.predicted if self.predicted else float("nan")

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.samples + self.predicted
        return 2 * self.correct / total if total else float("nan")


@dataclass(frozen=True)
class Reliability:
    """How far probabilities can be trusted: what was promised beside what came true."""

    counts: np.ndarray  # of answers whose probability lies in each of the equal parts of 0 to 1
    confidence: np.ndarray  # their mean probability; NaN where there are none
    accuracy: np.ndarray  # fraction of them that is right; NaN where there are none

    @property
    def error(self) -> float:
        """Expected calibration error: the mean gap between the two, weighted by samples."""
        gaps = np.abs(np.nan_to_num(self.confidence) - np.nan_to_num(self.accuracy))
        return float(gaps @ self.counts / self.counts.sum())

    @classmethod
    def of(cls, confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> Reliability:
        """Sort answers into bins by their probability, `confidence`."""
        bin_of = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
        counts = np.bincount(bin_of, minlength=bins)
        divisor = np.where(counts, counts, np.nan)
        promised = np.bincount(bin_of, weights=confidence, minlength=bins) / divisor
        return cls(counts, promised, np.bincount(bin_of, weights=correct, minlength=bins) / divisor)

    def with_at_least(self, least: int) -> Reliability:
        """Join neighbouring bins until each has so many answers, the surest first.

        What is left over at the other end goes to its neighbour.
        """
        joined: list[list[int]] = []
        for i in np.flatnonzero(self.counts)[::-1].tolist():
            if joined and self.counts[joined[-1]].sum() < least:
                joined[-1].append(i)
            else:
                joined.append([i])
        if len(joined) > 1 and self.counts[joined[-1]].sum() < least:
            last = joined.pop()
            joined[-1] += last
        parts = [np.array(part) for part in reversed(joined)]
        counts = np.array([self.counts[part].sum() for part in parts])

        def mean(values: np.ndarray) -> np.ndarray:
            totals = np.array([values[part] @ self.counts[part] for part in parts])
            return np.asarray(totals / counts)

        return Reliability(counts, mean(self.confidence), mean(self.accuracy))

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold."""
        edges = np.linspace(0, 1, len(self.counts) + 1)
        return {
            "expected_calibration_error": self.error,
            "reliability": [
                {
                    "from": float(edges[i]),
                    "to": float(edges[i + 1]),
                    "samples": int(self.counts[i]),
                    "confidence": _or_none(float(self.confidence[i])),
                    "accuracy": _or_none(float(self.accuracy[i])),
                }
                for i in range(len(self.counts))
            ],
        }


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Agreement of predictions with labels."""

    labels: list[Any]  # classes that occur as a label or as an answer, sorted
    confusion: np.ndarray  # samples with the label of the row and the answer of the column
    reliability: Reliability  # of the answers' probabilities

    def __repr__(self) -> str:
        return (
            f"<Evaluation: accuracy {self.accuracy:.2%} of {self.samples:,} samples, expected "
            f"calibration error {self.reliability.error:.1%}>"
        )

    def __str__(self) -> str:
        return "\n\n".join([repr(self)[1:-1], *(text_table(*one) for one in self.tables())])

    def _repr_html_(self) -> str:
        classes, *confused = self.tables()
        parts = [html_table(repr(self)[1:-1], *classes)]
        return "".join(parts + [html_table("Most often confused", *one) for one in confused])

    def tables(self) -> Iterator[tuple[tuple[str, ...], list[tuple[Any, ...]]]]:
        """Yield head and rows of a table of the classes, the worst first, and of their confusions.

        Classes that occur only as wrong answers have no recall; they come last.
        """
        ordered = sorted(self.classes, key=lambda c: (c.samples == 0, c.recall, str(c.label)))
        yield (
            ("class", "samples", "recall", "precision", "F1"),
            [
                (c.label, f"{c.samples:,}", *map(_percent, (c.recall, c.precision, c.f1)))
                for c in ordered
            ],
        )
        if pairs := self.confused():
            yield ("label", "taken for", "samples"), pairs

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """Fraction of the samples whose answer is right."""
        return float(np.trace(self.confusion) / self.samples)

    @property
    def classes(self) -> list[ClassResult]:
        """Results by class, in the order of the labels."""
        rows, columns = self.confusion.sum(axis=1), self.confusion.sum(axis=0)
        return [
            ClassResult(label, int(rows[i]), int(columns[i]), int(self.confusion[i, i]))
            for i, label in enumerate(self.labels)
        ]

    def never_learned(self, classes: Collection[Any]) -> list[ClassResult]:
        """Return the results of labels that are none of these classes: no answer can be right."""
        return [one for one in self.classes if one.samples and one.label not in classes]

    def confused(self, limit: int | None = 10) -> list[tuple[Any, Any, int]]:
        """List the pairs (label, wrong answer, samples), most frequent first; None lists all."""
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        rows, columns = np.nonzero(wrong)
        order = np.argsort(-wrong[rows, columns], kind="stable")[:limit]
        return [
            (self.labels[rows[i]], self.labels[columns[i]], int(wrong[rows[i], columns[i]]))
            for i in order
        ]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold; NaN becomes None."""
        return self.reliability.to_dict() | {
            "accuracy": self.accuracy,
            "samples": self.samples,
            "classes": [
                {
                    "label": result.label,
                    "samples": result.samples,
                    "recall": _or_none(result.recall),
                    "precision": _or_none(result.precision),
                    "f1": _or_none(result.f1),
                }
                for result in self.classes
            ],
            "confused": [
                {"label": label, "answer": answer, "samples": samples}
                for label, answer, samples in self.confused(limit=None)
            ],
        }

    @classmethod
    def of(
        cls,
        labels: Sequence[Any] | np.ndarray,
        answers: Sequence[Any] | np.ndarray,
        confidence: np.ndarray,
    ) -> Evaluation:
        """Compare answers, and the probability that each came with, with the true labels."""
        true, given = np.asarray(labels), np.asarray(answers)
        if true.shape != given.shape or true.ndim != 1 or not len(true):
            raise KldaError(
                f"labels has shape {true.shape} and answers {given.shape}; expected two sequences "
                "of the same length, at least 1."
            )
        if (true.dtype.kind == "U") != (given.dtype.kind == "U"):
            raise KldaError(
                f"labels are {true.dtype} but the model's classes are {given.dtype}: give labels "
                "of the type that was learned."
            )
        names = np.unique(np.concatenate([true, given]))
        confusion = np.zeros((len(names), len(names)), dtype=np.int64)
        np.add.at(confusion, (np.searchsorted(names, true), np.searchsorted(names, given)), 1)
        return cls(names.tolist(), confusion, Reliability.of(confidence, true == given))


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.1%}"


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
