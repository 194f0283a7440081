"""What all fine-tuned methods share: the training loop, the head, checkpoints."""

from __future__ import annotations

import hashlib
import json
import math
import operator
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from klda.errors import KldaError
from klda_bench.baselines.backbones import TextEncoder, VisionNetwork, reads_images
from klda_bench.baselines.rows import Batch, ImageRows, Rows
from klda_bench.environment import require, require_device, resolve_device

State = tuple[dict[str, Tensor], dict[str, Any]]


class Head(nn.Module):
    """A linear classifier that grows by classes, its old rows untouched."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, dimension))
        self.bias = nn.Parameter(torch.empty(0))

    def resize(self, n_classes: int) -> None:
        """Set the number of classes; new rows start as in `torch.nn.Linear`."""
        old = len(self.bias)
        if n_classes == old:
            return
        keep, device = min(old, n_classes), self.weight.device
        bound = 1 / math.sqrt(self.weight.shape[1])
        weight = torch.empty(n_classes, self.weight.shape[1]).uniform_(-bound, bound).to(device)
        bias = torch.empty(n_classes).uniform_(-bound, bound).to(device)
        weight[:keep], bias[:keep] = self.weight.detach()[:keep], self.bias.detach()[:keep]
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, features: Tensor) -> Tensor:
        """Scores, (n, classes)."""
        return functional.linear(features, self.weight, self.bias)


def pick_device(device: str) -> torch.device:
    """Turn ``auto`` into the GPU where there is one."""
    device = resolve_device(device)
    require_device(device)
    try:
        return torch.device(device)
    except RuntimeError as error:
        raise KldaError(f"device={device!r} is unknown; use 'auto', 'cpu' or 'cuda'.") from error


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch inside the block and leave the caller's random state as it was."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def check_samples(texts: Sequence[Any], labels: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Return inputs and labels as plain lists, or an error that says what is wrong with them."""
    inputs, plain = list(texts), [str(label) for label in labels]
    if not inputs or len(inputs) != len(plain):
        raise KldaError(
            f"texts has {len(inputs)} rows and labels {len(plain)}; give one label each, and at "
            "least one sample."
        )
    return inputs, plain


def check_texts(texts: Sequence[str]) -> None:
    """Raise where a value is no text."""
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise KldaError(f"texts[{i}] is a {type(text).__name__}; give texts (str).")


def _json_able(item: Any) -> str:
    """Name an input for a digest: a text or a path as it is, an image by its content."""
    if isinstance(item, (str, os.PathLike)):
        return os.fspath(item)
    content = item if isinstance(item, bytes) else np.ascontiguousarray(item).tobytes()
    return hashlib.sha256(content).hexdigest()


def option(
    default: Any,
    *,
    least: float | None = None,
    above: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """Declare an option of a method, with the smallest value or the words that it may have."""
    bounds = {"least": least, "above": above, "choices": choices}
    return field(default=default, metadata=bounds)


def _check_option(name: str, value: Any, bounds: Mapping[str, Any]) -> None:
    """Raise where an option has no value that it may have."""
    if bounds["choices"] and value not in bounds["choices"]:
        raise KldaError(f"{name}={value!r} is unknown; choose one of {list(bounds['choices'])}.")
    for bound, fits in (("least", operator.ge), ("above", operator.gt)):
        limit = bounds[bound]
        number = isinstance(value, (int, float)) and not math.isinf(value)
        if limit is not None and not (number and fits(value, limit)):
            words = f"at least {limit}" if bound == "least" else f"larger than {limit}"
            raise KldaError(f"{name}={value!r} must be a number {words}.")


@dataclass(kw_only=True, eq=False)
class Baseline(ABC):
    """A method that learns task after task by training a network.

    `head_lr` is Adam's learning rate for what starts untrained (head, prompts), `backbone_lr` that
    for the foundation model; over a task they fall to zero (`schedule` linear) or stay (constant).
    Texts are cut to `max_length` tokens. `precision` is bf16, float32, or auto: bfloat16 autocast
    on a GPU and float32 elsewhere. `checkpoint_dir` keeps the state after every finished task: a
    method made again with the same options and given the same tasks loads it instead of training
    again.
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
    checkpoint_dir: str | Path | None = None
    progress: bool = True
    module: Any = field(init=False)

    def __post_init__(self) -> None:
        for declared in fields(self):
            if declared.metadata:
                _check_option(declared.name, getattr(self, declared.name), declared.metadata)
        self._checkpoints = None if self.checkpoint_dir is None else Path(self.checkpoint_dir)
        self._device = pick_device(self.device)
        gpu = self._device.type == "cuda"
        self._bf16 = self.precision == "bf16" or (self.precision == "auto" and gpu)
        self._history = ""
        self.classes_: list[Any] = []
        self.n_tasks_ = 0
        with seeded(self.seed, self._device):
            self.module = self._make_module().to(self._device)

    @abstractmethod
    def _make_module(self) -> nn.Module:
        """Make the network, with weights that depend on the seed only."""

    @property
    def settings(self) -> dict[str, Any]:
        """All hyper-parameters, by name."""
        others = ("device", "checkpoint_dir", "progress")
        names = [declared.name for declared in fields(self) if declared.init]
        return {name: getattr(self, name) for name in names if name not in others}

    def learn_task(self, texts: Sequence[str], labels: Sequence[Any]) -> None:
        """Learn one task: all its texts (or images) and their classes, once."""
        texts, labels = check_samples(texts, labels)
        self._check_inputs(texts)
        history = self._fingerprint(texts, labels)
        if self._load_checkpoint(history):
            return
        before = self._state()
        try:
            with seeded(self.seed * 10_007 + self.n_tasks_, self._device):
                self._learn(texts, labels)
        except BaseException:
            self._restore(*before)
            raise
        self.n_tasks_ += 1
        self._history = history
        self._save_checkpoint()

    def predict(self, texts: Sequence[str]) -> np.ndarray:
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

    @abstractmethod
    def _learn(self, texts: list[str], labels: list[Any]) -> None:
        """Train on one task."""

    @abstractmethod
    def _predict(self, texts: list[str]) -> np.ndarray:
        """Position in `classes_` of each text's class."""

    def _check_inputs(self, inputs: list[Any]) -> None:
        check_texts(inputs)

    def _codes(self, labels: list[Any]) -> list[int]:
        """Position of each label in `classes_`, to which new classes are added."""
        known = dict.fromkeys(self.classes_)
        known.update(dict.fromkeys(labels))
        self.classes_ = list(known)
        position = {label: code for code, label in enumerate(self.classes_)}
        return [position[label] for label in labels]

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16)

    def _fit(
        self, rows: Rows, loss: Callable[[Batch], Tensor], groups: list[dict[str, Any]]
    ) -> None:
        """Train: Adam over `groups`, gradient clipping, the schedule, a bar."""
        groups = [{**group, "params": list(group["params"])} for group in groups]
        parameters = [parameter for group in groups for parameter in group["params"]]
        optimizer = torch.optim.Adam(groups, fused=self._device.type == "cuda")
        steps = self.epochs * math.ceil(len(rows) / self.batch_size)
        linear = self.schedule == "linear"
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(0.0, 1 - step / steps) if linear else 1.0
        )
        rng = np.random.default_rng([self.seed, self.n_tasks_])
        for bar in self._epochs():
            self.module.train()
            total = torch.zeros((), device=self._device)
            for batch in rows.batches(self.batch_size, rng):
                optimizer.zero_grad(set_to_none=True)
                with self._autocast():
                    value = loss(batch)
                value.backward()
                nn.utils.clip_grad_norm_(parameters, self.clip_norm)
                optimizer.step()
                scheduler.step()
                total += value.detach()
            # Read once an epoch: reading a loss makes the CPU wait for the GPU.
            mean = float(total) / math.ceil(len(rows) / self.batch_size)
            if not math.isfinite(mean):
                raise KldaError(
                    f"{self.name}: the loss became {mean} in task {self.n_tasks_ + 1}; lower "
                    f"head_lr={self.head_lr} or backbone_lr={self.backbone_lr}."
                )
            bar.set_postfix(loss=f"{mean:.4f}")

    def _epochs(self) -> Iterator[Any]:
        """One bar, yielded once an epoch."""
        tqdm = require("tqdm.auto", "baselines").tqdm
        # disable=None: a bar on a terminal, silence in a pipe.
        hidden = None if self.progress else True
        title = f"{self.name} task {self.n_tasks_ + 1}"
        with tqdm(total=self.epochs, desc=title, unit="epoch", disable=hidden, leave=False) as bar:
            for _ in range(self.epochs):
                yield bar
                bar.update()

    # -- state: what a task's end leaves behind ------------------------------------------------

    def _state(self) -> State:
        """Trained weights and what else describes the method now."""
        tensors = {
            f"module.{name}": parameter.detach().clone()
            for name, parameter in self.module.named_parameters()
            if parameter.requires_grad
        }
        meta = {"classes": self.classes_, "n_tasks": self.n_tasks_, "history": self._history}
        return tensors, meta

    def _restore(self, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
        """Undo to a state of `_state`."""
        self.classes_ = list(meta["classes"])
        self.n_tasks_ = int(meta["n_tasks"])
        self._history = str(meta["history"])
        self._resize(meta)
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(tensors[f"module.{name}"])

    @abstractmethod
    def _resize(self, meta: dict[str, Any]) -> None:
        """Give the module the shape that a state's tensors have."""

    def _fingerprint(self, texts: list[str], labels: list[Any]) -> str:
        """Digest of the settings and of all tasks up to this one."""
        inputs = [_json_able(text) for text in texts]
        content = [self._history, self.name, self.settings, self._bf16, inputs, labels]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def _load_checkpoint(self, history: str) -> bool:
        """Load the end of this very task, where a run before left it."""
        if self._checkpoints is None:
            return False
        folder = self._checkpoints / f"task-{self.n_tasks_ + 1:04d}"
        if not (folder / "state.json").exists():
            return False
        meta = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        if meta["history"] != history:
            return False
        tensors = load_file(folder / "state.safetensors", device=str(self._device))
        self._restore(tensors, meta)
        return True

    def _save_checkpoint(self) -> None:
        """Write beside, then rename: a checkpoint is whole or absent."""
        if self._checkpoints is None:
            return
        folder = self._checkpoints / f"task-{self.n_tasks_:04d}"
        partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        tensors, meta = self._state()
        save_file(
            {name: t.contiguous() for name, t in tensors.items()}, partial / "state.safetensors"
        )
        (partial / "state.json").write_text(json.dumps(meta), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


class ClassifierModule(nn.Module):
    """An encoder of texts or images and a growing linear head."""

    def __init__(self, backbone: str) -> None:
        super().__init__()
        self.encoder: TextEncoder | VisionNetwork = (
            VisionNetwork(backbone) if reads_images(backbone) else TextEncoder(backbone)
        )
        self.head = Head(self.encoder.dimension)

    def forward(self, batch: Batch) -> Tensor:
        """Scores of all classes so far, (n, classes), in float32."""
        return self.head(self.encoder.of(batch)).float()


class ClassifierBaseline(Baseline):
    """Fine-tuning of an encoder of texts or images, and a head that grows with every task.

    A subclass says what it does before a task, what it adds to the loss, and what it keeps.
    """

    def _make_module(self) -> ClassifierModule:
        return ClassifierModule(self.backbone)

    def _check_inputs(self, inputs: list[Any]) -> None:
        if not isinstance(self.module.encoder, VisionNetwork):
            super()._check_inputs(inputs)

    def _rows(self, texts: list[Any], codes: Sequence[int] | None = None) -> Rows:
        encoder = self.module.encoder
        columns = {} if codes is None else {"labels": torch.tensor(codes)}
        if isinstance(encoder, VisionNetwork):
            return ImageRows(texts, encoder.read, columns=columns, device=self._device)
        return Rows(
            sequences={"ids": encoder.tokenize(texts, self._tokens())},
            padding={"ids": encoder.tokenizer.pad_token_id},
            columns=columns,
            device=self._device,
        )

    def _tokens(self) -> int:
        """Tokens that a text is cut to."""
        return self.max_length

    def _learn(self, texts: list[str], labels: list[Any]) -> None:
        codes = self._codes(labels)
        rows = self._rows(texts, codes)
        self._before_task(rows)
        self.module.head.resize(len(self.classes_))
        self._fit(rows, self._loss, self._groups())
        self._after_task(rows)

    def _groups(self) -> list[dict[str, Any]]:
        """Adam's parameter groups."""
        return [
            {"params": self.module.encoder.parameters(), "lr": self.backbone_lr},
            {"params": self.module.head.parameters(), "lr": self.head_lr},
        ]

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

    def _resize(self, meta: dict[str, Any]) -> None:
        self.module.head.resize(len(meta["classes"]))
