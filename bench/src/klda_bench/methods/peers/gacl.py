"""ACIL and GACL: recursive ridge regression on ReLU random features.

H. Zhuang et al., "ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy
Protection", NeurIPS 2022; H. Zhuang et al., "GACL: Exemplar-Free Generalized Analytic Continual
Learning", NeurIPS 2024. GACL's update covers classes seen before and new ones in one task; with
new classes only it is ACIL's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from klda_bench.methods.peers.linear import Classes, RandomRelu, one_hot, widen


@dataclass(kw_only=True, eq=False)
class GACL:
    """Regularised inverse of the autocorrelation matrix, updated by the Woodbury identity.

    `n_components` is the size of the random buffer layer and `ridge` the papers' gamma. The
    recursion takes `chunk` rows at once; the result does not depend on it.
    """

    n_components: int = 5000
    ridge: float = 100.0
    random_state: int = 0
    chunk: int = 1024

    def __post_init__(self) -> None:
        self._classes = Classes()
        self._lift: RandomRelu | None = None

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """R <- R - R H^T (I + H R H^T)^-1 H R, W <- W + R H^T (Y - H W)."""
        if self._lift is None:
            rng = np.random.default_rng(self.random_state)
            self._lift = RandomRelu(np.shape(X)[1], self.n_components, rng)
            self._inverse = np.eye(self.n_components, dtype=np.float32) / np.float32(self.ridge)
            self._weights = np.zeros((self.n_components, 0), dtype=np.float32)
        columns = self._classes.indices(y)
        self._weights = widen(self._weights, len(self._classes))
        for start in range(0, len(columns), self.chunk):
            part = slice(start, start + self.chunk)
            self._update(self._lift(X[part]), one_hot(columns[part], len(self._classes)))

    def _update(self, H: np.ndarray, targets: np.ndarray) -> None:
        residual = targets - H @ self._weights
        RH = self._inverse @ H.T
        core = H @ RH
        core[np.diag_indices_from(core)] += 1.0
        # With the gain K = R H^T (I + H R H^T)^-1: R <- R - K H R, and R_new H^T = K.
        gain = cho_solve(cho_factor(core, lower=True), RH.T).T
        self._inverse -= gain @ RH.T
        self._weights += gain @ residual

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Largest regression output."""
        assert self._lift is not None
        return self._classes.names((self._lift(X) @ self._weights).argmax(axis=1))
