"""The ridge that is added to the scatter: chosen by generalised cross-validation.

The scatter of N samples in D dimensions is singular, or nearly so, and the ridge decides how far
its small directions are trusted. The best one depends on the kind of data, not on how many samples
there are, if it is written on the scale of the scatter *sum*: ``S + rho I`` with ``rho = r v``, v
being the mean squared distance of a sample from the mean of all. Many classes that are easy to tell
apart want r = 0.01, a few that are hard to tell apart 1 to 3.

Generalised cross-validation judges r by ridge regression onto the classes, from the statistics
alone: with G the total scatter, Y the centred one-hot labels and ``C = Z^T Y``,

    GCV(r) = RSS / N / (1 - tr H / N)^2,      RSS = |Y|^2 - tr(B^T C) - rho |B|^2,
    B = (G + rho I)^-1 C,                     tr H = D - rho tr (G + rho I)^-1 + 1.

C follows from counts and means, G from the scatter and the means. The choice minimises

    N log GCV(r) + 10 log10(r / 0.3)^2

on a grid; 0.3 is the best of all with few samples, and the weight of this prior makes no
difference to speak of between 1 and 30 (measured over fifteen sets of texts, from two samples of
each class to all). A part of the random features is enough to judge by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np
import scipy

from klda.engine.statistics import ClassStatistics

GRID = 10.0 ** np.arange(-3.0, 2.01, 0.5)  # values of r
USUAL, PRIOR_WEIGHT = 0.3, 10.0
MOST_COMPONENTS = 1000  # of the features, that the choice is made by


@dataclass
class RidgeChoice:
    """The choice for some statistics, and how far it can be relied on for others.

    The criterion of neighbouring ridges differs by an amount that a sample changes by at most
    `CHANGE_PER_SAMPLE`. So a choice with a margin stands until enough samples have come or gone,
    without another look; it is the choice that another look would give.
    """

    r: float
    statistics: ClassStatistics = field(repr=False)


def choose_ridge(statistics: ClassStatistics) -> float:
    """Return r for these statistics."""
    judge = partial(_criterion, *_reduced(statistics))
    found: dict[int, float] = {}

    def at(i: int) -> float:
        if i not in found:
            found[i] = judge(float(GRID[i])) if 0 <= i < len(GRID) else np.inf
        return found[i]

    best = int(np.abs(np.log(GRID / USUAL)).argmin())
    while True:  # downhill: the criterion has one minimum
        better = min((best - 1, best, best + 1), key=at)
        if better == best:
            return float(GRID[best])
        best = better


def _reduced(statistics: ClassStatistics) -> tuple[np.ndarray, np.ndarray, float, int]:
    """Return G and C of evenly spaced features, ``|Y|^2`` and N."""
    size, counts = statistics.scatter.size, statistics.counts.astype(np.float64)
    columns = slice(None, None, -(-size // MOST_COMPONENTS))
    means = statistics.backend.to_numpy(statistics.means[:, columns], np.float64)
    n = float(counts.sum())
    centred = means - counts @ means / n
    sums = counts[:, None] * centred
    total = statistics.scatter.matrix(columns) + sums.T @ centred
    return total, sums.T, n - float((counts**2).sum()) / n, int(n)


def _criterion(total: np.ndarray, sums: np.ndarray, square: float, n: int, r: float) -> float:
    """Return ``N log GCV(r)`` with the prior."""
    rho, size = r * float(total.trace()) / n, len(total)
    system = total.copy()
    system[np.diag_indices(size)] += rho
    try:
        factor = scipy.linalg.cholesky(system, lower=True, overwrite_a=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        return np.inf
    inverse, _ = scipy.linalg.lapack.dtrtri(factor, lower=1)
    inverse = np.tril(inverse)
    half = inverse @ sums
    weights = inverse.T @ half
    residual = square - float((half**2).sum()) - rho * float((weights**2).sum())
    freedom = size - rho * float((inverse**2).sum()) + 1
    left = max(1 - freedom / n, 1 / n)
    loss = max(residual, np.finfo(float).tiny) / n / left**2
    return float(n * np.log(loss) + PRIOR_WEIGHT * np.log10(r / USUAL) ** 2)
