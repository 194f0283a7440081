"""Means of rare classes, estimated with the help of the other classes.

The mean of a class with n samples carries noise. In the space that the precision P whitens, its
squared length is too large by ``spread / n`` (``spread = tr(P Sigma)``, thousands of units), which
keeps a class taught from a few samples from ever being predicted. Adding ``spread / (2 n)`` to the
bias mends that on average, but not the noise itself.

Class means are alike, though: much of what sets a class apart lies in the directions in which the
other classes differ from each other. So each mean, relative to the mean of all means, is replaced
by its ridge regression on the others,

    c_m = (K + r_m I)^-1 k_m,      r_m = A v / n_m,

K being the inner products of the A other means and k_m those with class m: the posterior mean
under a normal prior with the covariance of the other means (empirical Bayes). Relative means add
up to zero, so that a class's own part, what the others can't say, is one more direction of small
variance and is kept in a share ``own_m`` that grows with n. ``v`` is the variance of a new sample
along a whitened direction, times a factor that goes to zero as the covariance becomes certain: with
plenty of data the means are left as they are. A share of just ``signal / (signal + noise)`` makes
the scores right on average; noise that a larger share lets through is made up for in the biases.

All of it needs inner products of class means only, no samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CERTAINTY = 1.75  # times (inflation - 1): how far means are shrunk while that is below one
NO_VARIANCE = 1e-6  # of the largest eigenvalue: below, the direction in which means add up to zero
ALMOST_NO_RIDGE = 1e-3
MOST_ANCHORS = 1024  # classes that others are predicted from; the largest ones


@dataclass(frozen=True)
class Mixing:
    """How estimated means are made of plain means: ``F = w + (1 - w) C``.

    Attributes
    ----------
    anchors : ndarray of shape (A,)
        Positions of the classes that means are predicted from.
    combination : ndarray of shape (M, A)
        ``C``: a class has no part in its own prediction.
    kept : ndarray of shape (M,)
        ``w``: the share of its residual that a class keeps beside the prediction; 0 for anchors,
        whose residual takes part in the prediction already.
    correction : ndarray of shape (M,)
        What makes up for the noise left in the squared lengths, to be added to the biases.
    """

    anchors: np.ndarray
    combination: np.ndarray
    kept: np.ndarray
    correction: np.ndarray

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Mix values given per class along the last axis: ``values F^T``."""
        predicted = values[..., self.anchors] @ self.combination.T
        return predicted + self.kept * (values - predicted)

    def column(self, positions: np.ndarray) -> np.ndarray:
        """Return, for each given class c, what part it has in every class: ``F[:, c]``."""
        columns = np.zeros((len(self.kept), len(positions)))
        place = np.full(len(self.kept), -1)
        place[self.anchors] = np.arange(len(self.anchors))
        used = np.flatnonzero(place[positions] >= 0)
        part = self.combination[:, place[positions[used]]]
        columns[:, used] = part * (1 - self.kept)[:, None]
        columns[positions, np.arange(len(positions))] += self.kept[positions]
        return columns.T

    def squares(self, gram: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Squared lengths of the estimated means: the diagonal of ``F K F^T``.

        ``gram`` holds the inner products of all classes with the anchors, ``lengths`` the squared
        lengths of the plain means.
        """
        kept, rest = self.kept, 1 - self.kept
        if not len(self.anchors):
            return lengths.copy()
        inner = gram[self.anchors]
        predicted = np.einsum("ma,ma->m", self.combination @ inner, self.combination)
        crossed = np.einsum("ma,ma->m", self.combination, gram)
        return rest**2 * predicted + 2 * kept * rest * crossed + kept**2 * lengths


def choose_anchors(counts: np.ndarray) -> np.ndarray:
    """Positions of the classes with the most samples, at most `MOST_ANCHORS`."""
    if len(counts) <= MOST_ANCHORS:
        return np.arange(len(counts))
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_ANCHORS])


def mix(
    gram: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    anchors: np.ndarray,
    *,
    spread: float,
    inflation: float,
) -> Mixing:
    """Work out how much each class leans on the others.

    Parameters
    ----------
    gram : ndarray of shape (M, A)
        Inner products, in the whitened space, of all means with the anchors' means.
    lengths : ndarray of shape (M,)
        Squared lengths of the means there.
    counts : ndarray of shape (M,)
        Samples of each class.
    anchors : ndarray of shape (A,)
        Positions of the anchors.
    spread : float
        ``tr(P Sigma)`` as a new sample sees it.
    inflation : float
        Variance of a new sample along a whitened direction.
    """
    n_classes = len(counts)
    if n_classes < 2 or spread <= 0:
        return unmixed(n_classes)
    variance = inflation * min(1.0, CERTAINTY * (inflation - 1))
    ridges = len(anchors) * max(variance, np.finfo(float).eps) / counts
    values, vectors = np.linalg.eigh(gram[anchors])
    combination = _predictions(gram, anchors, ridges, np.maximum(values, 0.0), vectors)
    kept = np.ones(n_classes)
    kept[anchors] = 0.0
    if len(anchors) < n_classes:
        inner = gram[anchors]
        residual = (
            lengths
            - 2 * np.einsum("ma,ma->m", combination, gram)
            + np.einsum("ma,ma->m", combination @ inner, combination)
        )
        kept *= residual / np.maximum(residual + len(anchors) * ridges, np.finfo(float).tiny)
    own = kept.copy()
    own[anchors] = -combination[anchors].sum(axis=1) / max(len(anchors) - 1, 1)
    own = np.clip(own, 0.0, 1.0)
    noise = spread / counts
    signal = _signal(values, vectors, noise[anchors], counts[anchors])
    excess = np.maximum(own * noise - (1 - own) * signal, 0.0)
    return Mixing(anchors, combination, kept, 0.5 * own * excess)


def _signal(
    values: np.ndarray, vectors: np.ndarray, noise: np.ndarray, counts: np.ndarray
) -> float:
    """Squared length, less noise, of what the other classes can't say of a class, on average."""
    used = values > NO_VARIANCE * values[-1]
    if not used.any():
        return 0.0
    inverse = vectors[:, used] ** 2 @ (1 / (values[used] + ALMOST_NO_RIDGE * values[-1]))
    residual = 1 / np.maximum(inverse, np.finfo(float).tiny)
    return max(float(np.average(residual - noise, weights=counts)), 0.0)


def unmixed(n_classes: int) -> Mixing:
    """Plain means, left as they are."""
    nothing = np.zeros((n_classes, 0))
    return Mixing(np.empty(0, np.int64), nothing, np.ones(n_classes), np.zeros(n_classes))


def _predictions(
    gram: np.ndarray,
    anchors: np.ndarray,
    ridges: np.ndarray,
    values: np.ndarray,
    vectors: np.ndarray,
) -> np.ndarray:
    """Weights of the anchors in the ridge regression of each class on them.

    For an anchor the leave-one-out identity gives the weights of the others without a solve for
    each class: ``c_j = -B_jm / B_mm`` with ``B = (K + r_m I)^-1`` over all anchors.
    """
    inverse = 1 / (values[:, None] + ridges)  # one column a class: its own ridge
    targets = vectors.T @ gram.T
    targets[:, anchors] = vectors.T
    weights = vectors @ (targets * inverse)
    place = np.arange(len(anchors))
    weights[:, anchors] /= -weights[place, anchors]
    weights[place, anchors] = 0.0
    return weights.T
