"""How far an input is from everything learned, from its scores alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy

from klda.engine.regression import inverted

STORED = ("offsets", "lengths", "anchors", "shares", "shifts", "factor", "unblend")


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
    shares : ndarray of shape (A,)
        Their fractions of the samples.
    shifts : ndarray of shape (A,)
        What centring on the weighted mean subtracts from each anchor's linear score.
    system : ndarray of shape (A, A)
        ``I + B^T P B``, B the weighted and centred means.
    blend : ndarray of shape (M, M) or (0, 0)
        What LDA's linear scores were multiplied by (`klda.engine.regression`); empty if by nothing.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    anchors: np.ndarray
    shares: np.ndarray
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
        shares = counts[anchors] / counts[anchors].sum()
        of_mean = inner @ shares
        centred = inner - of_mean[:, None] - of_mean + shares @ of_mean
        root = np.sqrt(shares)
        system = np.eye(len(anchors)) + root[:, None] * centred * root
        blend = np.empty((0, 0)) if blend is None else blend
        return cls(offsets, lengths, anchors, shares, of_mean, system, blend)

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
        return {name: getattr(self, name) for name in STORED}

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray]) -> Familiarity:
        """Return what `pack` described."""
        nothing = np.empty((0, 0))
        offsets, lengths, anchors, shares, shifts, factor = (arrays[name] for name in STORED[:-1])
        known = cls(offsets, lengths, anchors, shares, shifts, system=nothing)
        vars(known).update(factor=factor, unblend=arrays.get("unblend", nothing))
        return known

    def inner(self) -> np.ndarray:
        """Return the inner products of the anchors' means, relative to the mean of everything."""
        root = np.sqrt(self.shares)
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
        of_mean = linear @ self.shares
        mean_length = self.shares @ self.shifts
        centred = linear - of_mean[:, None] - self.shifts + mean_length
        weighted = (centred * np.sqrt(self.shares)).T
        solve = scipy.linalg.solve_triangular
        between = solve(self.factor, weighted, lower=True, check_finite=False)
        return np.asarray(nearest + (2 * of_mean - mean_length + (between**2).sum(axis=0)))
