"""How the ridge is chosen that is added to the scatter: by generalised cross-validation (GCV).

1. `find_ridge` takes a number that the user gave relative to the mean variance. Otherwise the ridge
   is r v: v is the variance of the data, and r is chosen.
2. `choose_r` takes the r of the last choice while too few samples came or went to change it.
3. Else it takes the r of `GRID` with the lowest criterion: N log GCV and a prior (`_criterion`). Of
   many random features, a block is judged, and stands for all of them (`_block_gcv`).
4. What is found is kept above rounding errors, and rounded to eight steps per octave.

**The scale.** The scatter of N samples in D dimensions is singular, or nearly so, and the ridge
decides how far its small directions are trusted. The best one depends on the kind of data and
hardly on how many samples there are, if it is written on the scale of the scatter *sum*: ``S + rho
I`` with ``rho = r v``, v being the mean squared distance of a sample from the mean of all. Many
classes that are easy to tell apart want r = 0.03 or less, a few that are hard to tell apart 1 to 3.

**The criterion.** GCV judges r by ridge regression onto the classes, from the statistics alone:
with G the total scatter, Y the centred one-hot labels and ``C = Z^T Y``,

    GCV = RSS / N / (1 - (d + 1) / N)^2,      RSS = |Y|^2 - tr(B^T C) - rho |B|^2,
    B = (G + rho I)^-1 C,                     d = D - rho tr (G + rho I)^-1.

C follows from counts and means, G from the scatter and the means. The choice minimises
``N log GCV + 10 log10(r)^2`` among those r that leave degrees of freedom to judge by,
``d <= 0.6 N``: close to interpolation GCV is misled.

**A block** of the random features is enough. Its B features with the ridge rho are like the kernel
with ``rho / (1 - d / B)``, and all D are like it with ``rho / (1 - d / D)`` (the deterministic
equivalent of random features). So what a block says at rho holds for all features at another ridge,
and a parabola in log r through all that it says gives the criterion at each r of the grid, also
below the smallest ridge that the block can judge. Mean accuracy over 9, 5 and 4 sets with all rows,
64 and 16 samples per class, within their training rows: 79.9, 77.2, 86.6 with a block of 1,000;
79.8, 77.0, 86.6 with the criterion of all 5,000; 80.0, 77.3, 87.0 with the best r in hindsight
(r from 0.003 on).

**For how long.** Judging takes long for many features, and one more sample hardly ever matters. So
beyond 256 of them a choice holds until as many samples came or went as could have changed it. That
number comes from the largest change seen, not from a proof: with wrong labels a sample can change
more, and then the choice may differ by a step of the grid from that of a model that is asked for
the first time.

The ridge is rounded to eight steps per octave (at most 4.5% off), so that a small change leaves it
where it was, and the factor of the scatter is updated.

The prior and the limit were chosen by cross-validation within the training rows of
fifteen sets of texts (intents, topics, opinions, moods; five languages), from one sample of each
class to all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from klda.engine import sizes
from klda.engine.arrays import Array, Backend, product
from klda.engine.statistics import ClassStatistics
from klda.errors import KldaError

# Choosing r
# Its values: GCV would choose smaller ones for many easy classes, but it averages over all
# samples, and the recall of rare classes suffers. Within the training rows of eleven sets, with all
# of them (two draws), 0.003 instead of 0.03 would change the accuracy by +0.1 points on average (by
# -0.3 to +0.9). With a tenth of the classes reduced to k samples, it would cost these 13, 9 and 4
# points of recall on HWU (k = 1, 2, 5), 14 on Banking (k = 1), 8 on CLINC (k = 1, 2), and gain 3
# there with k = 5. The recall on test rows was seen, too, before this was settled.
GRID = 10.0 ** np.arange(-1.5, 1.01, 0.5)
USUAL = 1.0  # r where the data leave it open
RIDGE_PRIOR = 10.0  # of log10(r)^2; from 1 to 30 makes practically no difference
MOST_FREEDOM = 0.6  # of the samples
# Judging by a block
MOST_OF_BLOCK = 0.95  # degrees of freedom; beyond, a block says nothing about all features
PARABOLA = 2  # degree of the polynomial
CANT_TELL = (np.nan, np.nan, np.nan)
N_PROBES = 64  # rows of random signs that a trace is estimated with
# For how long a choice holds
MOST_OF_USUAL = 4.0  # squared distance of a usual sample from the mean of all, in units of v
# One of N samples changes the difference between the criteria of two neighbouring values of r by at
# most so much, divided by N: twice the largest change seen on fifteen sets.
LARGEST_CHANGE = 3000.0
# Rounding
STEPS_PER_OCTAVE = 8
DAMAGED = "the model was damaged. Restore it from a copy."


@dataclass(frozen=True)
class RidgeChoice:
    """The r that was chosen, and for how long it holds without another look."""

    r: float = USUAL
    v: float = 0.0  # then
    n_changes: int = 0  # to the statistics, then
    holds_until: float = -1.0  # number of changes; -1 where it was not judged

    def holds(self, statistics: ClassStatistics, v: float) -> bool:
        """Whether r still holds: too few samples came or went since to change it.

        Samples like the others move v by little; those that are far from them make up for many.
        """
        n_samples = max(statistics.n_scattered, 1)  # all may have been forgotten
        change = MOST_OF_USUAL * (statistics.n_changes - self.n_changes) / n_samples
        return statistics.n_changes <= self.holds_until and abs(v - self.v) <= change * self.v


def find_ridge(
    statistics: ClassStatistics,
    names: Array,
    given: float | str,
    size: int,
    *,
    random_features: bool,
    last: RidgeChoice | None,
) -> tuple[float, RidgeChoice | None]:
    """Return the ridge rho, on the scale of the scatter, and how r was chosen.

    A number ``given`` is relative to the mean diagonal of the scatter of ``size`` components, and
    no r is chosen; "auto" is ``r v``.
    """
    scatter, choice = statistics.scatter, None
    trace, between = max(scatter.trace, 0.0), between_classes(statistics, names)
    scale, eps = trace / scatter.size, float(np.finfo(statistics.backend.dtype).eps)
    # What rounding alone may leave.
    noise = 8 * eps * scatter.turnover / scatter.size + (64 * eps) ** 2 * between / size
    if given == "auto":
        v = (trace + between) / max(statistics.n_scattered, 1)
        choice = choose_r(statistics, v, random_features=random_features, last=last)
        # With far more samples than components this is next to nothing, and solving would magnify
        # rounding errors.
        rho = max(choice.r * v, float(np.sqrt(eps)) * scale)
    elif scale <= noise:  # without known spread within classes all directions are equal
        rho = between / size
    else:
        rho = float(given) * trace / size
    rho = max(rho, noise) or 1.0
    if not np.isfinite(rho):
        raise KldaError(f"The statistics are not finite: {DAMAGED}")
    steps = round(np.log2(rho) * STEPS_PER_OCTAVE)
    return float(2.0 ** (steps / STEPS_PER_OCTAVE)), choice


def choose_r(
    statistics: ClassStatistics,
    v: float,
    *,
    random_features: bool,
    last: RidgeChoice | None = None,
) -> RidgeChoice:
    """Choose r for these statistics, of random features by a block of them.

    Where that takes long, the `last` choice is taken again if it still holds.
    """
    n, width = int(statistics.counts.sum()), statistics.scatter.size
    if random_features:
        width = min(sizes.BLOCK, width)
    if width > sizes.ALWAYS_JUDGED and last is not None and last.holds(statistics, v):
        return last
    criterion = _criterion(statistics, width)
    if criterion is None:
        return RidgeChoice()
    best = int(criterion.argmin())
    if not np.isfinite(criterion[best]):
        return RidgeChoice(float(GRID[-1]))
    lowest = np.sort(criterion[max(best - 1, 0) : best + 2])
    until = float(statistics.n_changes + (lowest[1] - lowest[0]) * n / LARGEST_CHANGE)
    until = until if np.isfinite(until) else -1.0
    return RidgeChoice(float(GRID[best]), v, statistics.n_changes, until)


def _criterion(statistics: ClassStatistics, width: int) -> np.ndarray | None:
    """Judge each r of the grid by so many features, the lower the better; None if they can't."""
    size, backend = statistics.scatter.size, statistics.backend
    columns, counts = slice(None, width), backend.double(statistics.counts)
    n = float(counts.sum())
    means = backend.double(statistics.means[:, columns])
    centred = means - product(counts[None], means) / max(n, 1.0)
    sums = counts[:, None] * centred
    total = statistics.scatter.matrix(columns) + product(sums.T, centred)
    of_block = float(total.trace()) / max(n, 1.0)
    if of_block <= 0 or n <= len(counts) or len(counts) < 2:
        return None
    # Single precision is enough for a comparison of ridges.
    block = backend.asarray(total / of_block), backend.asarray(sums / np.sqrt(of_block))
    of_labels = n - float(counts @ counts) / n
    found = np.array([_block_gcv(backend, *block, n, of_labels, float(r), size) for r in GRID])
    known, at = found[np.isfinite(found).all(axis=1)], np.log10(GRID)
    if len(known) <= PARABOLA:
        return None
    if width < size:
        parabolas = np.polyfit(known[:, 0], known[:, 1:], PARABOLA)
        found[:, 1:] = np.vander(at, PARABOLA + 1) @ parabolas
    loss, freedom = found[:, 1:].T
    return np.where(
        freedom <= MOST_FREEDOM * n, loss + RIDGE_PRIOR * (at - np.log10(USUAL)) ** 2, np.inf
    )


def _block_gcv(
    backend: Backend, total: Array, sums: Array, n: float, of_labels: float, rho: float, n_all: int
) -> tuple[float, float, float]:
    """Return log10 of the ridge for all D features that rho stands for in a block of B of them.

    Also N log GCV, and the degrees of freedom, there; NaN where the block can't tell.
    """
    size = len(total)
    factor = backend.factorise(total, rho)
    if factor is None:
        return CANT_TELL
    probes = backend.asarray(trace_probes(size))
    found = backend.double(backend.solve(factor, backend.xp.concat([sums, probes])))
    solved, probed = found[: len(sums)], found[len(sums) :]
    trace, squares = float((probes * probed).sum()), float((probed * probed).sum())
    freedom = size - rho * trace
    of_targets = of_labels - float((sums * solved).sum())
    residual = of_targets - rho * float((solved * solved).sum())
    if size < n_all:
        of_block, of_all = 1 - freedom / size, 1 - freedom / n_all
        gap = rho * (trace - rho * squares) * (1 / size - 1 / n_all)
        if of_block < 1 - MOST_OF_BLOCK or of_block * of_all <= gap:
            return CANT_TELL
        residual = (residual * of_block * of_all - of_targets * gap) / (of_block * of_all - gap)
        rho *= of_all / of_block
    left = 1 - (freedom + 1) / n
    if residual <= 0 or left <= 0:
        return CANT_TELL
    loss = float(n * (np.log(residual / n) - 2 * np.log(left)))
    return float(np.log10(rho)), loss, freedom


def between_classes(statistics: ClassStatistics, names: Array) -> float:
    """Return the sum, over the samples, of squared distances of class means from the mean of all.

    Without samples, that of the names.
    """
    counts, backend = statistics.counts, statistics.backend
    means = statistics.means if len(statistics.means) else names
    weights = counts if len(counts) else np.ones(len(means))
    at = backend.asarray(weights / weights.sum())
    spread = ((means - product(at[None], means)) ** 2).sum(1)
    return float((at * spread).sum()) * max(float(weights.sum()), 1.0)


@lru_cache(maxsize=4)
def trace_probes(size: int) -> np.ndarray:
    """Return rows p, always the same, with which the sum of ``p R p^T`` is the trace of R.

    Of few features exactly, of many nearly.
    """
    if size <= sizes.EXACT_TRACE:
        return np.eye(size, dtype=np.float32)
    signs = np.random.RandomState(0).randint(0, 2, size=(N_PROBES, size))
    return ((2 * signs - 1) / np.sqrt(N_PROBES)).astype(np.float32)
