"""Regression onto the classes, added to the scores of LDA.

LDA answers with the nearest class mean. Ridge regression onto one-hot targets asks instead how much
of each class is in a sample. It needs no statistics beyond LDA's: with the linear scores
``s_m = (z - g)^T P (mu_m - g)`` and the inner products ``K`` of the class means, it is, by the
Woodbury identity,

    f = s G,      G = (diag(1 / p) + K)^-1,

p being the fractions of the classes. Counts as they are would give large classes more than their
due, equal ones would trust small classes too much: p is made of the square roots of the counts.
Even so, the outputs of rare classes are too small. They are divided by what a new sample at the
mean of their class gets, ``[K G]_mm``; the more samples a class has, the less of that, down to
nothing at the median number. Regression tells classes apart that share directions; LDA does
better with few samples of each class and with very uneven ones. Their errors differ, so that the
sum of both is better than either:

    scores = s_LDA + a f,      a = k / q,      q = 1.6 (1 + min((40 / n)^2, 20)),

k being the median squared length of a mean and n the average number of samples: with few samples
the regression fades. A sum of linear scores is a linear score: predicting costs what it did.

All constants were chosen by cross-validation within the training rows of four data sets.
"""

from __future__ import annotations

import numpy as np
import scipy

LDA_PART = 1.6  # of LDA's scores, in units of k, beside the regression's outputs
FADES_BELOW, MOST_FADED = 40, 20  # samples per class; how often LDA's part is added at most
LEAST_OF_OWN = 0.25  # of an output at the mean of a class is signal, however noisy the mean is
SMALLEST_OUTPUT = 1e-3


def lda_part(counts: np.ndarray) -> float:
    """Return q, the weight of LDA's scores beside the regression's."""
    faded = (FADES_BELOW / max(counts.mean(), 1e-9)) ** 2
    return float(LDA_PART * (1 + min(faded, MOST_FADED)))


def blend(inner: np.ndarray, counts: np.ndarray, scale: float, excess: np.ndarray) -> np.ndarray:
    """Return ``B = I + a G / outputs``: blended linear scores are ``s B``.

    Parameters
    ----------
    inner : ndarray of shape (M, M)
        Inner products, in the whitened space, of the class means as estimated.
    counts : ndarray of shape (M,)
        Samples of each class.
    scale : float
        Median squared length of the plain means.
    excess : ndarray of shape (M,)
        Noise in the squared lengths: a new sample does not share it.
    """
    roots = np.sqrt(counts)
    inverse = inverted(np.diag(roots.sum() / roots) + inner)
    inverse = (inverse + inverse.T) / 2
    own = np.einsum("ij,ji->i", inner, inverse)
    of_new = np.maximum(own - excess * inverse.diagonal(), LEAST_OF_OWN * own)
    of_new, usual = np.maximum(of_new, SMALLEST_OUTPUT), max(own.mean(), SMALLEST_OUTPUT)
    enough = np.minimum(counts / np.median(counts), 1.0)
    outputs = of_new ** (1 - enough) * usual**enough
    # Linear scores add up to zero, because the means do. Where they don't (a sample left out, means
    # that were estimated), that is noise, which the inverse would multiply.
    regression = (inverse - inverse.mean(axis=0)) / outputs
    return np.asarray(np.eye(len(inner)) + scale / lda_part(counts) * regression)


def inverted(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse of a small matrix, however badly conditioned it is."""
    factor, pivots, _ = scipy.linalg.lapack.dgetrf(matrix)
    return np.asarray(scipy.linalg.lapack.dgetri(factor, pivots, overwrite_lu=1)[0])
