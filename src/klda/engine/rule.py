"""The rule: how scores follow from inner products of class means.

It is the same for a model of statistics (`klda.engine.solve`) and for one that holds its samples
(`klda.engine.few_samples`). With the linear scores ``s_m = (z - g)^T P (mu_m - g)`` and the inner
products ``K`` of the class means, LDA's scores are ``s_m - K_mm / 2``.

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

All constants were chosen by cross-validation within the training rows of four data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import scipy

from klda.engine.shrinkage import PRIOR_WEIGHT, Mixing, Shrinkage, log_priors

AUTO_RIDGES = (1e-1, 1e-2)  # at as many samples as components, and from twice as many on
FEW_SHOT_RIDGE = 400.0  # at one sample per class; falls with their number to the power of -2.5
SMALLEST_SLACK = 0.05  # of 1 - D_eff / (N - M), below which D_out is not to be trusted
LDA_PART = 1.6  # of LDA's scores, in units of k, beside the regression's outputs
FADES_BELOW, MOST_FADED = 40, 20  # samples per class; upper limit of (40 / n)^2
LEAST_OF_OWN = 0.25  # of an output at the mean of a class is signal, however noisy the mean is
SMALLEST_OUTPUT = 1e-3


@dataclass(frozen=True)
class Settings:
    """What the user chose of all that a solution depends on.

    Attributes
    ----------
    ridge : float or "auto"
        Added to the covariance's diagonal, relative to its mean.
    priors : {"auto", "uniform", "empirical"}
        Prior probabilities of the classes.
    small_sample_correction : bool
        Estimate the means of rare classes with the help of the others.
    combine : {"scores", "probabilities"}
        What is averaged over the members of an ensemble.
    calibrated : bool
        Use the model's evidence for probabilities and for what is unknown.
    nearest_mean : bool
        Answer with the nearest class mean by cosine, without a covariance.
    rule : {"auto", "lda"}
        ``"lda"``: the paper's rule. ``"auto"``: regression is added to it, and a larger ridge is
        used while there are few samples of each class.
    """

    ridge: float | str = "auto"
    priors: str = "auto"
    small_sample_correction: bool = True
    combine: str = "scores"
    calibrated: bool = False
    nearest_mean: bool = False
    rule: str = "lda"

    @classmethod
    def of(cls, parameters: Mapping[str, Any], *, nearest_mean: bool) -> Settings:
        """Take from a classifier's parameters those that a solution depends on."""
        chosen = {each.name: parameters.get(each.name, each.default) for each in fields(cls)}
        return cls(**(chosen | {"nearest_mean": nearest_mean}))

    def relative_ridge(self, counts: np.ndarray, n_components: int) -> float:
        """Return the ridge relative to the mean diagonal of the covariance."""
        if not isinstance(self.ridge, str):
            return self.ridge
        n_samples = max(int(counts.sum()), 1)
        ratio = n_samples / n_components
        first, last = AUTO_RIDGES
        if ratio < 1:  # worth D / 10 samples whose scatter is the same in all directions
            ridge = first / ratio
        else:
            ridge = float(first * (last / first) ** min(np.log2(ratio), 1.0))
        if self.rule == "lda":
            return ridge
        return max(ridge, FEW_SHOT_RIDGE * float(n_samples / max(len(counts), 1)) ** -2.5)


@dataclass(frozen=True)
class RuleTerms:
    """What a rule is made of, beyond the plain weights; classes in the order of their labels."""

    mixing: Mixing
    squares: np.ndarray  # (mu_m - g)^T P (mu_m - g) of the estimated means
    extra: np.ndarray  # corrections and priors in the biases
    blend: np.ndarray | None  # what linear scores are multiplied by, where regression is added
    familiarity: Familiarity

    @property
    def offsets(self) -> np.ndarray:
        """What scores have beyond the linear ones."""
        return np.asarray(self.extra - 0.5 * self.squares)

    @classmethod
    def of(
        cls, shrinkage: Shrinkage, squares: np.ndarray, inflation: float, settings: Settings
    ) -> RuleTerms:
        """Compute the terms from inner products of class means.

        Call after every class has been mixed.
        """
        counts, mixing = shrinkage.counts, shrinkage.mixing
        extra = mixing.correction
        if settings.priors == "empirical":
            extra = extra + np.log(counts / counts.sum())
        elif settings.priors == "auto":
            extra = extra + PRIOR_WEIGHT * inflation * log_priors(counts)
        gram, blending = mixing.gram(shrinkage.inner), None
        if settings.rule == "auto" and len(shrinkage.anchors) == len(counts) > 1:
            length = float(np.median(shrinkage.inner.diagonal()))
            blending = blend(gram, counts, length, shrinkage.excess())
        offsets = extra - 0.5 * squares
        known = Familiarity.of(gram, shrinkage.anchors, squares, offsets, counts, blending)
        return cls(mixing, squares, extra, blending, known)


@dataclass(frozen=True)
class Familiarity:
    """How far an input is from every class, relative to how far it is from all of them together.

    The relative Mahalanobis distance ``min_m d_m(z) - d_0(z)`` (Ren et al. 2021): ``d_m`` from a
    class's mean with the covariance within classes, ``d_0`` from the mean of everything with the
    total covariance. The two covariances differ by the M class means only, so by the Woodbury
    identity the difference of the distances is a function of the M scores, and needs no matrix of
    the size of the covariance.

    Attributes
    ----------
    offsets : ndarray of shape (M,)
        What the scores have beyond ``(z - g)^T P (mu_m - g)``.
    lengths : ndarray of shape (M,)
        ``(mu_m - g)^T P (mu_m - g)``.
    anchors : ndarray of shape (A,)
        Classes that make up the total covariance.
    fractions : ndarray of shape (A,)
        Their fractions of the samples.
    shifts : ndarray of shape (A,)
        What centring on the weighted mean subtracts from each anchor's linear score.
    system : ndarray of shape (A, A)
        ``I + B^T P B``, B the weighted and centred means.
    blend : ndarray of shape (M, M) or (0, 0)
        What LDA's linear scores were multiplied by; empty if by nothing.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    anchors: np.ndarray
    fractions: np.ndarray
    shifts: np.ndarray
    system: np.ndarray
    blend: np.ndarray = field(default_factory=lambda: np.empty((0, 0)))

    @classmethod
    def of(
        cls,
        inner: np.ndarray,
        anchors: np.ndarray,
        lengths: np.ndarray,
        offsets: np.ndarray,
        counts: np.ndarray,
        blend: np.ndarray | None = None,
    ) -> Familiarity:
        """Compute it from the inner products of the anchors' means."""
        fractions = counts[anchors] / counts[anchors].sum()
        of_mean = inner @ fractions
        centred = inner - of_mean[:, None] - of_mean + fractions @ of_mean
        root = np.sqrt(fractions)
        system = np.eye(len(anchors)) + root[:, None] * centred * root
        blend = np.empty((0, 0)) if blend is None else blend
        return cls(offsets, lengths, anchors, fractions, of_mean, system, blend)

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
        return {
            "offsets": self.offsets,
            "lengths": self.lengths,
            "anchors": self.anchors,
            "shares": self.fractions,
            "shifts": self.shifts,
            "factor": self.factor,
            "unblend": self.unblend,
        }

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray]) -> Familiarity:
        """Return what `pack` described."""
        nothing = np.empty((0, 0))
        names = ("offsets", "lengths", "anchors", "shares", "shifts")
        offsets, lengths, anchors, fractions, shifts = (arrays[name] for name in names)
        known = cls(offsets, lengths, anchors, fractions, shifts, system=nothing)
        vars(known).update(factor=arrays["factor"], unblend=arrays.get("unblend", nothing))
        return known

    def inner(self) -> np.ndarray:
        """Return the inner products of the anchors' means, relative to the mean of everything."""
        root = np.sqrt(self.fractions)
        weighted = self.factor @ self.factor.T - np.eye(len(root))
        return np.asarray(weighted / root[:, None] / root)

    def novelty(self, scores: np.ndarray) -> np.ndarray:
        """Return the relative Mahalanobis distances of inputs, from their scores ``(n, M)``."""
        if len(self.unblend):
            linear = scores.astype(np.float64) - self.offsets
            scores = linear @ self.unblend + self.offsets
        return self.novelty_of_lda(scores)

    def novelty_of_lda(self, scores: np.ndarray) -> np.ndarray:
        """Return the same from scores of LDA's rule, whatever the rule is."""
        linear = scores.astype(np.float64)
        linear -= self.offsets
        nearest = (self.lengths - 2 * linear).min(axis=1)
        linear = linear[:, self.anchors]
        of_mean = linear @ self.fractions
        mean_length = self.fractions @ self.shifts
        centred = linear - of_mean[:, None] - self.shifts + mean_length
        weighted = (centred * np.sqrt(self.fractions)).T
        solve = scipy.linalg.solve_triangular
        between = solve(self.factor, weighted, lower=True, check_finite=False)
        return np.asarray(nearest + (2 * of_mean - mean_length + (between**2).sum(axis=0)))


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
    """Return the inverse of a small matrix, without a warning if it is badly conditioned.

    Of a singular one, the pseudo-inverse.
    """
    factor, pivots, singular = scipy.linalg.lapack.dgetrf(matrix)
    if singular:
        return np.asarray(scipy.linalg.pinv(matrix, check_finite=False))
    return np.asarray(scipy.linalg.lapack.dgetri(factor, pivots, overwrite_lu=1)[0])


def out_of_sample(inside: float, freedom: int) -> tuple[float, float]:
    """Return ``tr(P Sigma)`` as a new sample sees it, and how many times the in-sample one it is.

    ``inside`` is the in-sample trace, ``freedom`` the degrees of freedom within classes.
    """
    inside = max(inside, 0.0)
    inflation = 1 / max(1 - inside / freedom, SMALLEST_SLACK)
    return inside * inflation, inflation
