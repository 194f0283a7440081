"""Continual-learning metrics of one run, and their mean and spread over runs.

All accuracies are percentages. ``matrix[i][j]`` is the accuracy on the test rows of task ``j``
after learning task ``i`` (``j <= i``); an entry or a whole row that was not measured is ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Matrix = Sequence[Sequence[float | None] | None]

FINAL = "final_accuracy"
METRICS = {
    FINAL: "final accuracy (%)",
    "average_incremental_accuracy": "average incremental accuracy (%)",
    "forgetting": "forgetting (points)",
    "backward_transfer": "backward transfer (points)",
}
"""Every metric of a run, with its name and unit on an axis."""


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Percentage of labels that agree.

    Parameters
    ----------
    truth, predicted : ndarray of shape (n_samples,)
        Labels.

    Returns
    -------
    float
        Between 0 and 100; ``nan`` when there is no row.
    """
    if len(truth) == 0:
        return math.nan
    return float(np.mean(np.asarray(truth) == np.asarray(predicted)) * 100.0)


def average_incremental_accuracy(seen_accuracy: Sequence[float | None]) -> float | None:
    """Mean over the tasks of the accuracy on all classes seen so far (Rebuffi et al., 2017)."""
    values = [value for value in seen_accuracy if value is not None]
    if len(values) != len(seen_accuracy) or not values:
        return None
    return float(np.mean(values))


def _full(matrix: Matrix) -> list[list[float]] | None:
    rows = []
    for i, row in enumerate(matrix):
        if row is None or any(value is None for value in row[: i + 1]):
            return None
        rows.append([float(value) for value in row[: i + 1] if value is not None])
    return rows


def forgetting(matrix: Matrix) -> float | None:
    """Mean drop of the old tasks from their best accuracy to their last (Chaudhry et al., 2018).

    Returns
    -------
    float or None
        ``None`` when an entry was not measured or there is one task only.
    """
    rows = _full(matrix)
    if rows is None or len(rows) < 2:
        return None
    last = len(rows) - 1
    drops = [max(rows[i][j] for i in range(j, last)) - rows[last][j] for j in range(last)]
    return float(np.mean(drops))


def backward_transfer(matrix: Matrix) -> float | None:
    """Mean change of the old tasks since they were learned (Lopez-Paz and Ranzato, 2017).

    Returns
    -------
    float or None
        Negative when the method forgets; ``None`` when an entry was not measured.
    """
    rows = _full(matrix)
    if rows is None or len(rows) < 2:
        return None
    last = len(rows) - 1
    return float(np.mean([rows[last][j] - rows[j][j] for j in range(last)]))


def summarise(seen_accuracy: Sequence[float | None], matrix: Matrix) -> dict[str, float | None]:
    """All metrics of one run.

    Parameters
    ----------
    seen_accuracy : sequence of float or None
        Accuracy on the test rows of the classes seen, after each task.
    matrix : sequence of sequences
        See the module's docstring.

    Returns
    -------
    dict
        ``final_accuracy`` (the paper's figure), ``average_incremental_accuracy``, ``forgetting``
        and ``backward_transfer``.
    """
    return {
        "final_accuracy": seen_accuracy[-1],
        "average_incremental_accuracy": average_incremental_accuracy(seen_accuracy),
        "forgetting": forgetting(matrix),
        "backward_transfer": backward_transfer(matrix),
    }


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds.

    Parameters
    ----------
    mean : float
        Mean of the runs.
    std : float
        Sample standard deviation; ``nan`` for one run.
    n : int
        Number of runs.
    """

    mean: float
    std: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Mean and sample standard deviation of `values` (at least one)."""
        std = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), std, len(values))

    def to_json(self) -> dict[str, Any]:
        """Plain dictionary; ``std`` is ``None`` for one run."""
        return {"mean": self.mean, "std": None if math.isnan(self.std) else self.std, "n": self.n}


def paired_difference(correct_a: np.ndarray, correct_b: np.ndarray) -> tuple[float, float]:
    """Accuracy of ``a`` minus accuracy of ``b`` on the same rows, and its standard error.

    Parameters
    ----------
    correct_a, correct_b : ndarray of shape (n_runs, n_samples) or (n_samples,)
        Whether each row was answered correctly. Rows are averaged over runs first, so that the
        standard error is over test rows, not over repeated looks at the same row.

    Returns
    -------
    tuple of float
        Difference and standard error, in points.
    """
    a = np.atleast_2d(np.asarray(correct_a, dtype=float)).mean(axis=0)
    b = np.atleast_2d(np.asarray(correct_b, dtype=float)).mean(axis=0)
    difference = a - b
    error = float(np.std(difference, ddof=1) / math.sqrt(len(difference))) if len(a) > 1 else 0.0
    return float(difference.mean() * 100.0), error * 100.0
