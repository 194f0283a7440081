"""The decision rule: LDA's scores plus ridge regression, both from inner products of class means.

With the linear scores ``s_m = (z - g)^T P (mu_m - g)`` and the inner products ``K`` of the class
means, LDA's scores are ``s_m - K_mm / 2``: it answers with the nearest class mean.

Ridge regression onto one-hot targets models instead how much of each class is in a sample. It needs
no statistics beyond LDA's: by the Woodbury identity it is

    f = s G,      G = (diag(1 / p) + K)^-1,

where p are the class fractions. Plain counts would favour large classes and equal ones would trust
small classes too much, so p is proportional to the square roots of the counts. The outputs of rare
classes are still too small; they are divided by the output of a new sample at the class mean,
``[K G]_mm``, fully for the rarest classes and not at all from the median count on.

LDA and regression make different errors, and their sum is better than either:

    scores = s_LDA + a f,      a = k / 4,

where k is the median squared length of a class mean. The sum of two linear scores is a linear
score, so predicting costs the same.

The same inner products tell how unlike anything learned an input is (`RelativeMahalanobis`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from klda.engine.parameters import Parameters
from klda.engine.shrinkage import Mixing, log_priors, mix_means, unmixed

PRIOR_WEIGHT = 2.0  # times inflation: scores are larger than log-likelihoods by far more
# Weight of LDA's scores, in units of k, beside the regression's outputs. Level from 1.6 to 12 on
# average over fifteen sets, from two samples per class to all of them.
LDA_PART = 4.0
LEAST_OF_OWN = 0.25  # of an output at the mean of a class is signal, however noisy the mean is
SMALLEST_OUTPUT = 1e-3
MOST_CLASSES = 1024  # whose means are compared with each other: the largest ones
# Names of what is stored of a `RelativeMahalanobis`, and those of its attributes.
STORED = {
    "offsets": "offsets",
    "lengths": "lengths",
    "anchors": "chosen",
    "shares": "fractions",
    "shifts": "shifts",
    "factor": "factor",
    "unblend": "unblend",
}


@dataclass(frozen=True)
class RelativeMahalanobis:
    """How far an input is from every class, relative to how far it is from all of them together.

    ``min_m d_m(z) - d_0(z)`` (Ren et al. 2021): ``d_m`` from a class's mean with the covariance
    within classes, ``d_0`` from the mean of everything with the total covariance. The two
    covariances differ by the M class means only, so by the Woodbury identity the difference of the
    distances is a function of the M scores, and needs no matrix of the size of the covariance.

    Attributes
    ----------
    offsets : ndarray of shape (M,)
        What the scores have beyond ``(z - g)^T P (mu_m - g)``.
    lengths : ndarray of shape (M,)
        ``(mu_m - g)^T P (mu_m - g)``.
    chosen : ndarray of shape (A,)
        Classes that make up the total covariance.
    fractions : ndarray of shape (A,)
        Their fractions of the samples.
    shifts : ndarray of shape (A,)
        What centring on the weighted mean subtracts from each one's linear score.
    system : ndarray of shape (A, A)
        ``I + B^T P B``, B the weighted and centred means.
    blend : ndarray of shape (M, M) or (0, 0)
        What LDA's linear scores were multiplied by; empty if by nothing.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    chosen: np.ndarray
    fractions: np.ndarray
    shifts: np.ndarray
    system: np.ndarray
    blend: np.ndarray

    @classmethod
    def of(
        cls,
        inner: np.ndarray,
        chosen: np.ndarray,
        lengths: np.ndarray,
        offsets: np.ndarray,
        counts: np.ndarray,
        blend: np.ndarray | None,
    ) -> RelativeMahalanobis:
        """Compute it from the inner products of the chosen classes' means."""
        fractions = counts[chosen] / counts[chosen].sum()
        of_mean = inner @ fractions
        centred = inner - of_mean[:, None] - of_mean + fractions @ of_mean
        root = np.sqrt(fractions)
        system = np.eye(len(chosen)) + root[:, None] * centred * root
        blend = np.empty((0, 0)) if blend is None else blend
        return cls(offsets, lengths, chosen, fractions, of_mean, system, blend)

    # Predicting a class needs neither of these two: they are made when first asked for.

    @cached_property
    def factor(self) -> np.ndarray:
        """Cholesky factor of the system."""
        # SciPy's, like all that is solved: NumPy's threads would wait for those of SciPy's BLAS.
        return np.asarray(scipy.linalg.cholesky(self.system, lower=True, check_finite=False))

    @cached_property
    def unblend(self) -> np.ndarray:
        """What turns blended linear scores into LDA's; empty if they are."""
        return inverted(self.blend) if len(self.blend) else self.blend

    def pack(self) -> dict[str, np.ndarray]:
        """Return named arrays."""
        return {name: getattr(self, own) for name, own in STORED.items()}

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], n_classes: int) -> RelativeMahalanobis:
        """Return what `pack` described: the factors, not what they were made of."""
        nothing = np.empty((0, 0))
        arrays = {"unblend": nothing, **arrays}
        values = {own: np.asarray(arrays[name]) for name, own in STORED.items()}
        np.arange(n_classes)[values["chosen"]]  # raises if there are no such classes
        factors = {name: values.pop(name) for name in ("factor", "unblend")}
        known = cls(**values, system=nothing, blend=nothing)
        vars(known).update(factors)
        return known

    def inner(self) -> np.ndarray:
        """Return the inner products of the chosen means, relative to the mean of everything."""
        root = np.sqrt(self.fractions)
        weighted = self.factor @ self.factor.T - np.eye(len(root))
        return np.asarray(weighted / root[:, None] / root)

    def of_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return the relative Mahalanobis distances of inputs, from their scores ``(n, M)``."""
        if len(self.unblend):
            linear = scores.astype(np.float64) - self.offsets
            scores = linear @ self.unblend + self.offsets
        return self.of_lda_scores(scores)

    def of_lda_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return the same from scores of LDA's rule, whatever the rule is."""
        linear = scores.astype(np.float64)
        linear -= self.offsets
        nearest = (self.lengths - 2 * linear).min(axis=1)
        linear = linear[:, self.chosen]
        of_mean = linear @ self.fractions
        mean_length = self.fractions @ self.shifts
        centred = linear - of_mean[:, None] - self.shifts + mean_length
        weighted = (centred * np.sqrt(self.fractions)).T
        solve = scipy.linalg.solve_triangular
        between = solve(self.factor, weighted, lower=True, check_finite=False)
        return np.asarray(nearest + (2 * of_mean - mean_length + (between**2).sum(axis=0)))


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
    return np.asarray(np.eye(len(inner)) + scale / LDA_PART * regression)


def unit_of(squares: np.ndarray) -> float:
    """Return half the typical squared distance between two class means."""
    n_classes = len(squares)
    return float(np.median(squares)) * n_classes / max(n_classes - 1, 1) or 1.0


def inverted(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse of a small matrix, without a warning if it is badly conditioned.

    Of a singular one, the pseudo-inverse.
    """
    factor, pivots, singular = scipy.linalg.lapack.dgetrf(matrix)
    if singular:
        return np.asarray(scipy.linalg.pinv(matrix, check_finite=False))
    return np.asarray(scipy.linalg.lapack.dgetri(factor, pivots, overwrite_lu=1)[0])
