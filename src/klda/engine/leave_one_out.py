"""Leave-one-out scores in closed form: how samples would score had they not been learned.

With ``R = (S + rho I)^-1`` and ``v = z - mu_c`` for a sample of a class of n samples, leaving it
out turns its class mean into ``mu_c - v / (n - 1)`` and R into ``R + k (R v)(R v)^T`` with
``k = a / (1 - a v^T R v)``, ``a = n / (n - 1)``. The sample is removed from everything that
multiplies it: the mean of its class, R, and the weights that a rare class gives to the others. The
constants of the rule (squared lengths, corrections, priors) stay, because a new input meets them
unchanged: on average these are the scores of new inputs, from two samples per class on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from klda.engine.arrays import Array
from klda.engine.shrinkage import Mixing
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
    own, classes = backend.index(at), solved.classes
    relative = backend.asarray(rows) - solved.centre
    v = relative - classes.own[own]
    lever = inverse.apply(v)
    vv = backend.to_numpy((v * lever).sum(1), np.float64)
    zv = backend.to_numpy((relative * lever).sum(1), np.float64)
    # R is symmetric: the scores N (z - g) R (mu_m - g) need no weights but the own class's.
    n = solved.n_samples
    stacked = backend.concatenate([lever, n * lever + classes.own_plain[own]])
    products = backend.to_numpy(backend.linear(stacked, classes.means), np.float64)
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
    """Return scores from inner products through R.

    These are ``v^T R v``, ``(z - g)^T R v``, ``(mu_m - g)^T R v`` and
    ``n (z - g)^T R (mu_m - g)``.
    """
    terms, mixing = solved.terms, solved.terms.mixing
    counts = solved.counts[at].astype(np.float64)
    step, ratio = 1 / (counts - 1), counts / (counts - 1)
    k = ratio / np.maximum(1 - ratio * vv, SMALLEST_LEVERAGE_SLACK)
    linear = linear + n * (k * zv)[:, None] * means_v
    step = step * solved.classes.pull[at]  # of the estimated mean
    linear[np.arange(len(at)), at] -= n * step * zv * (1 + k * vv)
    mixed = mixing.apply(linear).copy()
    leaning = np.flatnonzero(mixing.ridges[at])
    if len(leaning):
        own, parts = at[leaning], (step[leaning], k[leaning], vv[leaning], means_v[leaning])
        weights = _combination_without(mixing, own, n, *parts)
        mixed[leaning, own] = np.einsum("im,im->i", weights, linear[leaning])
    blended = mixed if terms.blend is None else mixed @ terms.blend
    return blended + terms.offsets, mixed + terms.offsets


def _combination_without(
    mixing: Mixing,
    own: np.ndarray,
    n: int,
    step: np.ndarray,
    k: np.ndarray,
    vv: np.ndarray,
    means_v: np.ndarray,
) -> np.ndarray:
    """Return how the mean of each sample's class is made of all means, without the sample.

    Leaving it out changes the inner products of the means by ``U S U^T``, U being the unit vector
    of the class, centred, and ``(mu_m - g)^T R v``: the regression's inverse follows by Woodbury.
    """
    basis, size = mixing.basis, len(mixing.basis)
    inverse = 1 / (mixing.values + mixing.ridges[own][:, None])
    unit = basis[own]
    change = np.stack([unit - basis.sum(axis=0) / size, means_v @ basis], axis=1)  # U^T, turned
    grown = 1 + k * vv
    small = np.array([[step**2 * n * vv * grown, -step * n * grown], [-step * n * grown, n * k]])
    solved = change * inverse[:, None]
    small, column = np.moveaxis(small, 2, 0), unit * inverse
    system = np.eye(2) + change @ solved.transpose(0, 2, 1) @ small
    part = small @ np.linalg.solve(system, np.einsum("bim,bm->bi", change, column)[..., None])
    column = (column - np.einsum("bix,bim->bm", part, solved)) @ basis.T
    pick = np.arange(len(own))
    weights = -column / column[pick, own][:, None]
    weights[pick, own] = 0.0
    return np.asarray(weights + (1 - weights.sum(axis=1, keepdims=True)) / size)
