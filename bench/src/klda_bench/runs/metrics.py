"""Continual-learning metrics of one run, and their mean and spread over runs.

All accuracies are percentages. ``matrix[i][j]`` is the accuracy on the test rows of task ``j``
after learning task ``i`` (``j <= i``); a whole row that was not measured is ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def summarise(seen_accuracy: Sequence[float | None], matrix: Matrix) -> dict[str, float | None]:
    """All metrics of one run; ``None`` for those that need what was not measured.

    The average incremental accuracy is the mean over the tasks of the accuracy on all classes seen
    so far (Rebuffi et al., 2017); forgetting the mean drop of the old tasks from their best
    accuracy to their last (Chaudhry et al., 2018); and backward transfer their mean change since
    they were learned (Lopez-Paz and Ranzato, 2017), negative when the method forgets.
    """
    found = dict.fromkeys(METRICS, None) | {FINAL: seen_accuracy[-1]}
    if None not in seen_accuracy:
        found["average_incremental_accuracy"] = float(np.mean(np.array(seen_accuracy, float)))
    rows = [list(row) for row in matrix if row is not None]
    if len(rows) >= max(2, len(matrix)):
        square = np.array([row + [np.nan] * (len(rows) - len(row)) for row in rows])
        before, last = square[:-1, :-1], square[-1, :-1]
        found["forgetting"] = float(np.mean(np.nanmax(before, axis=0) - last))
        found["backward_transfer"] = float(np.mean(last - np.diagonal(before)))
    return found


def spread(mean: float, std: float | None, n: int, seeds: int = 0) -> str:
    """Write a mean over `n` seeds; where there is one, or fewer than `seeds`, say how many."""
    shown = f"{mean:.2f}" if std is None or np.isnan(std) else f"{mean:.2f} ± {std:.2f}"
    if n > 1 and n >= seeds:
        return shown
    return f"{shown} ({n} seed{'' if n == 1 else 's'})"


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
