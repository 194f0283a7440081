"""The ridge that is added to the scatter, chosen by generalised cross-validation (GCV).

The scatter of N samples in D dimensions is singular, or nearly so, and the ridge decides how far
its small directions are trusted. The best one depends on the kind of data and hardly on how many
samples there are, if it is written on the scale of the scatter *sum*: ``S + rho I`` with
``rho = r v``, v being the mean squared distance of a sample from the mean of all. Many classes that
are easy to tell apart want r = 0.01, a few that are hard to tell apart 1 to 3.

GCV judges r by ridge regression onto the classes, from the statistics alone: with G the total
scatter, Y the centred one-hot labels and ``C = Z^T Y``,

    GCV = RSS / N / (1 - (d + 1) / N)^2,      RSS = |Y|^2 - tr(B^T C) - rho |B|^2,
    B = (G + rho I)^-1 C,                     d = D - rho tr (G + rho I)^-1.

C follows from counts and means, G from the scatter and the means. The choice minimises
``N log GCV + 10 log10(r)^2`` among those r that leave degrees of freedom to judge by,
``d <= 0.6 N``: close to interpolation GCV is misled.

A block of the random features is enough. Its B features with the ridge rho are like the kernel
with ``rho / (1 - d / B)``, and all D are like it with ``rho / (1 - d / D)`` (the deterministic
equivalent of random features). So what a block says at rho holds for all features at another ridge.

The grid, the prior and the limit were chosen by cross-validation within the training rows of
fifteen sets of texts (intents, topics, opinions, moods; five languages), from one sample of each
class to all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from klda.engine.arrays import Array, Backend
from klda.engine.statistics import ClassStatistics

GRID = 10.0 ** np.arange(-2.0, 1.01, 0.5)  # values of r
USUAL = 1.0  # r where the data leave it open
PRIOR_WEIGHT = 10.0  # of log10(r)^2; from 1 to 30 it makes no difference to speak of
MOST_FREEDOM = 0.6  # of the samples
FARTHEST = 0.75  # decades below the smallest ridge that a block can judge
MOST_OF_BLOCK = 0.95  # beyond, a block says nothing about all features
BLOCK_SIZES = (512, 2000)  # random features to judge by: a quarter of the samples, within these
# By how much the criterion of a ridge can change relative to its neighbour's with one sample of
# one: twice the largest change seen, on fifteen sets, was about this divided by N.
CHANGE = 3000.0


@dataclass(frozen=True)
class RidgeChoice:
    """r, and up to which number of changes to the statistics it stands without another look."""

    r: float = USUAL
    stands_until: float = 0.0


def choose_ridge(
    statistics: ClassStatistics, *, random_features: bool, last: RidgeChoice | None = None
) -> RidgeChoice:
    """Return r for these statistics; judged by a block of the features if they are random ones.

    The `last` choice is taken again if no sample that came or went since can have changed it.
    """
    if last is not None and statistics.n_changes <= last.stands_until:
        return last
    size, backend = statistics.scatter.size, statistics.backend
    counts = backend.double(statistics.counts)
    n = float(counts.sum())
    if random_features:
        columns = slice(None, min(int(np.clip(n // 4, *BLOCK_SIZES)), size))
    else:
        columns = slice(None)
    means = backend.double(statistics.means[:, columns])
    centred = means - counts @ means / max(n, 1.0)
    sums = counts[:, None] * centred
    total = statistics.scatter.matrix(columns) + sums.T @ centred
    v = float(total.trace()) / max(n, 1.0)
    if v <= 0 or n <= len(counts) or len(counts) < 2:  # nothing can be judged
        return RidgeChoice()
    block, of_labels = (total / v, sums / np.sqrt(v)), n - float(counts @ counts) / n
    found = [_block_gcv(backend, *block, n, of_labels, float(r), size) for r in GRID]
    known = np.array([point for point in found if point is not None])
    if len(known) < 3:
        return RidgeChoice()
    places, losses, freedom = known.T
    wanted = np.log10(GRID)
    criterion = np.array([_parabola(places, losses, x) for x in wanted])
    criterion += PRIOR_WEIGHT * np.log10(GRID / USUAL) ** 2
    slope = (freedom[1] - freedom[0]) / (places[1] - places[0])
    used = np.interp(wanted, places, freedom) + np.minimum(wanted - places[0], 0.0) * slope
    beyond = places[0] - wanted  # a parabola can be trusted for a while only
    criterion[(used > MOST_FREEDOM * n) | (beyond > FARTHEST)] = np.inf
    if not np.isfinite(criterion).any():
        return RidgeChoice(float(GRID[-1]))
    best = int(criterion.argmin())
    beside = criterion[max(best - 1, 0) : best + 2]
    margin = float(np.sort(beside)[1] - criterion[best]) if len(beside) > 1 else 0.0
    stands = statistics.n_changes + margin * n / CHANGE if np.isfinite(margin) else 0.0
    return RidgeChoice(float(GRID[best]), stands)


def _block_gcv(
    backend: Backend, total: Array, sums: Array, n: float, of_labels: float, rho: float, full: int
) -> tuple[float, float, float] | None:
    """Return log10 of the ridge for all D features that rho stands for in a block of B of them.

    Also N log GCV, and the degrees of freedom, there; None where the block can't tell.
    """
    size, found = len(total), backend.regress(total, sums, rho)
    if found is None:
        return None
    solved, trace, squares = found
    freedom, slope = size - rho * trace, trace - rho * squares
    of_targets = of_labels - float((sums * solved).sum())
    residual = of_targets - rho * float((solved * solved).sum())
    of_block, of_all = 1 - freedom / size, 1 - freedom / full
    gap = rho * slope * (1 / size - 1 / full)
    if (of_block < 1 - MOST_OF_BLOCK and size < full) or of_block * of_all <= gap:
        return None
    residual = (residual * of_block * of_all - of_targets * gap) / (of_block * of_all - gap)
    left = 1 - (freedom + 1) / n
    if residual <= 0 or left <= 0:
        return None
    loss = float(n * (np.log(residual / n) - 2 * np.log(left)))
    return float(np.log10(rho * of_all / of_block)), loss, freedom


def _parabola(places: np.ndarray, values: np.ndarray, x: float) -> float:
    """Return the value at x of the parabola through the three nearest points.

    Beyond the first point, through that and two that are farther apart: near the end of what a
    block can judge, its points are close to each other.
    """
    at = np.argsort(np.abs(places - x), kind="stable")[:3]
    if x < places[0] and len(places) > 4:
        at = np.array([0, 2, 4])
    (a, b, c), (at_a, at_b, at_c) = places[at], values[at]
    return float(
        at_a * (x - b) * (x - c) / ((a - b) * (a - c))
        + at_b * (x - a) * (x - c) / ((b - a) * (b - c))
        + at_c * (x - a) * (x - b) / ((c - a) * (c - b))
    )
