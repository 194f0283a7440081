"""Means of rare classes, estimated with the help of the other classes.

The mean of a class with n samples carries noise. In the space that the precision P whitens, its
squared length is too large by ``spread / n`` (``spread = tr(P Sigma)``, thousands of units), which
keeps a class taught from a few samples from ever being predicted. Adding ``spread / (2 n)`` to the
bias mends that on average, but not the noise itself.

Class means are alike, though: what sets a class apart lies mostly in the directions in which the
other classes differ from each other. So each mean is predicted from the others, as the ridge
regression (kriging with unknown mean) of its noisy value on theirs,

    c_m = the affine combination of other classes nearest to class m, ridge  A v / n_m,

the posterior mean under a normal prior with the covariance of the other A means (empirical Bayes).
What the prediction leaves out, the residual, is kept by the share ``w_m`` of it that is signal
rather than noise, both estimated from all classes:

    estimated mean  =  sum_j c_mj mean_j  +  w_m (mean_m - sum_j c_mj mean_j).

With few samples a class leans on its likes; with many, it stands on its own. All of it needs inner
products of class means only, no samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_ANCHORS = 1024  # classes that others are predicted from; the largest ones


@dataclass(frozen=True)
class Mixing:
    """How estimated means are made of plain means: ``F = w + (1 - w) C``.

    Attributes
    ----------
    anchors : ndarray of shape (A,)
        Positions of the classes that means are predicted from.
    combination : ndarray of shape (M, A)
        ``C``: rows sum to one; a class has no part in its own prediction.
    own : ndarray of shape (M,)
        ``w``: the share of its own residual that a class keeps.
    noise : ndarray of shape (M,)
        ``spread / n``: squared length that noise adds to a plain mean.
    """

    anchors: np.ndarray
    combination: np.ndarray
    own: np.ndarray
    noise: np.ndarray

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Mix values given per class along the last axis: ``values F^T``."""
        predicted = values[..., self.anchors] @ self.combination.T
        return predicted + self.own * (values - predicted)

    def column(self, positions: np.ndarray) -> np.ndarray:
        """Return, for each given class c, what part it has in every class: ``F[:, c]``."""
        place = np.full(len(self.own), -1)
        place[self.anchors] = np.arange(len(self.anchors))
        at = place[positions]
        columns = np.where(at >= 0, self.combination[:, at], 0.0) * (1 - self.own)[:, None]
        columns[positions, np.arange(len(positions))] += self.own[positions]
        return columns.T

    def squares(self, gram: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Squared lengths of the estimated means: the diagonal of ``F K F^T``.

        ``gram`` holds the inner products of all classes with the anchors, ``lengths`` the squared
        lengths of the plain means.
        """
        inner = gram[self.anchors]
        own, rest = self.own, 1 - self.own
        predicted = np.einsum("ma,ab,mb->m", self.combination, inner, self.combination)
        crossed = np.einsum("ma,ma->m", self.combination, gram)
        return rest**2 * predicted + 2 * own * rest * crossed + own**2 * lengths


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
    noise = spread / counts
    if len(counts) < 2 or spread <= 0:
        alone = np.zeros((len(counts), len(anchors)))
        return Mixing(anchors, alone, np.ones(len(counts)), noise)
    combination = _affine_predictions(
        gram, anchors, len(anchors) * inflation / counts.astype(np.float64)
    )
    inner = gram[anchors]
    residual = (
        lengths
        - 2 * np.einsum("ma,ma->m", combination, gram)
        + np.einsum("ma,ab,mb->m", combination, inner, combination)
    )
    of_others = combination**2 @ noise[anchors]
    signal = max(float(np.average(residual - noise - of_others, weights=counts)), 0.0)
    return Mixing(anchors, combination, signal / (signal + noise), noise)


def _affine_predictions(gram: np.ndarray, anchors: np.ndarray, ridges: np.ndarray) -> np.ndarray:
    """Weights, summing to one, of the anchors that predict each class best.

    For an anchor the leave-one-out identity of kriging gives the weights of the others without
    solving once a class: ``c_j = -B_jm / B_mm`` with B the inverse of the system bordered by the
    constraint.
    """
    values, vectors = np.linalg.eigh(gram[anchors])
    values = np.maximum(values, 0.0)
    ones = vectors.sum(axis=0)  # the vector of ones in the eigenbasis
    inverse = 1 / (values[:, None] + ridges)  # one column a class: its own ridge
    total = ones**2 @ inverse
    targets = vectors.T @ gram.T
    targets[:, anchors] = vectors.T
    solved = targets * inverse
    solved_ones = ones[:, None] * inverse
    excess = ones @ solved
    bordered = vectors @ (solved - solved_ones * (excess / total))
    weights = bordered + vectors @ (solved_ones / total)
    place = np.arange(len(anchors))
    own = bordered[place, anchors]
    weights[:, anchors] = -bordered[:, anchors] / np.maximum(own, np.finfo(float).tiny)
    weights[place, anchors] = 0.0
    return weights.T
