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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import gelu

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

    def _start(self, rows: Tensor) -> None:
        rng = np.random.default_rng(self.random_state)
        shape = (rows.shape[1], self.n_components)
        self._head_weights, *self._layers = (
            self._place(rng.standard_normal(shape, dtype=np.float32))
            for _ in range(1 + self.n_heads)
        )
        self._regressions = [
            linear.Regression(self.n_components, self.device) for _ in self._layers
        ]
        place: Any = {"dtype": torch.float64, "device": self.device}
        self._sums, self._counts = torch.zeros(shape[0], 0, **place), torch.zeros(1, 0, **place)
        self._moment = torch.zeros(shape[0], shape[0], **place)

    def _learn(self, rows: Tensor, columns: Tensor) -> None:
        rows, targets = linear.unit_rows(rows), self._targets(columns)
        wide, ones = rows.double(), targets.double()
        self._counts = linear.widen(self._counts, ones.shape[1]) + ones.sum(dim=0)
        self._sums = linear.widen(self._sums, ones.shape[1]) + wide.T @ ones
        self._moment += wide.T @ wide
        for weights, regression in zip(self._layers, self._regressions, strict=True):
            regression.add(gelu(rows @ weights), targets)

    def _solve(self) -> None:
        self._means = (self._sums / self._counts).T
        covariance = (self._moment - self._sums @ self._means) / self._counts.sum()
        covariance.diagonal().add_(1e-4)
        targets = separate(self._means, covariance).float()
        # Rows regress onto their class's prototype, so Z^T T is a sum over class totals.
        self._projections = [
            regression.solve(self.ridge, regression.sums @ targets)
            for regression in self._regressions
        ]
        samples, columns = self._pseudo_samples(covariance)
        head = linear.Regression(self.n_components, self.device)
        head.add(gelu(self._contrast(samples) @ self._head_weights), self._targets(columns))
        self._head = head.solve(self.ridge)

    def _pseudo_samples(self, covariance: Tensor) -> tuple[Tensor, Tensor]:
        n_classes = len(self.labels)
        columns = torch.arange(n_classes, device=self.device)
        columns = columns.repeat_interleave(self.samples_per_class)
        rng = np.random.default_rng((self.random_state, n_classes))
        noise = torch.from_numpy(rng.standard_normal((len(columns), len(covariance))))
        spread = noise.to(self.device) @ torch.linalg.cholesky(covariance).T
        return (self._means[columns] + spread).float(), columns

    def _contrast(self, rows: Tensor) -> Tensor:
        outputs = [
            linear.unit_rows(gelu(rows @ weights) @ projection)
            for weights, projection in zip(self._layers, self._projections, strict=True)
        ]
        return torch.stack(outputs).mean(dim=0)

    def _scores(self, rows: Tensor) -> Tensor:
        return gelu(self._contrast(linear.unit_rows(rows)) @ self._head_weights) @ self._head


def separate(means: Tensor, covariance: Tensor) -> Tensor:
    """Target prototypes: whitened, centred means whose singular values are raised by one.

    Raising every singular value pushes apart prototypes that were close (the repulsion of a
    contrastive loss); regressing rows onto their prototype is its attraction.
    """
    values, vectors = torch.linalg.eigh(covariance)
    whitening = (vectors / (values.clip(min=0) + 1e-8).sqrt()) @ vectors.T
    centre = means.mean(dim=0, keepdim=True)
    U, S, Vt = torch.linalg.svd((means - centre) @ whitening, full_matrices=False)
    raised = torch.where(1e-6 * S.max() < S, S + 1.0, 0.0)
    return linear.unit_rows((U * raised) @ Vt @ whitening + centre)
