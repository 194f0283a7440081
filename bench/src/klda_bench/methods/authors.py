"""The paper authors' program in its plain form, to compare with.

Written from its description, not from its text: random Fourier features, each batch of a class
centred on that class's *running* mean, the scatter summed and never divided by the number of
samples, its pseudo-inverse without a cut-off that matters (torch's ``pinverse`` keeps every
singular value above 1e-15 of the largest), and the negative Mahalanobis distance as the score.
No ridge: while fewer samples than components have been seen, the pseudo-inverse amplifies the
rounding errors of a singular matrix, and the accuracy falls to chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from klda_bench.methods.peers.linear import Peer


@dataclass(kw_only=True, eq=False)
class AuthorsKLDA(Peer):
    """KLDA as its authors' program computes it, with K(x, y) = exp(-gamma ||x - y||^2)."""

    n_components: int = 5000
    gamma: float = 0.2
    random_state: int = 0
    device: str = "cpu"

    def _start(self, rows: Tensor) -> None:
        D = self.n_components
        generator = torch.Generator().manual_seed(self.random_state)
        omega = torch.randn(rows.shape[1], D, generator=generator) * (2.0 * self.gamma) ** 0.5
        self._omega = omega.to(self.device)
        self._beta = (torch.rand(D, generator=generator) * 2.0 * torch.pi).to(self.device)
        self._scatter = torch.zeros((D, D), device=self.device)
        self._means: dict[int, Tensor] = {}
        self._counts: dict[int, int] = {}

    def _lift(self, rows: Tensor) -> Tensor:
        return (2.0 / self.n_components) ** 0.5 * torch.cos(rows @ self._omega + self._beta)

    def _learn(self, rows: Tensor, columns: Tensor) -> None:
        for column in columns.unique().tolist():
            Z = self._lift(rows[columns == column])
            old, n = self._counts.get(column, 0), len(Z)
            before = self._means.get(column, 0.0)
            self._means[column] = (before * old + Z.sum(dim=0)) / (old + n)
            self._counts[column] = old + n
            centred = Z - self._means[column]
            self._scatter += centred.T @ centred

    def _solve(self) -> None:
        self._inverse = torch.linalg.pinv(self._scatter, rtol=1e-15)

    def _scores(self, rows: Tensor) -> Tensor:
        """Negative Mahalanobis distances, computed from the differences as the authors do."""
        means = torch.stack([self._means[k] for k in range(len(self.labels))])
        differences = (means - z for z in self._lift(rows))
        return torch.stack([-((part @ self._inverse) * part).sum(dim=1) for part in differences])
