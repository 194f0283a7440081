"""Deep SLDA: streaming linear discriminant analysis with shrinkage.

T. L. Hayes and C. Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant
Analysis", CVPR Workshops 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.covariance import OAS

from klda_bench.methods.peers.linear import Peer


@dataclass(kw_only=True, eq=False)
class SLDA(Peer):
    """One mean per class and one streaming covariance, shrunk towards the identity.

    `shrinkage` is the paper's epsilon: precision = ((1 - epsilon) Sigma + epsilon I)^-1. With
    `base_initialisation`, Oracle Approximating Shrinkage estimates the covariance of the first
    task, as in the paper's base initialisation phase, and the rest is streamed from there.
    """

    shrinkage: float = 1e-4
    base_initialisation: bool = True

    def _start(self, X: np.ndarray) -> None:
        self._n, dimension = 0, np.shape(X)[1]
        self._counts = np.zeros(0)
        self._means = np.zeros((0, dimension))
        self._covariance = np.zeros((dimension, dimension))

    def _learn(self, X: np.ndarray, columns: np.ndarray) -> None:
        X = np.asarray(X, dtype=np.float64)
        missing = len(self.labels) - len(self._counts)
        self._counts = np.append(self._counts, np.zeros(missing))
        self._means = np.vstack([self._means, np.zeros((missing, X.shape[1]))])
        if self._n == 0 and self.base_initialisation:
            self._initialise(X, columns)
        else:
            self._stream(X, columns)

    def _initialise(self, X: np.ndarray, columns: np.ndarray) -> None:
        for column in np.unique(columns):
            rows = X[columns == column]
            self._means[column] = rows.mean(axis=0)
            self._counts[column] = len(rows)
        self._covariance = OAS(assume_centered=True).fit(X - self._means[columns]).covariance_
        self._n = len(X)

    def _stream(self, X: np.ndarray, columns: np.ndarray) -> None:
        """All one-sample updates of equations 2 and 3 at once.

        With t rows seen, the paper sets Sigma <- (t Sigma + Delta) / (t + 1) and
        Delta = t/(t+1) (z - mu_y)(z - mu_y)^T, mu_y being the mean before z; so
        (t + 1) Sigma is a sum of weighted outer products, and the means before each row are
        running sums.
        """
        before = np.empty_like(X)
        for column in np.unique(columns):
            rows = np.flatnonzero(columns == column)
            old = self._counts[column]
            totals = old * self._means[column] + np.vstack(
                [np.zeros(X.shape[1]), np.cumsum(X[rows], axis=0)]
            )
            counts = old + np.arange(len(rows) + 1)
            means = totals / np.maximum(counts, 1)[:, None]
            before[rows] = means[:-1]
            self._means[column], self._counts[column] = means[-1], counts[-1]
        seen = self._n + np.arange(len(X))
        step = (X - before) * np.sqrt(seen / (seen + 1.0))[:, None]
        self._covariance = (self._n * self._covariance + step.T @ step) / (self._n + len(X))
        self._n += len(X)

    def _solve(self) -> None:
        shrunk = (1.0 - self.shrinkage) * self._covariance
        shrunk[np.diag_indices_from(shrunk)] += self.shrinkage
        self._weights = np.linalg.solve(shrunk, self._means.T)
        self._bias = -0.5 * np.einsum("kd,dk->k", self._means, self._weights)

    def _scores(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(X, dtype=np.float64) @ self._weights + self._bias
