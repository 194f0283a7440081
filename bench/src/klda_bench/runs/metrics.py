"""Accuracy of one run in per cent, its mean and spread over runs, and differences of runs."""

from __future__ import annotations

import math

import numpy as np

FINAL = "final_accuracy"


def accuracy(truth: np.ndarray, predicted: np.ndarray) -> float:
    """Percentage of labels that agree; ``nan`` when there is no row."""
    if len(truth) == 0:
        return math.nan
    return float(np.mean(np.asarray(truth) == np.asarray(predicted)) * 100.0)


def accuracy_as_learned(
    answers: np.ndarray, truth: np.ndarray, learned: np.ndarray
) -> tuple[float, float]:
    """Return the accuracy if classes were as frequent among test rows as among those learned.

    What was learned can't tell how frequent they are in a test file. With its standard error, in
    points; half a right and half a wrong answer are added to each class: of a few that are all
    right, more might have been wrong.
    """
    names, counts = np.unique(learned, return_counts=True)
    rows = np.array([np.sum(truth == name) for name in names])
    right = np.array([np.sum((truth == name) & (answers == name)) for name in names])
    tested, weights = rows > 0, counts / counts[rows > 0].sum()
    rows, right, weights = rows[tested], right[tested], weights[tested]
    chance = (right + 0.5) / (rows + 1)
    error = math.sqrt(float((weights**2 * chance * (1 - chance) / rows).sum()))
    return 100 * float(weights @ (right / rows)), 100 * error


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
