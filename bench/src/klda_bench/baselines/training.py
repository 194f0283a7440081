"""What all fine-tuned methods share: options, the training loop, and its gradients."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
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


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside the block and leave the caller's random state as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def option(default: Any, **bounds: Any) -> Any:
    """Declare an option with bounds: its `least` value, what it is `above`, or its `choices`."""
    return field(default=default, metadata=bounds)


def _check_option(name: str, value: Any, bounds: Mapping[str, Any]) -> None:
    """Raise where an option has no value that it may have."""
    if value not in bounds.get("choices", (value,)):
        raise KldaError(f"{name}={value!r} is unknown; choose one of {list(bounds['choices'])}.")
    number = isinstance(value, (int, float)) and not math.isinf(value)
    for bound, fits, words in (
        ("least", operator.ge, "at least"),
        ("above", operator.gt, "larger than"),
    ):
        if bound in bounds and not (number and fits(value, bounds[bound])):
            raise KldaError(f"{name}={value!r} must be a number {words} {bounds[bound]}.")


@dataclass(kw_only=True, eq=False)
class Baseline(ABC):
    """A method that learns task after task by training a network.

    `head_lr` is Adam's learning rate for what starts untrained (head, prompts), `backbone_lr` that
    for the foundation model; over a task they fall to zero (`schedule` linear) or stay (constant).
    Texts are cut to `max_length` tokens. `precision` is bf16, float32, or auto: bfloat16 autocast
    on a GPU and float32 elsewhere.

    A subclass says what it makes, learns and predicts with.
    """

    name = ""
    joint = False

    backbone: str = field(default="minilm", kw_only=False)
    device: str = "auto"
    epochs: int = option(50, least=1)
    batch_size: int = option(128, least=1)
    head_lr: float = option(1e-3, least=0)
    backbone_lr: float = option(1e-4, least=0)
    schedule: str = option("linear", choices=("linear", "constant"))
    clip_norm: float = option(1.0, above=0)
    max_length: int = option(128, least=1)
    precision: str = option("auto", choices=("auto", "bf16", "float32"))
    seed: int = 0
    progress: bool = True
    module: Any = field(init=False)

    def __post_init__(self) -> None:
        for declared in fields(self):
            _check_option(declared.name, getattr(self, declared.name, None), declared.metadata)
        device = resolve_device(self.device)
        require_device(device)
        try:
            self._device = torch.device(device)
        except RuntimeError as error:
            message = f"device={device!r} is unknown; use 'auto', 'cpu' or 'cuda'."
            raise KldaError(message) from error
        gpu = self._device.type == "cuda"
        self._bf16 = self.precision == "bf16" or (self.precision == "auto" and gpu)
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
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16)

    def _fit(self, rows: Rows, groups: Sequence[tuple[float, Iterable[Tensor]]]) -> None:
        """Train: Adam over groups of weights and their rates, clipping, the schedule, a bar."""
        given = [{"params": list(weights), "lr": rate} for rate, weights in groups]
        parameters = [weight for group in given for weight in cast("list", group["params"])]
        optimizer = torch.optim.Adam(given, fused=self._device.type == "cuda")
        per_epoch = math.ceil(len(rows) / self.batch_size)
        steps, linear = self.epochs * per_epoch, self.schedule == "linear"
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(0.0, 1 - step / steps) if linear else 1.0
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
                nn.utils.clip_grad_norm_(parameters, self.clip_norm)
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
