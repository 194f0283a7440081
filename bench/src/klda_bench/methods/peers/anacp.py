"""AnaCP: analytic contrastive projection and a ridge head fitted on Gaussian pseudo-samples.

S. Momeni, C. Xiao and B. Liu, "AnaCP: Toward Upper-Bound Continual Learning via Analytic
Contrastive Projection", NeurIPS 2025 (arXiv:2511.13880). First-session adaptation fine-tunes the
network and is left out: this is the head on frozen features.

What was not clear, and what was done. (1) The paper's text was not at hand in full; the order of
the steps and the constants follow the program its authors published. (2) That program maps the
separated prototypes back with the whitening matrix itself, Sigma^-1/2, where undoing the whitening
would take Sigma^1/2. So does this one. (3) Its running
covariance counts the current task's rows twice in the weights; here the pooled covariance is exact.
(4) Centred means of M classes span M - 1 directions at most; raising the singular value that is
zero would push along whatever direction rounding chose, so zeros stay zeros. (5) The pseudo-samples
depend on the statistics alone, so the systems are solved at the first prediction after a task
instead of after every task.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import erf

from klda_bench.methods.peers import linear


@dataclass(kw_only=True, eq=False)
class AnaCP(linear.Peer):
    """Random GELU layers regressed onto separated class prototypes, then a random-feature head.

    `n_components` is the width of each random layer, `ridge` that of every regression, `n_heads`
    the number of projection layers whose outputs are averaged; `samples_per_class` Gaussian
    pseudo-samples train the head.
    """

    n_components: int = 5000
    ridge: float = 100.0
    n_heads: int = 3
    samples_per_class: int = 100
    random_state: int = 0
    device: str = "cpu"

    def _start(self, X: np.ndarray) -> None:
        rng = np.random.default_rng(self.random_state)
        shape = (np.shape(X)[1], self.n_components)
        self._head_weights, *self._layers = (
            linear.place(rng.standard_normal(shape, dtype=np.float32), self.device)
            for _ in range(1 + self.n_heads)
        )
        self._regressions = [
            linear.Regression(self.n_components, self.device) for _ in self._layers
        ]
        self._statistics = linear.ClassMeans(shape[0])

    def _learn(self, X: np.ndarray, columns: np.ndarray) -> None:
        rows = linear.unit_rows(np.asarray(X, dtype=np.float32))
        targets = linear.one_hot(columns, len(self.labels))
        self._statistics.add(rows, targets)
        rows = linear.place(rows, self.device)
        for weights, regression in zip(self._layers, self._regressions, strict=True):
            regression.add(gelu(rows @ weights), targets)

    def _covariance(self) -> np.ndarray:
        covariance = self._statistics.scatter / self._statistics.counts.sum()
        return covariance + 1e-4 * np.eye(len(covariance))

    def _solve(self) -> None:
        covariance = self._covariance()
        targets = separate(self._statistics.means, covariance).astype(np.float32)
        # Rows regress onto their class's prototype, so Z^T T is a sum over class totals.
        self._projections = [
            regression.solve(self.ridge, regression.sums @ targets)
            for regression in self._regressions
        ]
        samples, columns = self._pseudo_samples(covariance)
        H = gelu(self._contrast(samples) @ self._head_weights)
        head = linear.Regression(self.n_components, self.device)
        head.add(H, linear.one_hot(columns, len(self.labels)))
        self._head = head.solve(self.ridge)

    def _pseudo_samples(self, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        columns = np.repeat(np.arange(len(self.labels)), self.samples_per_class)
        rng = np.random.default_rng((self.random_state, len(self.labels)))
        noise = rng.standard_normal((len(columns), len(covariance)))
        samples = self._statistics.means[columns] + noise @ np.linalg.cholesky(covariance).T
        return samples.astype(np.float32), columns

    def _contrast(self, rows: np.ndarray) -> linear.Array:
        rows = linear.place(rows, self.device)
        outputs = [
            linear.unit_rows(gelu(rows @ weights) @ projection)
            for weights, projection in zip(self._layers, self._projections, strict=True)
        ]
        return sum(outputs[1:], outputs[0]) / len(outputs)

    def _scores(self, X: np.ndarray) -> linear.Array:
        rows = linear.unit_rows(np.asarray(X, dtype=np.float32))
        return gelu(self._contrast(rows) @ self._head_weights) @ self._head


def gelu(X: linear.Array) -> linear.Array:
    """Gaussian error linear unit, x Phi(x), exact form."""
    if isinstance(X, np.ndarray):
        return X * (0.5 * (1.0 + erf(X / np.sqrt(X.dtype.type(2.0)))))
    return linear.namespace(X).nn.functional.gelu(X)


def separate(means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Target prototypes: whitened, centred means whose singular values are raised by one.

    Raising every singular value pushes apart prototypes that were close (the repulsion of a
    contrastive loss); regressing rows onto their prototype is its attraction.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = np.sqrt(np.maximum(values, 0.0) + 1e-8)
    whitening = (vectors / root) @ vectors.T
    centre = means.mean(axis=0, keepdims=True)
    U, S, Vt = np.linalg.svd((means - centre) @ whitening, full_matrices=False)
    raised = np.where(1e-6 * S.max() < S, S + 1.0, 0.0)
    return linear.unit_rows((U * raised) @ Vt @ whitening + centre)
