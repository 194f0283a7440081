"""From scores to answers: probabilities, and whether an input is like anything known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg

from klda.backend import NumpyBackend
from klda.shrinkage import Mixing


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities of scores ``(n, M)``, each row summing to one."""
    return NumpyBackend("float64").softmax(scores)


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
        Their shares of the samples.
    shifts : ndarray of shape (A,)
        What centring on the weighted mean takes from each anchor's linear score.
    factor : ndarray of shape (A, A)
        Cholesky factor of ``I + B^T P B``, B the weighted and centred means.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    anchors: np.ndarray
    shares: np.ndarray
    shifts: np.ndarray
    factor: np.ndarray

    @classmethod
    def of(
        cls,
        mixing: Mixing,
        inner: np.ndarray,
        anchors: np.ndarray,
        squares: np.ndarray,
        offsets: np.ndarray,
        counts: np.ndarray,
    ) -> Familiarity:
        """Work it out from the inner products of the anchors' means."""
        inner = _mixed_gram(mixing, inner)
        shares = counts[anchors] / counts[anchors].sum()
        of_mean = inner @ shares
        centred = inner - of_mean[:, None] - of_mean + shares @ of_mean
        root = np.sqrt(shares)
        system = np.eye(len(anchors)) + root[:, None] * centred * root
        # SciPy's, as all that is solved: NumPy's threads would wait for those of SciPy's BLAS.
        factor = scipy.linalg.cholesky(system, lower=True, check_finite=False)
        return cls(offsets, squares, anchors, shares, of_mean, factor)

    def novelty(self, scores: np.ndarray) -> np.ndarray:
        """Relative Mahalanobis distances of inputs, from their scores ``(n, M)``."""
        nearest = self.nearest(scores, slice(None))
        return nearest + self.beyond_nearest(scores[:, self.anchors])

    @property
    def scale(self) -> float:
        """Mean squared distance of the classes from the mean of their means."""
        return float(self.lengths.mean())

    @property
    def undecided(self) -> float:
        """Novelty of an input that leans to no class: one at the mean of the class means."""
        return float(self.novelty(self.offsets[None])[0])

    def nearest(self, scores: np.ndarray, classes: slice) -> np.ndarray:
        """Return what the nearest of some classes adds, from the scores of just these."""
        linear = scores.astype(np.float64) - self.offsets[classes]
        return np.asarray((self.lengths[classes] - 2 * linear).min(axis=1))

    def beyond_nearest(self, scores: np.ndarray) -> np.ndarray:
        """Return what all classes together add, from the scores ``(n, A)`` of the anchors."""
        linear = scores.astype(np.float64) - self.offsets[self.anchors]
        of_mean = linear @ self.shares
        mean_length = self.shares @ self.shifts
        centred = linear - of_mean[:, None] - self.shifts + mean_length
        weighted = (centred * np.sqrt(self.shares)).T
        # An input so far away that its scores overflow has a novelty that is not finite either.
        between = scipy.linalg.solve_triangular(
            self.factor, weighted, lower=True, check_finite=False
        )
        return 2 * of_mean - mean_length + (between**2).sum(axis=0)


def _mixed_gram(mixing: Mixing, inner: np.ndarray) -> np.ndarray:
    """Inner products of the anchors' estimated means."""
    if not len(mixing.anchors):
        return inner
    combination = mixing.combination[mixing.anchors]
    mixed = combination @ inner @ combination.T
    return (mixed + mixed.T) / 2


class RunningTop:
    """The k best of scores that come a tile of classes at a time, in the order of the classes.

    Of equal scores the earlier class comes first. Never more than one tile of scores is held.

    Attributes
    ----------
    scores, positions : ndarray of shape (n, k)
        The best so far, the best first, and the classes they belong to.
    log_total : ndarray of shape (n,)
        Logarithm of the sum of the exponentials of all scores, if tiles came with theirs.
    """

    def __init__(self, n_samples: int, k: int) -> None:
        self.k = k
        self.scores = np.empty((n_samples, 0))
        self.positions = np.empty((n_samples, 0), np.int64)
        self.log_total = np.full(n_samples, -np.inf)

    def add(
        self,
        start: int,
        scores: np.ndarray,
        positions: np.ndarray,
        log_total: np.ndarray | None = None,
    ) -> None:
        """Take in the best of the tile that begins with class `start`, ties in class order."""
        if self.scores.shape[1]:
            scores = np.concatenate([self.scores, scores], axis=1)
            positions = np.concatenate([self.positions, positions + start], axis=1)
            order = np.argsort(-scores, axis=1, kind="stable")[:, : self.k]
            scores = np.take_along_axis(scores, order, axis=1)
            positions = np.take_along_axis(positions, order, axis=1)
        self.scores, self.positions = scores, positions
        if log_total is not None:
            self.log_total = np.logaddexp(self.log_total, log_total)
