"""Ridge regression on random features with a ReLU: ACIL and GACL, and RanPAC.

H. Zhuang et al., "ACIL: Analytic Class-Incremental Learning with Absolute Memorization and Privacy
Protection", NeurIPS 2022; H. Zhuang et al., "GACL: Exemplar-Free Generalized Analytic Continual
Learning", NeurIPS 2024. Their recursion updates a regularised inverse task by task; its weights are
those of one ridge regression on all rows, which is what they prove and how it is computed here.

M. D. McDonnell, D. Gong, A. Parvaneh, E. Abbasnejad and A. van den Hengel, "RanPAC: Random
Projections and Pre-trained Models for Continual Learning", NeurIPS 2023. Its ridge is chosen at
each task. Its first-session adaptation fine-tunes the network and is left out: this is the
frozen-feature method (its Algorithm 1 without phase 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from klda_bench.methods.peers import linear

RIDGES = tuple(10.0**exponent for exponent in range(-8, 9))


@dataclass(kw_only=True, eq=False)
class GACL(linear.Peer):
    """Gram matrix and class sums of ReLU random features, solved as a ridge regression.

    `n_components` is the size of the random buffer layer and `ridge` the papers' gamma.
    """

    n_components: int = 5000
    ridge: float = 100.0
    random_state: int = 0
    device: str = "cpu"

    def _start(self, rows: Tensor) -> None:
        self._rng = np.random.default_rng(self.random_state)
        shape = (rows.shape[1], self.n_components)
        self._directions = self._place(self._rng.standard_normal(shape, dtype=np.float32))
        self._regression = linear.Regression(self.n_components, self.device)

    def _lift(self, rows: Tensor) -> Tensor:
        return (rows @ self._directions).clip(min=0)

    def _learn(self, rows: Tensor, columns: Tensor) -> None:
        self._regression.add(self._lift(rows), self._targets(columns))

    def _solve(self) -> None:
        self._weights = self._regression.solve(self.ridge)

    def _scores(self, rows: Tensor) -> Tensor:
        return self._lift(rows) @ self._weights


@dataclass(kw_only=True, eq=False)
class RanPAC(GACL):
    """The same with a wider layer, the paper's M, and a ridge chosen on the task's rows.

    `random_state` seeds the projection and the split that chooses the ridge.
    """

    n_components: int = 10_000
    ridge: float = RIDGES[0]

    def _learn(self, rows: Tensor, columns: Tensor) -> None:
        super()._learn(rows, columns)
        order = torch.from_numpy(self._rng.permutation(len(rows))).to(self.device)
        self._last = self._lift(rows[order]), self._targets(columns[order])

    def _solve(self) -> None:
        # Each task chooses a ridge; only the last one's is ever used, so it alone is computed.
        trace = float(self._regression.gram.diagonal().sum())
        rounding = float(np.finfo(np.float32).eps) * trace
        self.ridge = choose_ridge(*self._last, least=rounding)
        del self._last
        super()._solve()


def choose_ridge(lifted: Tensor, targets: Tensor, least: float = 0.0) -> float:
    """Find the ridge of :data:`RIDGES` with the least squared error on the last fifth of the rows.

    The paper solves the M x M system once a ridge. With fewer rows than M the same predictions
    come from the n x n system, H_val H^T (H H^T + ridge I)^-1 Y, whose eigenvectors serve all
    ridges. That system is exact for ridges that the M x M system in float32 could not carry: it
    would show them as large errors, so ridges below `least`, the rounding error of the summed Gram
    matrix, are not offered.
    """
    cut = int(len(lifted) * 0.8)
    offered = [ridge for ridge in RIDGES if ridge >= least] or [RIDGES[-1]]
    if cut == 0 or cut == len(lifted):
        return max(1.0, offered[0])
    train, held_out, known = lifted[:cut], lifted[cut:], targets.double()
    values, vectors = torch.linalg.eigh((train @ train.T).double())
    left, right = (held_out @ train.T).double() @ vectors, vectors.T @ known[:cut]
    # Directions that float32 features do not determine would be divided by a tiny ridge alone.
    floor = values.max() * float(np.finfo(np.float32).eps)
    losses = []
    for ridge in offered:
        scale = torch.where(values > floor, 1.0 / (values.clip(min=0) + ridge), 0.0)
        losses.append(float((((left * scale) @ right - known[cut:]) ** 2).mean()))
    return offered[int(np.argmin(losses))]
