"""FeCAM: Mahalanobis distance with one normalised covariance per class.

D. Goswami, Y. Liu, B. Twardowski and J. van de Weijer, "FeCAM: Exploiting the Heterogeneity of
Class Distributions in Exemplar-Free Continual Learning", NeurIPS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from klda_bench.methods.peers.linear import Peer, unit_rows


@dataclass(kw_only=True, eq=False)
class FeCAM(Peer):
    """Per-class covariance, shrunk (equation 7) and normalised to a correlation (equation 8).

    `gamma1` weighs the mean variance added to the diagonal. The mean covariance is added off the
    diagonal (gamma2 = 1), and Tukey's transformation (equation 9) takes square roots, for features
    without negative entries, as the paper's settings for convolutional and transformer networks;
    the first task settles it. A class must arrive within one task, as in the paper's protocol.

    Class means are scaled to unit length like the rows. The authors' program does so for its
    convolutional networks; its scripts for vision transformers subtract the mean of unit rows as
    it is. Which of the two the paper's formula means was not checked.
    """

    gamma1: float = 1.0
    device: str = "cpu"

    def _start(self, rows: Tensor) -> None:
        self._is_positive = bool((rows >= 0.0).all())
        self._means: list[Tensor] = []
        self._factors: list[Tensor] = []

    def _prepare(self, rows: Tensor) -> Tensor:
        rows = rows.double()
        return unit_rows(rows.clip(min=0).sqrt() if self._is_positive else rows)

    def _learn(self, rows: Tensor, columns: Tensor) -> None:
        rows = self._prepare(rows)
        for column in columns.unique():
            own = rows[columns == column]
            self._means.append(unit_rows(own.mean(dim=0)[None])[0])
            self._factors.append(self._factor(own))

    def _factor(self, rows: Tensor) -> Tensor:
        """Return W with W W^T the inverse covariance: a squared distance is |(x - mean) W|^2."""
        identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=self.device)
        covariance = torch.cov(rows.T) if len(rows) > 1 else torch.zeros_like(identity)
        shrunk = shrink(covariance, self.gamma1, float(self._is_positive))
        root = torch.linalg.cholesky(normalise(shrunk))
        return torch.linalg.solve_triangular(root, identity, upper=False).T

    def _scores(self, rows: Tensor) -> Tensor:
        rows = self._prepare(rows)
        parts = zip(self._means, self._factors, strict=True)
        return -torch.stack([(((rows - mean) @ W) ** 2).sum(dim=1) for mean, W in parts], dim=1)


def shrink(covariance: Tensor, gamma1: float, gamma2: float) -> Tensor:
    """Sigma + gamma1 V1 I + gamma2 V2 (1 - I), V1 and V2 the mean diagonal and off-diagonal."""
    d, trace = len(covariance), covariance.trace()
    identity = torch.eye(d, dtype=covariance.dtype, device=covariance.device)
    off = (covariance.sum() - trace) / max(d * (d - 1), 1)
    return covariance + gamma1 * trace / d * identity + gamma2 * off * (1.0 - identity)


def normalise(covariance: Tensor) -> Tensor:
    """Covariance divided by the standard deviations; the identity where there is no variance."""
    deviations = covariance.diagonal().sqrt()
    if not bool((deviations > 0).all()):
        return torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
    return covariance / torch.outer(deviations, deviations)
