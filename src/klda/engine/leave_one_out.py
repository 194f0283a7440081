"""Leave-one-out scores in closed form: how samples would score had they not been learned.

With ``R = (S + rho I)^-1`` and ``v = z - mu_c`` for a sample of a class of n samples, leaving it
out turns its class mean into ``mu_c - v / (n - 1)`` and R into ``R + k (R v)(R v)^T`` with
``k = a / (1 - a v^T R v)``, ``a = n / (n - 1)``. The sample is removed from everything that
multiplies it: the mean of its class, R, and the weights that a rare class gives to the others. The
constants of the rule (squared lengths, corrections, priors) stay, because a new input meets them
unchanged: on average these are the scores of new inputs, from two samples per class on.

Novelty is a matter of its largest values, not of its average. A sample that is unlike the others of
its class makes the class mean shorter, and so would itself look nearer than a new one like it.
Therefore what it adds to the squared length of its own class's mean, ``-2 v^T R mu / (n - 1)`` with
the R that is left, is taken out: on average nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from klda.engine.arrays import Array, product
from klda.engine.calibration import OCTAVES, Evidence, usual_temperature
from klda.engine.means import Mixing
from klda.engine.rows import Rows
from klda.engine.rule import Rule
from klda.labels import Label

MOST_SCORES = 1 << 24  # samples left out, times classes
SCORES_AT_ONCE = 1 << 21
SMALLEST_LEVERAGE_SLACK = 1e-3  # of 1 - a v^T R v, where rounding would make it negative


def evidence_of(rule: Rule, rows: Rows) -> Evidence:
    """Leave samples out of a rule that has learned them, as far as their classes have others."""
    solution, found = rule.solution, Evidence()
    counts = solution.counts
    if len(counts) < 2:
        return found
    chosen = [i for i, label in enumerate(rows.labels.tolist()) if counts.get(label, 0) > 1]
    chosen = chosen[:: -(-len(chosen) * len(counts) // MOST_SCORES) or 1]
    usual, step = usual_temperature(rule.unit, len(counts)), max(1, SCORES_AT_ONCE // len(counts))
    for start in range(0, len(chosen), step):
        some = rows.at(chosen[start : start + step])
        labels = some.labels.tolist()
        if rule.lifted is None:
            lifted = solution.map.lift(some.values)
        else:  # of a small model, whose samples these are
            lifted = rule.lifted[chosen[start : start + step]]
        own, scores, of_lda = leave_one_out(rule, lifted, labels)
        scores = (scores - scores.max(axis=1, keepdims=True)) / usual
        new = Evidence(
            labels,
            np.full(len(own), solution.class_counts.sum()),
            solution.distance.of_lda_scores(*of_lda) / rule.unit,
            -scores[np.arange(len(own)), own],
            _doubts(scores),
        )
        found = found.add(new)
    return found


def leave_one_out(
    rule: Rule, rows: Array, labels: Sequence[Label]
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return the column of each sample's class, its scores, and what novelty follows from.

    That is its scores of LDA's rule alone, and the squared lengths of the class means without it.

    Parameters
    ----------
    rule : Rule
        That of a model that has learned the samples.
    rows : array of shape (n, D)
        Lifted samples, of classes with two samples or more.
    labels : sequence
        Their classes.
    """
    classes, inverse, n = rule.classes, rule.inverse, rule.n_samples
    backend = inverse.scatter.backend
    places = {label: i for i, label in enumerate(classes.labels)}
    at = np.array([places[label] for label in labels], np.int64)
    own = backend.index(at)
    relative = backend.asarray(rows) - rule.centre
    v = relative - classes.of_samples[own]
    lever = inverse.apply(v)
    vv = backend.to_numpy((v * lever).sum(1), np.float64)
    zv = backend.to_numpy((relative * lever).sum(1), np.float64)
    # R is symmetric: the scores N (z - g) R (mu_m - g) need no weights but the own class's.
    stacked = backend.xp.concat([lever, n * lever + classes.of_samples_r[own]])
    products = backend.to_numpy(product(stacked, classes.means.T), np.float64)
    means_v, linear = np.split(products, 2)
    return at, *_left_out_scores(rule, at, vv, zv, means_v, linear)


def _left_out_scores(
    rule: Rule,
    at: np.ndarray,
    vv: np.ndarray,
    zv: np.ndarray,
    means_v: np.ndarray,
    linear: np.ndarray,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """Return scores, and what novelty follows from, by inner products through R.

    These are ``v^T R v``, ``(z - g)^T R v``, ``(mu_m - g)^T R v`` and
    ``n (z - g)^T R (mu_m - g)``.
    """
    classes, mixing, distance = rule.classes, rule.mixing, rule.solution.distance
    n, counts = rule.n_samples, classes.counts[at].astype(np.float64)
    step, ratio = 1 / (counts - 1), counts / (counts - 1)
    k = ratio / np.maximum(1 - ratio * vv, SMALLEST_LEVERAGE_SLACK)
    linear = linear + n * (k * zv)[:, None] * means_v
    pull, each = classes.pull, np.arange(len(at))
    moves = n * step * (1 + k * vv)
    lengths = np.tile(distance.lengths, (len(at), 1))
    own_moves = moves if pull is None else moves * pull[at, at]
    own_moves = np.where(mixing.ridges[at], 0.0, own_moves)  # of a mean that leans on the others
    lengths[each, at] -= 2 * own_moves * means_v[each, at]
    if pull is None:
        linear[each, at] -= moves * zv
    else:
        linear -= (moves * zv)[:, None] * pull[:, at].T
    mixed = mixing.apply(linear).copy()
    leaning = np.flatnonzero(mixing.ridges[at])
    if len(leaning):
        own, parts = at[leaning], (step[leaning], k[leaning], vv[leaning], means_v[leaning])
        weights = _combination_without(mixing, own, n, *parts)
        mixed[leaning, own] = np.einsum("im,im->i", weights, linear[leaning])
    blended = mixed if rule.blend is None else product(mixed, rule.blend)
    return blended + distance.offsets, (mixed + distance.offsets, lengths)


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


def _doubts(shifted: np.ndarray) -> np.ndarray:
    """Return ``-log`` of the highest probability of each row, one column per temperature.

    Scores are relative to the highest. Temperatures are half an octave apart, so every second one
    is half of one before: from the hottest two down, exponentials are squares of those before,
    which is far cheaper.
    """
    temperatures = 2.0**OCTAVES
    doubts = np.empty((len(shifted), len(temperatures)), np.float32)
    for hottest in (len(temperatures) - 1, len(temperatures) - 2):
        exponentials = np.exp(shifted / temperatures[hottest])
        for i in range(hottest, -1, -2):
            doubts[:, i] = np.log(exponentials.sum(axis=1))
            np.square(exponentials, out=exponentials)
    return doubts
