"""FeCAM: Mahalanobis distance with one normalised covariance per class.

D. Goswami, Y. Liu, B. Twardowski and J. van de Weijer, "FeCAM: Exploiting the Heterogeneity of
Class Distributions in Exemplar-Free Continual Learning", NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.linalg import solve_triangular

from klda_bench.methods.peers import linear
from klda_bench.methods.peers.linear import Peer, unit_rows


@dataclass(kw_only=True, eq=False)
class FeCAM(Peer):
    """Per-class covariance, shrunk (equation 7) and normalised to a correlation (equation 8).

    `gamma1` weighs the mean variance added to the diagonal, `gamma2` the mean covariance added off
    the diagonal: 1 for features without negative entries, 0 otherwise, as the paper's settings for
    convolutional and transformer networks. `tukey` is the power of Tukey's transformation
    (equation 9): 0.5 for features without negative entries, none (1) otherwise, where a power is
    not defined. "auto" is settled by the first task and kept. A class must arrive within one task,
    as in the paper's protocol.

    Class means are scaled to unit length like the rows. The authors' program does so for its
    convolutional networks; its scripts for vision transformers subtract the mean of unit rows as
    it is. Which of the two the paper's formula means was not checked.
    """

    gamma1: float = 1.0
    gamma2: float | Literal["auto"] = "auto"
    tukey: float | Literal["auto"] = "auto"
    device: str = "cpu"

    def _start(self, X: np.ndarray) -> None:
        positive = bool(np.min(X) >= 0.0)
        self._power = (0.5 if positive else 1.0) if self.tukey == "auto" else self.tukey
        self._gamma2 = float(positive) if self.gamma2 == "auto" else self.gamma2
        self._means: list[np.ndarray] = []
        self._factors: list[linear.Array] = []

    def _prepare(self, X: np.ndarray) -> np.ndarray:
        X = np.asarray(X, dtype=np.float64)
        if self._power != 1.0:
            X = np.power(np.maximum(X, 0.0), self._power)
        return unit_rows(X)

    def _learn(self, X: np.ndarray, columns: np.ndarray) -> None:
        rows = self._prepare(X)
        for column in np.unique(columns):
            own = rows[columns == column]
            self._means.append(unit_rows(own.mean(axis=0)[None])[0])
            self._factors.append(self._factor(own))

    def _factor(self, rows: np.ndarray) -> linear.Array:
        """Return W with W W^T the inverse covariance: a squared distance is |(x - mean) W|^2."""
        d = rows.shape[1]
        covariance = np.cov(rows.T) if len(rows) > 1 else np.zeros((d, d))
        root = np.linalg.cholesky(normalise(shrink(covariance, self.gamma1, self._gamma2)))
        return linear.place(solve_triangular(root, np.eye(d), lower=True).T, self.device)

    def _scores(self, X: np.ndarray) -> np.ndarray:
        rows = linear.place(self._prepare(X), self.device)
        distances = np.empty((len(rows), len(self._means)))
        for k, (mean, factor) in enumerate(zip(self._means, self._factors, strict=True)):
            whitened = (rows - linear.place(mean, self.device)) @ factor
            distances[:, k] = linear.fetch((whitened**2).sum(axis=1))
        return -distances


def shrink(covariance: np.ndarray, gamma1: float, gamma2: float) -> np.ndarray:
    """Sigma + gamma1 V1 I + gamma2 V2 (1 - I), V1 and V2 the mean diagonal and off-diagonal."""
    d = len(covariance)
    diagonal = np.trace(covariance) / d
    off = (covariance.sum() - np.trace(covariance)) / max(d * (d - 1), 1)
    identity = np.eye(d)
    return covariance + gamma1 * diagonal * identity + gamma2 * off * (1.0 - identity)


def normalise(covariance: np.ndarray) -> np.ndarray:
    """Covariance divided by the standard deviations; the identity where there is no variance."""
    deviations = np.sqrt(np.diagonal(covariance))
    if not np.all(deviations > 0):
        return np.eye(len(covariance))
    return covariance / np.outer(deviations, deviations)
