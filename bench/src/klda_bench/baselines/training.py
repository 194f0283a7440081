"""What all fine-tuned methods share: batches of samples, options, and the training loop."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from klda.errors import KldaError
from klda.progress import progress_bar
from klda_bench.environment import require_device, resolve_device

Batch = dict[str, Tensor]

# Batches of one length are cut from this many shuffled batches' worth of samples: long enough for
# little padding, short enough that the batches of two epochs differ.
_BUCKET = 32
CLIP_NORM = 1.0  # of a step's gradients


class Rows:
    """Samples, of which batches are made on the device.

    `sequences` are fields of token ids, of which ``ids`` decides the order of lengths, and
    `padding` the fill value of each; `columns` have one entry per sample: labels, weights, a
    teacher's answers. Instead of sequences, `read` makes the field ``pixels`` of the `n_rows`
    samples at given positions: all images at once would not fit into memory.
    """

    def __init__(
        self,
        *,
        sequences: Mapping[str, Sequence[Sequence[int]]] | None = None,
        padding: Mapping[str, int] | None = None,
        columns: Mapping[str, Tensor] | None = None,
        read: Callable[[np.ndarray], Tensor] | None = None,
        n_rows: int = 0,
        device: torch.device,
    ) -> None:
        self._device, self._read, self._padding = device, read, padding or {}
        self._sequences = {
            name: [torch.tensor(row, dtype=torch.long) for row in rows]
            for name, rows in (sequences or {}).items()
        }
        # Without sequences all samples are of one length.
        lengths = [len(row) for row in self._sequences.get("ids", ())]
        self._lengths = np.array(lengths or [0] * n_rows)
        self.columns = {name: column.to(device) for name, column in (columns or {}).items()}

    def __len__(self) -> int:
        return len(self._lengths)

    def batches(self, size: int, rng: np.random.Generator | None = None) -> Iterator[Batch]:
        """Yield batches of samples of similar length; in a random order where `rng` is given."""
        order = np.arange(len(self)) if rng is None else rng.permutation(len(self))
        width = len(self) if rng is None else size * _BUCKET
        chunks = [order[i : i + width] for i in range(0, len(order), width)]
        order = np.concatenate([c[np.argsort(self._lengths[c], kind="stable")] for c in chunks])
        starts = np.arange(0, len(order), size)
        for start in starts if rng is None else rng.permutation(starts):
            yield self.take(order[start : start + size])

    def take(self, index: np.ndarray) -> Batch:
        """Make one batch of the samples `index`, cut to their longest; adds ``<field>_mask``."""
        batch: Batch = {"index": torch.from_numpy(index)}
        for name, rows in self._sequences.items():
            chosen = [rows[i] for i in index]
            batch[name] = pad_sequence(chosen, True, self._padding[name])
            batch[f"{name}_mask"] = pad_sequence([torch.ones_like(row) for row in chosen], True)
        if self._read is not None:
            batch["pixels"] = self._read(index)
        batch = {name: part.to(self._device) for name, part in batch.items()}
        return batch | {name: column[batch["index"]] for name, column in self.columns.items()}

    @torch.no_grad()
    def map(self, function: Callable[[Batch], Tensor], size: int) -> Tensor:
        """Apply a function to all samples; its rows, in the samples' order."""
        parts, order = [], []
        for batch in self.batches(size):
            parts.append(function(batch))
            order.append(batch["index"])
        return torch.cat(parts)[torch.cat(order).argsort()]


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside the block and leave the caller's random state as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


@dataclass(kw_only=True, eq=False)
class Baseline(ABC):
    """A method that learns task after task by training a network.

    `head_lr` is Adam's learning rate for what starts untrained (head, prompts), `backbone_lr` that
    for the foundation model; over a task they fall to zero. Texts are cut to `max_length` tokens.
    On a GPU, products are in bfloat16.

    A subclass says what it makes, learns and predicts with.
    """

    joint = False

    backbone: str = field(default="minilm", kw_only=False)
    device: str = "auto"
    epochs: int = 50
    batch_size: int = 128
    head_lr: float = 1e-3
    backbone_lr: float = 1e-4
    max_length: int = 128
    seed: int = 0
    module: Any = field(init=False)

    def __post_init__(self) -> None:
        device = resolve_device(self.device)
        require_device(device)
        self._device = torch.device(device)
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

    def learn_task(self, texts: Sequence[Any], labels: Sequence[Any]) -> None:
        """Learn one task: all its texts (or images) and their classes, once."""
        with seeded(self.seed * 10_007 + self.n_tasks_, self._device):
            self._learn(list(texts), [str(label) for label in labels])
        self.n_tasks_ += 1

    def predict(self, texts: Sequence[Any]) -> np.ndarray:
        """Class of each text among all learned so far."""
        self.module.eval()
        with torch.no_grad(), seeded(self.seed, self._device):
            return np.array(self.classes_)[self._predict(list(texts))]

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
        what = f"{type(self).__name__}, task {self.n_tasks_ + 1}"
        with progress_bar(what, self.epochs) as report:
            for epoch in range(self.epochs):
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
                        f"{what}: the loss became {mean}; lower head_lr={self.head_lr} or "
                        f"backbone_lr={self.backbone_lr}."
                    )
                report(epoch + 1, f"loss {mean:.4f}")

    def _trained(self) -> dict[str, Tensor]:
        named = self.module.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}
