"""The scores that samples would have got, had they not been learned, in closed form.

With ``R = (S + rho I)^-1`` and ``v = z - mu_c`` for a sample of a class of n samples, leaving it
out makes ``mu_c - v / (n - 1)`` of its mean and ``R + k (R v)(R v)^T`` of R,
``k = a / (1 - a v^T R v)``, ``a = n / (n - 1)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from klda.engine.backends import Array
from klda.engine.solve import Solved
from klda.labels import Label

SMALLEST_LEVERAGE_SLACK = 1e-3  # of 1 - a v^T R v, where rounding would make it negative


def leave_one_out(
    solved: Solved, rows: Array, labels: Sequence[Label]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the column of each sample's class, its scores, and those of LDA's rule alone.

    Parameters
    ----------
    solved : Solved
        The rule of a model that has learned the samples.
    rows : array of shape (n, D)
        Lifted samples, of classes with two samples or more.
    labels : sequence
        Their classes.
    """
    places = {label: i for i, label in enumerate(solved.labels)}
    at = np.array([places[label] for label in labels], np.int64)
    factored = solved.factored
    inverse, backend = factored.inverse, factored.statistics.backend
    own = backend.index(at)
    relative = backend.asarray(rows) - solved.centre
    v = relative - solved.means[own]
    lever = inverse.apply(v)
    vv = backend.to_numpy((v * lever).sum(1), np.float64)
    zv = backend.to_numpy((relative * lever).sum(1), np.float64)
    # R is symmetric: the scores N (z - g) R (mu_m - g) need no weights but the own class's.
    n = solved.n_samples
    stacked = backend.concatenate([lever, n * lever + solved.plain[own]])
    products = backend.to_numpy(backend.linear(stacked, solved.means), np.float64)
    means_v, linear = np.split(products, 2)
    return at, *_left_out_scores(solved, at, n, vv, zv, means_v, linear)


def _left_out_scores(
    solved: Solved,
    at: np.ndarray,
    n: int,
    vv: np.ndarray,
    zv: np.ndarray,
    means_v: np.ndarray,
    linear: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores from inner products through R: ``v^T R v``, ``(z - g)^T R v``,
    ``(mu_m - g)^T R v`` and ``n (z - g)^T R (mu_m - g)``.
    """
    terms, counts = solved.terms, solved.counts[at].astype(np.float64)
    ratio, step = counts / (counts - 1), 1 / (counts - 1)
    k = ratio / np.maximum(1 - ratio * vv, SMALLEST_LEVERAGE_SLACK)
    linear = linear + n * (k * zv)[:, None] * means_v
    linear[np.arange(len(at)), at] -= n * (step * zv + k * zv * step * vv)
    mixed = terms.mixing.apply(means_v)
    part = terms.mixing.column(at)
    moved = mixed - part * (step * vv)[:, None]
    squares = terms.squares + n * (
        -2 * step[:, None] * part * mixed
        + (step**2 * vv)[:, None] * part**2
        + k[:, None] * moved**2
    )
    linear, offsets = terms.mixing.apply(linear), terms.extra - 0.5 * squares
    blended = linear if terms.blend is None else linear @ terms.blend
    return blended + offsets, linear + offsets
