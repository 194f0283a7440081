"""Means of rare classes, estimated with the help of the other classes.

The mean of a class with n samples carries noise. In the space that the precision P whitens, its
squared length is too large by ``spread / n`` (``spread = tr(P Sigma)``, thousands of units), which
keeps a class taught from a few samples from ever being predicted. Adding ``spread / (2 n)`` to the
bias mends that on average, but not the noise itself.

Class means are alike, though: much of what sets a class apart lies in the directions in which the
other classes differ from each other. So each mean, relative to the mean of all means, is replaced
by its ridge regression on the others,

    c_m = (K + r_m I)^-1 k_m,      r_m = A v (1 / n_m - 1 / n),

K being the inner products of the A other means and k_m those with class m: the posterior mean
under a normal prior with the covariance of the other means (empirical Bayes). ``v`` is the variance
of a new sample along a whitened direction and n the average number of samples: the other means
carry noise, too, so that only the noise beyond theirs counts, and a class with as many samples as
most or more keeps its mean as it is. Relative means add up to zero, so that a class's own part,
what the others can't say, is one more direction of small variance; of it the fraction ``own_m`` is
kept, which grows with n_m. A fraction of just ``signal / (signal + noise)`` makes the scores right
on average; noise that a larger one lets through is made up for in the biases.

All of it needs inner products of class means only, no samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from klda.engine.arrays import product

NO_VARIANCE = 1e-6  # of the largest eigenvalue: below, the direction in which means add up to zero
ALMOST_NO_RIDGE = 1e-3
MOST_ANCHORS = 1024  # classes that others are predicted from; the largest ones
PRIOR_WEIGHT = 2.0  # times inflation: scores are larger than log-likelihoods by far more
LEAST_OF_AVERAGE = 0.1  # of the average count: added to all counts, however uneven they are


@dataclass(frozen=True)
class Mixing:
    """How estimated means are made of plain means: ``F = w + (1 - w) C``.

    Attributes
    ----------
    anchors : ndarray of shape (A,)
        Positions of the classes that means are predicted from.
    combination : ndarray of shape (M, A)
        ``C``. In single precision where there are more classes than anchors, because it is then
        the largest array there is beside the means.
    kept : ndarray of shape (M,)
        ``w``: the fraction of its residual that a class keeps beside the prediction; 0 for anchors,
        whose own part is in ``C``.
    correction : ndarray of shape (M,)
        What makes up for the noise left in the squared lengths, to be added to the biases.
    """

    anchors: np.ndarray
    combination: np.ndarray
    kept: np.ndarray
    correction: np.ndarray

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Mix values given per class along the last axis: ``values F^T``."""
        chosen = values[..., self.anchors].astype(self.combination.dtype, copy=False)
        predicted = chosen @ self.combination.T
        return predicted + self.kept * (values - predicted)

    def gram(self, inner: np.ndarray) -> np.ndarray:
        """Return the inner products of the anchors' estimated means from those of plain ones."""
        if not len(self.anchors):
            return inner
        combination = self.combination[self.anchors]
        mixed = product(product(combination, inner), combination.T)
        return np.asarray((mixed + mixed.T) / 2)

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


def choose_anchors(counts: np.ndarray) -> np.ndarray:
    """Positions of the classes with the most samples, at most `MOST_ANCHORS`."""
    if len(counts) <= MOST_ANCHORS:
        return np.arange(len(counts))
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_ANCHORS])


class Shrinkage:
    """The regression on the anchors, worked out once; classes are then mixed a block at a time.

    Parameters
    ----------
    inner : ndarray of shape (A, A)
        Inner products, in the whitened space, of the anchors' means.
    anchors : ndarray of shape (A,)
        Positions of the anchors.
    counts : ndarray of shape (M,)
        Samples of each class.
    spread : float
        ``tr(P Sigma)`` as a new sample sees it; without any, means are left as they are.
    inflation : float
        Variance of a new sample along a whitened direction.

    Attributes
    ----------
    mixing : Mixing
        Complete once the anchors and all blocks of other classes were mixed.
    basis : ndarray of shape (A, A)
        Eigenvectors of ``inner``, as columns. In terms of anchors turned by it, the regression of
        a class that is no anchor is a division.
    """

    def __init__(
        self,
        inner: np.ndarray,
        anchors: np.ndarray,
        counts: np.ndarray,
        *,
        spread: float,
        inflation: float,
    ) -> None:
        self.inner, self.anchors, self.counts, self.spread = inner, anchors, counts, spread
        noise_beyond = np.maximum(1 / counts - 1 / counts.mean(), 0.0)
        self._ridges = len(anchors) * inflation * noise_beyond
        self.active = len(counts) > 1 and spread > 0 and bool(self._ridges.any())
        if not self.active:  # as for most models: no class is rarer than the others
            self.mixing, self.basis = unmixed(counts, spread), np.eye(len(anchors))
            return
        values, self.basis = scipy.linalg.eigh(inner, driver="evd", check_finite=False)
        self._signal = _signal(values, self.basis, spread / counts[anchors], counts[anchors])
        self._values = np.maximum(values, 0.0)
        size = len(counts), len(anchors)
        single = len(counts) > len(anchors)
        combination = np.empty(size, np.float32 if single else np.float64)
        self.mixing = Mixing(anchors, combination, np.zeros(size[0]), np.zeros(size[0]))

    def mix_anchors(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mix the anchors, given the squared lengths of their plain means.

        The leave-one-out identity gives the weights of the others without a solve for each class:
        ``c_j = -B_jm / B_mm`` with ``B = (K + r_m I)^-1`` over all anchors.

        Returns
        -------
        combination : ndarray of shape (A, A)
            In double precision.
        kept : ndarray of shape (A,)
        squares : ndarray of shape (A,)
            Squared lengths of the estimated means: the diagonal of ``F K F^T``.
        """
        if not self.active:
            return np.empty((len(lengths), 0)), np.ones(len(lengths)), lengths.copy()
        rare = np.flatnonzero(self._ridges[self.anchors])
        # One column per class.
        inverse = 1 / (self._values[:, None] + self._ridges[self.anchors[rare]])
        weights = self.basis @ (self.basis.T[:, rare] * inverse)
        weights /= -weights[rare, np.arange(len(rare))]
        weights[rare, np.arange(len(rare))] = 0.0
        combination, own = np.eye(len(lengths)), np.ones(len(lengths))
        combination[rare], own[rare] = self._with_own_part(rare, weights.T, lengths[rare])
        kept = np.zeros(len(lengths))
        self._enter(self.anchors, combination, kept, own)
        return combination, kept, _row_products(product(combination, self.inner), combination)

    def _with_own_part(
        self, rare: np.ndarray, predicted: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give anchors their part in themselves; return the combinations and that part."""
        if len(self.anchors) == len(self.counts):
            # The means add up to zero, so a constant may be added to the weights. With a sum of one
            # they also say what becomes of the estimate when one of the plain means moves.
            own = -predicted.sum(axis=1) / max(len(self.anchors) - 1, 1)
            return predicted + (1 - predicted.sum(axis=1, keepdims=True)) / len(self.anchors), own
        crossed = _row_products(predicted, self.inner[rare])
        squares = _row_products(predicted @ self.inner, predicted)
        own = self._kept(lengths - 2 * crossed + squares, self._ridges[self.anchors[rare]])
        combination = (1 - own)[:, None] * predicted
        combination[np.arange(len(rare)), rare] = own
        return combination, own

    def _kept(self, residual: np.ndarray, ridges: np.ndarray) -> np.ndarray:
        floor = np.finfo(float).tiny
        return np.asarray(residual / np.maximum(residual + len(self.anchors) * ridges, floor))

    def excess(self) -> np.ndarray:
        """Return the noise beyond that of an average class in the anchors' squared lengths."""
        if not self.active:
            return np.zeros(len(self.anchors))
        own = np.clip(self.mixing.combination[self.anchors, np.arange(len(self.anchors))], 0.0, 1.0)
        counts = self.counts[self.anchors]
        noise = self.spread * np.maximum(1 / counts - 1 / self.counts.mean(), 0.0)
        return np.asarray(own * np.maximum(own * noise - (1 - own) * self._signal, 0.0))

    def leans(self, positions: np.ndarray) -> np.ndarray:
        """Whether classes lean on others at all; most do not."""
        if not self.active:
            return np.zeros(len(positions), bool)
        return np.asarray(self._ridges[positions] > 0)

    def keep(self, positions: np.ndarray) -> None:
        """Let classes that are no anchors and lean on no others keep their means."""
        if self.active:
            own = np.ones(len(positions))
            self._enter(positions, np.zeros((1, len(self.anchors))), own, own)

    def mix_others(
        self, positions: np.ndarray, turned: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mix classes that are no anchors and lean on others.

        Parameters
        ----------
        positions : ndarray of shape (B,)
            Their positions.
        turned : ndarray of shape (B, A)
            Inner products of their means with the anchors' means turned by the basis.
        lengths : ndarray of shape (B,)
            Squared lengths of their plain means.

        Returns
        -------
        combination : ndarray of shape (B, A)
            Of the turned anchors.
        kept, squares : ndarray of shape (B,)
            As from :meth:`mix_anchors`.
        """
        ridges = self._ridges[positions]
        combination = turned / (self._values + ridges[:, None])
        crossed = _row_products(combination, turned)
        predicted = combination**2 @ self._values
        residual = lengths - 2 * crossed + predicted
        kept = self._kept(residual, ridges)
        single = self.mixing.combination.dtype
        plain = combination.astype(single) @ self.basis.astype(single).T
        self._enter(positions, plain, kept, kept)
        rest = 1 - kept
        squares = rest**2 * predicted + 2 * kept * rest * crossed + kept**2 * lengths
        return combination, kept, squares

    def _enter(
        self, positions: np.ndarray, combination: np.ndarray, kept: np.ndarray, own: np.ndarray
    ) -> None:
        own = np.clip(own, 0.0, 1.0)
        noise = self.spread / self.counts[positions]
        excess = np.maximum(own * noise - (1 - own) * self._signal, 0.0)
        self.mixing.combination[positions] = combination
        self.mixing.kept[positions] = kept
        self.mixing.correction[positions] = 0.5 * own * excess


def _row_products(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("ma,ma->m", first, second))


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


def unmixed(counts: np.ndarray, spread: float) -> Mixing:
    """Plain means, left as they are."""
    n_classes = len(counts)
    correction = 0.5 * spread / counts if n_classes > 1 else np.zeros(n_classes)
    nothing = np.zeros((n_classes, 0))
    return Mixing(np.empty(0, np.int64), nothing, np.ones(n_classes), correction)


def log_priors(counts: np.ndarray) -> np.ndarray:
    """Return logarithms of prior probabilities: class frequencies, smoothed by the evidence.

    If priors come from a Dirichlet distribution with parameter c, counts drawn from them vary more
    than by chance, by a factor ``1 + (N - 1) / (M c + 1)``. That determines c, and the expected
    priors are ``(n_m + c) / (N + M c)``. If almost all classes are of one size, c is large, and a
    class with only a few samples is not taken for a rare one.

    Parameters
    ----------
    counts : ndarray of shape (M,)
        Samples of each class.

    Returns
    -------
    ndarray of shape (M,)
    """
    n_classes, total = len(counts), float(counts.sum())
    if n_classes < 2 or total < 2:
        return np.zeros(n_classes)
    by_chance = total / n_classes * (1 - 1 / n_classes)
    uneven = (float(counts.var()) / by_chance - 1) / (total - 1)
    if uneven <= 0:
        return np.full(n_classes, -np.log(n_classes))
    c = max((1 / uneven - 1) / n_classes, LEAST_OF_AVERAGE * total / n_classes)
    return np.asarray(np.log((counts + c) / (total + n_classes * c)))
