"""Means of rare classes, estimated with the help of the other classes; and class priors.

The mean of a class with n samples carries noise. In the space whitened by the precision P, its
squared length is too large by ``spread / n`` (``spread = tr(P Sigma)``, in the thousands), which
keeps a class with a few samples from ever being predicted. Adding ``spread / (2 n)`` to the bias
corrects this on average, but leaves the noise in the direction of the mean.

Class means are alike, though: much of what distinguishes a class lies in directions in which the
other classes differ from each other. So each mean, relative to the mean of all means, is replaced
by its ridge regression on the others,

    c_m = (K + r_m I)^-1 k_m,      r_m = M v (1 / n_m - 1 / n),

where K are the inner products of the other means and k_m those with class m. This is the posterior
mean under a normal prior with the covariance of the other means (empirical Bayes). ``v`` is the
variance of a new sample along a whitened direction and n the average number of samples per class:
the other means are noisy too, so only the noise beyond theirs counts, and a class with an average
number of samples or more keeps its mean.

The relative means add up to zero, so the part of a mean that the others do not explain is one more
direction of small variance. The fraction ``own_m`` of it is kept, which grows with n_m. With
``own = signal / (signal + noise)`` the scores are right on average; the noise that a larger
fraction lets through is corrected in the biases.

All of this needs inner products of class means only, no samples. With more than 1,024 classes the
means stay as they are, and only the biases are corrected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import scipy

from klda.engine.arrays import product

NO_VARIANCE = 1e-6  # of the largest eigenvalue: below, the direction in which means add up to zero
ALMOST_NO_RIDGE = 1e-3
LEAST_OF_AVERAGE = 0.1  # of the average count: added to all counts, however uneven they are


@dataclass(frozen=True)
class Mixing:
    """How estimated means are made of plain means.

    Attributes
    ----------
    combination : ndarray of shape (M, M) or None
        F: estimated means are ``F means``. None if they are the plain ones.
    correction : ndarray of shape (M,)
        What makes up for the noise left in the squared lengths, to be added to the biases.
    excess : ndarray of shape (M,)
        That noise, beyond an average class's.
    ridges : ndarray of shape (M,)
        r_m; zero for a class that leans on no others.
    values, basis : ndarray of shape (M,), (M, M)
        Eigenvalues and eigenvectors of the inner products.
    """

    combination: np.ndarray | None
    correction: np.ndarray
    excess: np.ndarray
    ridges: np.ndarray
    values: np.ndarray = field(default_factory=lambda: np.empty(0))
    basis: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))

    def apply(self, values: np.ndarray) -> np.ndarray:
        """Mix values given per class along the last axis: ``values F^T``."""
        return values if self.combination is None else values @ self.combination.T

    def gram(self, inner: np.ndarray) -> np.ndarray:
        """Return the inner products of estimated means from those of plain ones."""
        if self.combination is None:
            return inner
        mixed = product(product(self.combination, inner), self.combination.T)
        return np.asarray((mixed + mixed.T) / 2)


def unmixed(counts: np.ndarray, spread: float) -> Mixing:
    """Leave means as they are."""
    n_classes = len(counts)
    correction = 0.5 * spread / counts if n_classes > 1 else np.zeros(n_classes)
    return Mixing(None, correction, np.zeros(n_classes), np.zeros(n_classes))


def mix_means(inner: np.ndarray, counts: np.ndarray, spread: float, inflation: float) -> Mixing:
    """Return how to estimate the means of rare classes.

    The leave-one-out identity gives the weights of the others without a solve for each class:
    ``c_j = -B_jm / B_mm`` with ``B = (K + r_m I)^-1`` over all classes.

    Parameters
    ----------
    inner : ndarray of shape (M, M)
        Inner products, in the whitened space, of the class means.
    counts : ndarray of shape (M,)
        Samples of each class.
    spread : float
        ``tr(P Sigma)`` as a new sample sees it; without any, means are left as they are.
    inflation : float
        Variance of a new sample along a whitened direction.
    """
    noise_beyond = np.maximum(1 / counts - 1 / counts.mean(), 0.0)
    rare = np.flatnonzero(noise_beyond)
    if len(counts) < 2 or spread <= 0 or not len(rare):  # as in most models
        return unmixed(counts, spread)
    n_classes, noise = len(counts), spread / counts
    values, basis = scipy.linalg.eigh(inner, driver="evd", check_finite=False)
    signal = _signal(values, basis, noise, counts)
    values, ridges = np.maximum(values, 0.0), n_classes * inflation * noise_beyond
    inverse = 1 / (values[:, None] + ridges[rare])  # one column per rare class
    weights = basis @ (basis.T[:, rare] * inverse)
    weights /= -weights[rare, np.arange(len(rare))]
    weights[rare, np.arange(len(rare))] = 0.0
    predicted = weights.T
    # The means add up to zero, so a constant may be added to the weights. With a sum of one they
    # also say what becomes of the estimate when one of the plain means moves.
    combination, own = np.eye(n_classes), np.ones(n_classes)
    own[rare] = np.clip(-predicted.sum(axis=1) / (n_classes - 1), 0.0, 1.0)
    combination[rare] = predicted + (1 - predicted.sum(axis=1, keepdims=True)) / n_classes
    correction = 0.5 * own * np.maximum(own * noise - (1 - own) * signal, 0.0)
    part = np.clip(combination.diagonal(), 0.0, 1.0)
    excess = part * np.maximum(part * spread * noise_beyond - (1 - part) * signal, 0.0)
    return Mixing(combination, correction, excess, ridges, values, basis)


def _signal(
    values: np.ndarray, vectors: np.ndarray, noise: np.ndarray, counts: np.ndarray
) -> float:
    """Squared length, less noise, of what the other classes can't say of a class, on average."""
    used = values > NO_VARIANCE * values[-1]
    if not used.any():
        return 0.0
    inverse = vectors[:, used] ** 2 @ (1 / (values[used] + ALMOST_NO_RIDGE * values[-1]))
    residual = np.divide(1, inverse, out=np.zeros_like(inverse), where=inverse > 0)
    return max(float(np.average(residual - noise, weights=counts)), 0.0)


def log_priors(counts: np.ndarray) -> np.ndarray:
    """Return logarithms of prior probabilities: class frequencies, smoothed by the evidence.

    If priors come from a Dirichlet distribution with parameter c, counts drawn from them vary more
    than by chance, by a factor ``1 + (N - 1) / (M c + 1)``. That determines c, and the expected
    priors are ``(n_m + c) / (N + M c)``. If almost all classes are of one size, c is large, and a
    class with only a few samples is not taken for a rare one.
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
