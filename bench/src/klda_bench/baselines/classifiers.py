"""An encoder with a growing head: plain fine-tuning (joint, vanilla), distillation (KD), EWC."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from klda_bench.baselines.backbones import TextEncoder, VisionNetwork, trainable_encoder
from klda_bench.baselines.training import Baseline, Batch, Rows


class Head(nn.Module):
    """A linear classifier that grows by classes, its old rows untouched."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, dimension))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, n_classes: int) -> None:
        """Add rows up to a number of classes; they start as in `torch.nn.Linear`."""
        old, new = len(self.bias), nn.Linear(self.weight.shape[1], n_classes).to(self.weight.device)
        if n_classes > old:
            self.weight = nn.Parameter(torch.cat([self.weight, new.weight[old:]]).detach())
            self.bias = nn.Parameter(torch.cat([self.bias, new.bias[old:]]).detach())

    def forward(self, features: Tensor) -> Tensor:
        """Scores, (n, classes)."""
        return functional.linear(features, self.weight, self.bias)


class ClassifierModule(nn.Module):
    """An encoder of texts or images and a growing linear head."""

    def __init__(self, encoder: TextEncoder | VisionNetwork) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = Head(encoder.dimension)

    def forward(self, batch: Batch) -> Tensor:
        """Scores of all classes so far, (n, classes), in float32."""
        return self.head(self.encoder(batch)).float()


class ClassifierBaseline(Baseline):
    """Fine-tuning of an encoder of texts or images, and a head that grows with every task.

    A subclass says what it does before a task, what it adds to the loss, and what it keeps.
    """

    def _make_module(self) -> ClassifierModule:
        return ClassifierModule(trainable_encoder(self.backbone))

    def _rows(self, texts: list[Any], codes: Sequence[int] | None = None) -> Rows:
        columns = {} if codes is None else {"labels": torch.tensor(codes)}
        return self.module.encoder.rows(texts, self.max_length, columns, self._device)

    def _learn(self, texts: list[str], labels: list[Any]) -> None:
        rows = self._rows(texts, self._codes(labels))
        self._before_task(rows)
        self.module.head.grow(len(self.classes_))
        self._fit(rows, self._groups())
        self._after_task(rows)

    def _groups(self) -> list[tuple[float, Iterable[Tensor]]]:
        """Weights to train, with their learning rates."""
        encoder, head = self.module.encoder.parameters(), self.module.head.parameters()
        return [(self.backbone_lr, encoder), (self.head_lr, head)]

    def _before_task(self, rows: Rows) -> None:
        """Prepare for the task's rows; the head has not grown yet."""

    def _loss(self, batch: Batch) -> Tensor:
        """Cross-entropy over all classes seen so far."""
        return functional.cross_entropy(self.module(batch), batch["labels"])

    def _after_task(self, rows: Rows) -> None:
        """Keep what the next tasks need of this one, now that it is learned."""

    def _logits(self, rows: Rows) -> Tensor:
        """Scores of the trained module, without dropout, in the rows' order."""
        self.module.eval()

        def scores(batch: Batch) -> Tensor:
            with self._autocast():
                return self.module(batch)

        return rows.map(scores, 2 * self.batch_size)

    def _predict(self, texts: list[str]) -> np.ndarray:
        return self._logits(self._rows(texts)).argmax(1).cpu().numpy()


class Vanilla(ClassifierBaseline):
    """Plain fine-tuning in sequence, the lower bound.

    The head grows by a task's classes and cross-entropy runs over all classes seen so far, so
    every step on a new task pushes the old classes' scores down.
    """


class Joint(ClassifierBaseline):
    """Fine-tuning of the backbone and a linear head on all tasks' data together."""

    joint = True


@dataclass(kw_only=True, eq=False)
class KD(ClassifierBaseline):
    """Knowledge distillation (Hinton et al. 2015) in the form of LwF (Li and Hoiem 2017).

    The old model's scores on the new task's texts are recorded once, before training, as in LwF's
    algorithm; no old sample is needed. `temperature` is T of Hinton's equation 1 and `weight` that
    of the distillation loss; the defaults are LwF's.
    """

    temperature: float = 2.0
    weight: float = 1.0

    def _before_task(self, rows: Rows) -> None:
        if self.n_tasks_:
            rows.columns["teacher"] = self._logits(rows)

    def _loss(self, batch: Batch) -> Tensor:
        scores = self.module(batch)
        loss = functional.cross_entropy(scores, batch["labels"])
        if "teacher" not in batch:
            return loss
        return loss + self.weight * distillation(scores, batch["teacher"], self.temperature)


def distillation(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Divergence of the softened answers on the teacher's classes.

    LwF's equations 2 and 3 (whose cross-entropy differs by a constant), times T^2 so that the
    gradients keep their size when T changes (Hinton, section 2).
    """
    student = functional.log_softmax(scores[:, : teacher.shape[1]] / temperature, dim=1)
    wanted = functional.log_softmax(teacher / temperature, dim=1)
    divergence = functional.kl_div(student, wanted, log_target=True, reduction="batchmean")
    return temperature**2 * divergence


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

    penalty: float = 5000.0
    fisher_samples: int = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        self._precision: dict[str, Tensor] = {}
        self._anchor: dict[str, Tensor] = {}

    def _loss(self, batch: Batch) -> Tensor:
        return super()._loss(batch) + self.penalty / 2 * self.distance()

    def distance(self) -> Tensor:
        """Sum of F_i (theta_i - theta*_i)^2 over all weights that an earlier task had."""
        total, now = torch.zeros((), device=self._device), dict(self.module.named_parameters())
        for name, anchor in self._anchor.items():
            old = now[name][: len(anchor)]  # a head may have grown since
            total = total + (self._precision[name] * (old - anchor).square()).sum()
        return total

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
