"""EWC: a quadratic penalty holds the weights that earlier tasks depend on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from klda_bench.baselines.classifiers import ClassifierBaseline
from klda_bench.baselines.rows import Batch, Rows
from klda_bench.baselines.training import option


@dataclass(kw_only=True, eq=False)
class EWC(ClassifierBaseline):
    """Elastic weight consolidation (Kirkpatrick et al. 2017).

    The loss of a new task is equation 3: its own plus ``penalty / 2 * sum_i F_i (theta_i -
    theta*_i)^2`` for every earlier task. A sum of quadratics is a quadratic, so the earlier tasks
    are kept as one precision (the sum of their Fisher diagonals) and one anchor (the mean of their
    weights, weighted by these): the same gradient, and memory that doesn't grow with the tasks.

    `penalty` is lambda of equation 3. A task's Fisher diagonal is estimated from `fisher_samples`,
    one gradient each, with labels drawn from the model's own answers.
    """

    name = "ewc"

    penalty: float = option(5000.0)
    fisher_samples: int = option(200, least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._precision: dict[str, Tensor] = {}
        self._anchor: dict[str, Tensor] = {}

    def _loss(self, batch: Batch) -> Tensor:
        return super()._loss(batch) + self.penalty / 2 * self.distance()

    def distance(self) -> Tensor:
        """Sum of F_i (theta_i - theta*_i)^2 over all weights that an earlier task had."""
        if not self._anchor:
            return torch.zeros((), device=self._device)
        now = dict(self.module.named_parameters())
        anchors = self._anchor.items()
        # One long vector: on a GPU a few large operations instead of hundreds of small ones. A
        # head may have grown since, so only its first rows are compared.
        old = torch.cat([now[name][: len(anchor)].flatten() for name, anchor in anchors])
        anchor = torch.cat([anchor.flatten() for _, anchor in anchors])
        precision = torch.cat([self._precision[name].flatten() for name, _ in anchors])
        return (precision * (old - anchor).square()).sum()

    def _after_task(self, rows: Rows) -> None:
        fisher = self.fisher_diagonal(rows)
        for name, parameter in self._trained().items():
            weights = parameter.detach()
            precision, anchor = torch.zeros_like(weights), weights.clone()
            if name in self._anchor:
                known = len(self._anchor[name])
                precision[:known], anchor[:known] = self._precision[name], self._anchor[name]
            total = precision + fisher[name]
            # Where no task cares (total 0) the anchor plays no part; it takes the latest weight.
            share = torch.where(total > 0, fisher[name] / total.clamp(min=1e-30), 1.0)
            self._precision[name] = total
            self._anchor[name] = anchor + share * (weights - anchor)

    def fisher_diagonal(self, rows: Rows) -> dict[str, Tensor]:
        """Mean squared gradient of the log-likelihood, weight by weight, one sample at a time."""
        self.module.eval()
        named = self._trained()
        squares = [torch.zeros_like(parameter) for parameter in named.values()]
        rng = np.random.default_rng([self.seed, self.n_tasks_, 1])
        chosen = rng.permutation(len(rows))[: self.fisher_samples]
        for sample in chosen:
            scores = self.module(rows.take(np.array([sample])))
            label = torch.multinomial(scores.detach().softmax(1), 1).flatten()
            loss = functional.cross_entropy(scores, label)
            gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for square, gradient in zip(squares, gradients, strict=True):
                if gradient is not None:
                    square.addcmul_(gradient, gradient, value=1 / len(chosen))
        return dict(zip(named, squares, strict=True))
