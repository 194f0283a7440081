"""The rule: how scores follow from inner products of class means.

With the linear scores ``s_m = (z - g)^T P (mu_m - g)`` and the inner products ``K`` of the class
means, LDA's scores are ``s_m - K_mm / 2``.

Regression onto the classes is added to them. LDA answers with the nearest class mean; ridge
regression onto one-hot targets asks instead how much of each class is in a sample. It needs no
statistics beyond LDA's: by the Woodbury identity it is

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
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from klda.engine.novelty import MOST_CLASSES, RelativeMahalanobis, inverted
from klda.engine.parameters import Parameters
from klda.engine.shrinkage import Mixing, log_priors, mix_means, unmixed

PRIOR_WEIGHT = 2.0  # times inflation: scores are larger than log-likelihoods by far more
LDA_PART = 1.6  # of LDA's scores, in units of k, beside the regression's outputs
FADES_BELOW, MOST_FADED = 40, 20  # samples per class; upper limit of (40 / n)^2
LEAST_OF_OWN = 0.25  # of an output at the mean of a class is signal, however noisy the mean is
SMALLEST_OUTPUT = 1e-3


@dataclass(frozen=True)
class RuleTerms:
    """What a rule is made of, beyond the plain weights; classes in the order of their labels."""

    mixing: Mixing
    squares: np.ndarray  # (mu_m - g)^T P (mu_m - g) of the estimated means
    extra: np.ndarray  # corrections and priors in the biases
    blend: np.ndarray | None  # what linear scores are multiplied by, where regression is added
    novelty: RelativeMahalanobis

    @property
    def offsets(self) -> np.ndarray:
        """What scores have beyond the linear ones."""
        return np.asarray(self.extra - 0.5 * self.squares)


def rule_terms(
    inner: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    spread: float,
    inflation: float,
    parameters: Parameters,
    extra: np.ndarray,
) -> RuleTerms:
    """Compute the terms from inner products of class means.

    Parameters
    ----------
    inner : ndarray of shape (A, A)
        Inner products of the means of all classes, or of the `largest_classes`.
    lengths : ndarray of shape (M,)
        Squared lengths of all.
    counts : ndarray of shape (M,)
        Samples of each class.
    spread, inflation : float
        ``tr(P Sigma)`` as a new sample sees it, and how many times the in-sample one that is.
    extra : ndarray of shape (M,)
        What else is added to the biases.
    """
    chosen, blending = largest_classes(counts), None
    if len(chosen) < len(counts):
        mixing, gram, squares = unmixed(counts, spread), inner, lengths
    else:
        mixing = mix_means(inner, counts, spread, inflation)
        gram = mixing.gram(inner)
        squares = gram.diagonal()
        if parameters.rule == "auto" and len(counts) > 1:
            blending = blend(gram, counts, float(np.median(lengths)), mixing.excess)
    if counts.max(initial=0) <= 1:  # how far out a single sample is says nothing about its class
        squares = np.full_like(squares, squares.mean())
    extra = extra + mixing.correction
    if parameters.priors == "empirical":
        extra = extra + np.log(counts / counts.sum())
    elif parameters.priors == "auto":
        extra = extra + PRIOR_WEIGHT * inflation * log_priors(counts)
    offsets = extra - 0.5 * squares
    novelty = RelativeMahalanobis.of(gram, chosen, squares, offsets, counts, blending)
    return RuleTerms(mixing, squares, extra, blending, novelty)


def largest_classes(counts: np.ndarray) -> np.ndarray:
    """Return the positions of the classes whose means are compared with each other."""
    if len(counts) <= MOST_CLASSES:
        return np.arange(len(counts))
    return np.sort(np.argsort(-counts, kind="stable")[:MOST_CLASSES])


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
