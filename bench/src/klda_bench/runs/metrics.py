"""Continual-learning metrics of one run, and their mean and spread over runs.

All accuracies are percentages. ``matrix[i][j]`` is the accuracy on the test rows of task ``j``
after learning task ``i`` (``j <= i``); a whole row that was not measured is ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

Matrix = Sequence[Sequence[float] | None]

FINAL = "final_accuracy"
METRICS = {
    FINAL: "final accuracy (%)",
    "average_incremental_accuracy": "average incremental accuracy (%)",
    "forgetting": "forgetting (points)",
    "backward_transfer": "backward transfer (points)",
}
"""Every metric of a run, with its name and unit on an axis."""


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Percentage of labels that agree; ``nan`` when there is no row."""
    if len(truth) == 0:
        return math.nan
    return float(np.mean(np.asarray(truth) == np.asarray(predicted)) * 100.0)


def average_incremental_accuracy(seen_accuracy: Sequence[float | None]) -> float | None:
    """Mean over the tasks of the accuracy on all classes seen so far (Rebuffi et al., 2017)."""
    values = [value for value in seen_accuracy if value is not None]
    return float(np.mean(values)) if values and len(values) == len(seen_accuracy) else None


def _old_tasks(matrix: Matrix) -> tuple[np.ndarray, np.ndarray] | None:
    """Accuracy of the old tasks before the last task and after it, if all were measured."""
    rows = [list(row) for row in matrix if row is not None]
    if len(rows) < max(2, len(matrix)):
        return None
    square = np.array([row + [np.nan] * (len(rows) - len(row)) for row in rows])
    return square[:-1, :-1], square[-1, :-1]


def forgetting(matrix: Matrix) -> float | None:
    """Mean drop of the old tasks from their best accuracy to their last (Chaudhry et al., 2018)."""
    old = _old_tasks(matrix)
    return None if old is None else float(np.mean(np.nanmax(old[0], axis=0) - old[1]))


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean change of the old tasks since they were learned (Lopez-Paz and Ranzato, 2017).

    Negative when the method forgets.
    """
    old = _old_tasks(matrix)
    return None if old is None else float(np.mean(old[1] - np.diagonal(old[0])))


def summarise(seen_accuracy: Sequence[float | None], matrix: Matrix) -> dict[str, float | None]:
    """All metrics of one run; ``None`` for those that need what was not measured."""
    return {
        FINAL: seen_accuracy[-1],
        "average_incremental_accuracy": average_incremental_accuracy(seen_accuracy),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
    }


class Spread(NamedTuple):
    """Mean and sample standard deviation over `n` seeds; ``std`` is None for one seed."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Mean and sample standard deviation of `values` (at least one)."""
        std = float(np.std(values, ddof=1)) if len(values) > 1 else None
        return cls(float(np.mean(values)), std, len(values))

    def text(self, seeds: int = 0) -> str:
        """Write it; where there is one seed, or fewer than `seeds`, say how many there are."""
        shown = f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"
        if self.n > 1 and self.n >= seeds:
            return shown
        return f"{shown} ({self.n} seed{'' if self.n == 1 else 's'})"


def paired_difference(correct_a: np.ndarray, correct_b: np.ndarray) -> tuple[float, float]:
    """Accuracy of ``a`` minus that of ``b`` on the same rows, and its standard error, in points.

    Both have the shape (n_runs, n_samples) or (n_samples,) and say whether each row was answered
    correctly. Rows are averaged over runs first, so that the standard error is over test rows, not
    over repeated looks at the same row.
    """
    a = np.atleast_2d(np.asarray(correct_a, dtype=float)).mean(axis=0)
    b = np.atleast_2d(np.asarray(correct_b, dtype=float)).mean(axis=0)
    difference = a - b
    error = float(np.std(difference, ddof=1) / math.sqrt(len(difference))) if len(a) > 1 else 0.0
    return float(difference.mean() * 100.0), error * 100.0
