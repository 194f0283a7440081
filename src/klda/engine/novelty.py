"""How unlike anything learned an input is: the relative Mahalanobis distance."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import scipy

from klda.engine.arrays import product
from klda.errors import KldaError


@dataclass(frozen=True)
class RelativeMahalanobis:
    """How far an input is from every class, relative to how far it is from all of them together.

    ``min_m d_m(z) - d_0(z)`` (Ren et al. 2021): ``d_m`` from a class's mean with the covariance
    within classes, ``d_0`` from the mean of everything with the total covariance. The two
    covariances differ by the M class means only, so by the Woodbury identity the difference of the
    distances is a function of the M scores, and needs no matrix of the size of the covariance.
    """

    offsets: np.ndarray  # (M,): what the scores have beyond ``(z - g)^T P (mu_m - g)``
    lengths: np.ndarray  # (M,): ``(mu_m - g)^T P (mu_m - g)``
    chosen: np.ndarray  # (A,): classes that make up the total covariance
    fractions: np.ndarray  # (A,): their fractions of the samples
    # (A,): what centring on the weighted mean subtracts from each one's linear score.
    shifts: np.ndarray
    system: np.ndarray  # (A, A): ``I + B^T P B``, B the weighted and centred means
    # (M, M) or (0, 0): what LDA's linear scores were multiplied by; empty if by nothing.
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
        of_mean = np.einsum("ij,j->i", inner, fractions)  # no BLAS: see klda.engine.arrays
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
        factorise = partial(scipy.linalg.cholesky, lower=True, check_finite=False)
        size, rounding = len(self.system), np.finfo(float).eps * float(self.system.trace())
        for noise in (0.0, *(rounding * 10.0 ** np.arange(12))):
            with suppress(scipy.linalg.LinAlgError):  # of means so far apart that rounding shows
                return np.asarray(factorise(self.system + noise * np.eye(size)))
        raise KldaError("The class means can't be compared: the model was damaged.")

    @cached_property
    def unblend(self) -> np.ndarray:
        """What turns blended linear scores into LDA's; empty if they are."""
        return inverted(self.blend) if len(self.blend) else self.blend

    def inner(self) -> np.ndarray:
        """Return the inner products of the chosen means, relative to the mean of everything."""
        root = np.sqrt(self.fractions)
        weighted = self.factor @ self.factor.T - np.eye(len(root))
        return np.asarray(weighted / root[:, None] / root)

    def of_scores(self, scores: np.ndarray) -> np.ndarray:
        """Return the relative Mahalanobis distances of inputs, from their scores ``(n, M)``."""
        if len(self.unblend):
            linear = scores.astype(np.float64) - self.offsets
            scores = product(linear, self.unblend) + self.offsets
        return self.of_lda_scores(scores)

    def of_lda_scores(self, scores: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
        """Return the same from scores of LDA's rule, whatever the rule is.

        With the squared lengths ``(n, M)`` of the class means as each input finds them, if given.
        """
        linear = scores.astype(np.float64)
        linear -= self.offsets
        nearest = ((self.lengths if lengths is None else lengths) - 2 * linear).min(axis=1)
        linear = linear[:, self.chosen]
        of_mean = np.einsum("ij,j->i", linear, self.fractions)
        mean_length = self.fractions @ self.shifts
        centred = linear - of_mean[:, None] - self.shifts + mean_length
        weighted = (centred * np.sqrt(self.fractions)).T
        solve = scipy.linalg.solve_triangular
        between = solve(self.factor, weighted, lower=True, check_finite=False)
        return np.asarray(nearest + (2 * of_mean - mean_length + (between**2).sum(axis=0)))

    # ---------------------------------------------------------------- storage

    def pack(self) -> dict[str, np.ndarray]:
        """Return named arrays."""
        return {name: getattr(self, name) for name in STORED}

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], n_classes: int) -> RelativeMahalanobis:
        """Return what `pack` described: the factors, not what they were made of."""
        values = {name: np.asarray(arrays[name]) for name in STORED}
        np.arange(n_classes)[values["chosen"]]  # raises if there are no such classes
        factors = {name: values.pop(name) for name in ("factor", "unblend")}
        nothing = np.empty((0, 0))
        known = cls(**values, system=nothing, blend=nothing)
        vars(known).update(factors)
        return known


STORED = ("offsets", "lengths", "chosen", "fractions", "shifts", "factor", "unblend")


def inverted(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse of a small matrix, without a warning if it is badly conditioned.

    Of a singular one, the pseudo-inverse.
    """
    factor, pivots, singular = scipy.linalg.lapack.dgetrf(matrix)
    if singular:
        return np.asarray(scipy.linalg.pinv(matrix, check_finite=False))
    return np.asarray(scipy.linalg.lapack.dgetri(factor, pivots, overwrite_lu=1)[0])
