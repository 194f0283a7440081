"""What all fine-tuned methods share: options, the training loop, and its gradients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from klda.checks import checked_texts
from klda.errors import KldaError
from klda_bench.baselines.rows import Batch, Rows
from klda_bench.environment import require, require_device, resolve_device

CLIP_NORM = 1.0  # of a step's gradients


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside the block and leave the caller's random state as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def option(default: float, *, least: float = 0) -> Any:
    """Declare an option that is a number, and the least that it may be."""
    return field(default=default, metadata={"least": least})


@dataclass(kw_only=True, eq=False)
class Baseline(ABC):
    """A method that learns task after task by training a network.

    `head_lr` is Adam's learning rate for what starts untrained (head, prompts), `backbone_lr` that
    for the foundation model; over a task they fall to zero. Texts are cut to `max_length` tokens.
    On a GPU, products are in bfloat16.

    A subclass says what it makes, learns and predicts with.
    """

    name = ""
    joint = False

    backbone: str = field(default="minilm", kw_only=False)
    device: str = "auto"
    epochs: int = option(50, least=1)
    batch_size: int = option(128, least=1)
    head_lr: float = option(1e-3)
    backbone_lr: float = option(1e-4)
    max_length: int = option(128, least=1)
    seed: int = 0
    progress: bool = True
    module: Any = field(init=False)

    def __post_init__(self) -> None:
        for declared in fields(self):
            value, least = getattr(self, declared.name, None), declared.metadata.get("least")
            if least is not None and not (isinstance(value, (int, float)) and value >= least):
                raise KldaError(f"{declared.name}={value!r} must be a number at least {least}.")
        device = resolve_device(self.device)
        require_device(device)
        try:
            self._device = torch.device(device)
        except RuntimeError as error:
            message = f"device={device!r} is unknown; use 'auto', 'cpu' or 'cuda'."
            raise KldaError(message) from error
        self.classes_: list[Any] = []
        self.n_tasks_ = 0
        with seeded(self.seed, self._device):
            self.module = self._make_module().to(self._device)

    @abstractmethod
    def _make_module(self) -> nn.Module:
        """Make the network, with weights that depend on the seed only."""

    @abstractmethod
    def _learn(self, texts: list[str], labels: list[Any]) -> None:
        """Train on one task."""

    @abstractmethod
    def _loss(self, batch: Batch) -> Tensor:
        """Loss of a batch."""

    @abstractmethod
    def _predict(self, texts: list[str]) -> np.ndarray:
        """Position in `classes_` of each text's class."""

    def _check_inputs(self, inputs: list[Any]) -> None:
        checked_texts(inputs)

    def learn_task(self, texts: Sequence[Any], labels: Sequence[Any]) -> None:
        """Learn one task: all its texts (or images) and their classes, once."""
        texts, labels = list(texts), [str(label) for label in labels]
        if not texts or len(texts) != len(labels):
            raise KldaError(
                f"texts has {len(texts)} rows and labels {len(labels)}; give one label each, and "
                "at least one sample."
            )
        self._check_inputs(texts)
        with seeded(self.seed * 10_007 + self.n_tasks_, self._device):
            self._learn(texts, labels)
        self.n_tasks_ += 1

    def predict(self, texts: Sequence[Any]) -> np.ndarray:
        """Class of each text among all learned so far."""
        if not self.classes_:
            raise KldaError(f"{self.name} has learned no task yet; call learn_task first.")
        texts = list(texts)
        self._check_inputs(texts)
        classes = np.array(self.classes_)
        if not texts:
            return classes[:0]
        self.module.eval()
        with torch.no_grad(), seeded(self.seed, self._device):
            return classes[self._predict(texts)]

    def _codes(self, labels: list[Any]) -> list[int]:
        """Position of each label in `classes_`, to which new classes are added."""
        self.classes_ = list(dict.fromkeys([*self.classes_, *labels]))
        position = {label: code for code, label in enumerate(self.classes_)}
        return [position[label] for label in labels]

    def _autocast(self) -> torch.autocast:
        gpu = self._device.type == "cuda"
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=gpu)

    def _fit(self, rows: Rows, groups: Sequence[tuple[float, Iterable[Tensor]]]) -> None:
        """Train: Adam over groups of weights and their rates, clipping, the schedule, a bar."""
        given = [{"params": list(weights), "lr": rate} for rate, weights in groups]
        parameters = [weight for group in given for weight in cast("list", group["params"])]
        optimizer = torch.optim.Adam(given, fused=self._device.type == "cuda")
        per_epoch = math.ceil(len(rows) / self.batch_size)
        steps = self.epochs * per_epoch
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(0.0, 1 - step / steps)
        )
        rng = np.random.default_rng([self.seed, self.n_tasks_])
        # disable=None: a bar on a terminal, silence in a pipe.
        bar = require("tqdm.auto", "baselines").tqdm(
            range(self.epochs),
            desc=f"{self.name} task {self.n_tasks_ + 1}",
            unit="epoch",
            disable=None if self.progress else True,
            leave=False,
        )
        for _ in bar:
            self.module.train()
            total = torch.zeros((), device=self._device)
            for batch in rows.batches(self.batch_size, rng):
                optimizer.zero_grad()
                with self._autocast():
                    loss = self._loss(batch)
                loss.backward()
                total += loss.detach()
                nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
                optimizer.step()
                scheduler.step()
            # Read once an epoch: reading a loss makes the CPU wait for the GPU.
            mean = float(total) / per_epoch
            if not math.isfinite(mean):
                raise KldaError(
                    f"{self.name}: the loss became {mean} in task {self.n_tasks_ + 1}; lower "
                    f"head_lr={self.head_lr} or backbone_lr={self.backbone_lr}."
                )
            bar.set_postfix(loss=f"{mean:.4f}")

    def _trained(self) -> dict[str, Tensor]:
        named = self.module.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}
