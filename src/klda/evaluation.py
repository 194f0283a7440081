"""How well predictions agree with the labels: accuracy, a table by class, and the confusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.errors import KldaError


@dataclass(frozen=True)
class ClassResult:
    """Results of one class.

    Attributes
    ----------
    label : str or int
        The class.
    samples : int
        Samples that have this label.
    predicted : int
        Samples that got this answer.
    correct : int
        Samples that have this label and got this answer.
    """

    label: Any
    samples: int
    predicted: int
    correct: int

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
class Evaluation:
    """Agreement of predictions with labels.

    Attributes
    ----------
    labels : list
        Classes that occur as a label or as an answer, sorted.
    confusion : ndarray of shape (n_labels, n_labels)
        Samples with the label of the row and the answer of the column.
    """

    labels: list[Any]
    confusion: np.ndarray

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

    def confused(self, limit: int | None = 10) -> list[tuple[Any, Any, int]]:
        """List the pairs (label, wrong answer, samples), most frequent first.

        Parameters
        ----------
        limit : int or None
            How many pairs; None lists all.

        Returns
        -------
        list of tuple
            Pairs that occurred at least once.
        """
        wrong = self.confusion.copy()
        np.fill_diagonal(wrong, 0)
        rows, columns = np.nonzero(wrong)
        order = np.argsort(-wrong[rows, columns], kind="stable")[:limit]
        return [
            (self.labels[rows[i]], self.labels[columns[i]], int(wrong[rows[i], columns[i]]))
            for i in order
        ]

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold.

        Returns
        -------
        dict
            ``accuracy`` as a fraction, ``samples``, ``classes`` and ``confused`` pairs.
        """
        return {
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
        cls, labels: Sequence[Any] | np.ndarray, answers: Sequence[Any] | np.ndarray
    ) -> Evaluation:
        """Compare answers with the true labels.

        Parameters
        ----------
        labels : sequence
            The true label of each sample.
        answers : sequence
            The predicted label of each sample.

        Returns
        -------
        Evaluation
            The comparison.
        """
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
        return cls(names.tolist(), confusion)


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value
