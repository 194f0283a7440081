"""What all fine-tuned methods share: samples, batches, the training loop, the head, checkpoints."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from klda.baselines.backbones import TextEncoder, VisionNetwork, reads_images
from klda.benchmarks.resources import require_device
from klda.errors import KldaError, require

Batch = dict[str, Tensor]
State = tuple[dict[str, Tensor], dict[str, Any]]

# Batches of one length are cut from this many shuffled batches' worth of samples: long enough for
# little padding, short enough that the batches of two epochs differ.
_BUCKET = 32
_READERS = min(8, os.cpu_count() or 1)


class Rows:
    """Tokenised samples, padded once and kept on the device.

    Parameters
    ----------
    sequences : mapping of str to lists of token ids
        Fields of variable length. ``ids`` decides the order of lengths.
    padding : mapping of str to int
        Fill value of each field.
    columns : mapping of str to Tensor
        One entry a sample: labels, weights, a teacher's answers.
    device : torch.device
        Where batches are made.
    """

    def __init__(
        self,
        *,
        sequences: Mapping[str, Sequence[Sequence[int]]],
        padding: Mapping[str, int],
        columns: Mapping[str, Tensor] | None = None,
        device: torch.device,
    ) -> None:
        self._lengths = {
            field: np.array([len(row) for row in rows]) for field, rows in sequences.items()
        }
        self._padded = {
            field: _pad(rows, padding[field]).to(device) for field, rows in sequences.items()
        }
        self._on_device = {
            field: torch.from_numpy(lengths).to(device) for field, lengths in self._lengths.items()
        }
        self.columns = {name: column.to(device) for name, column in (columns or {}).items()}
        self._device = device

    def __len__(self) -> int:
        return len(self._lengths["ids"])

    def batches(self, size: int, rng: np.random.Generator | None = None) -> Iterator[Batch]:
        """Yield batches of samples of similar length; in a random order where `rng` is given."""
        order = self._order(size, rng)
        # One copy to the device an epoch, not one a batch.
        where = torch.from_numpy(np.concatenate(order)).to(self._device)
        for index, part in zip(order, where.split([len(index) for index in order]), strict=True):
            yield self._take(index, part)

    def _order(self, size: int, rng: np.random.Generator | None) -> list[np.ndarray]:
        lengths = self._lengths["ids"]
        if rng is None:
            order = np.argsort(lengths, kind="stable")
            return [order[i : i + size] for i in range(0, len(order), size)]
        shuffled = rng.permutation(len(lengths))
        chunks = [shuffled[i : i + size * _BUCKET] for i in range(0, len(shuffled), size * _BUCKET)]
        order = np.concatenate(
            [chunk[np.argsort(lengths[chunk], kind="stable")] for chunk in chunks]
        )
        batches = [order[i : i + size] for i in range(0, len(order), size)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def take(self, index: np.ndarray) -> Batch:
        """Make one batch of the samples `index`, cut to their longest; adds ``<field>_mask``."""
        return self._take(index, torch.from_numpy(index).to(self._device))

    def _take(self, index: np.ndarray, where: Tensor) -> Batch:
        batch: Batch = {"index": where}
        for field, padded in self._padded.items():
            width = int(self._lengths[field][index].max())
            batch[field] = padded[where, :width]
            positions = torch.arange(width, device=self._device)
            batch[f"{field}_mask"] = (positions < self._on_device[field][where, None]).long()
        batch.update({name: column[where] for name, column in self.columns.items()})
        return batch

    @torch.no_grad()
    def map(self, function: Callable[[Batch], Tensor], size: int) -> Tensor:
        """Apply a function to all samples; its rows, in the samples' order."""
        parts, order = [], []
        for batch in self.batches(size):
            parts.append(function(batch))
            order.append(batch["index"])
        joined = torch.cat(parts)
        result = torch.empty_like(joined)
        result[torch.cat(order)] = joined
        return result


class ImageRows(Rows):
    """Images, read and scaled batch by batch: all of them at once would not fit into memory.

    Parameters
    ----------
    images : sequence of images
        Arrays, paths, or whatever `read` takes.
    read : callable
        ``read(image, position)`` gives one image's pixels.
    columns : mapping of str to Tensor
        One entry an image.
    device : torch.device
        Where batches are made.
    """

    def __init__(
        self,
        images: Sequence[Any],
        read: Callable[[Any, int], Tensor],
        *,
        columns: Mapping[str, Tensor] | None = None,
        device: torch.device,
    ) -> None:
        super().__init__(sequences={}, padding={}, columns=columns, device=device)
        self._lengths = {"ids": np.zeros(len(images), dtype=int)}
        self._images, self._read = images, read

    def _take(self, index: np.ndarray, where: Tensor) -> Batch:
        batch = super()._take(index, where)
        with ThreadPoolExecutor(_READERS) as pool:
            pixels = list(pool.map(lambda i: self._read(self._images[i], int(i)), index))
        if len({part.shape for part in pixels}) > 1:
            raise KldaError(
                "The model's processor keeps each image's shape, so that they make no batch: give "
                "images of one size."
            )
        batch["pixels"] = torch.stack(pixels).to(self._device)
        return batch


def _pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    padded = torch.full((len(rows), max(map(len, rows))), value, dtype=torch.long)
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.tensor(row, dtype=torch.long)
    return padded


class Head(nn.Module):
    """A linear classifier that grows by classes, its old rows untouched.

    Parameters
    ----------
    dimension : int
        Length of a feature vector.
    """

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
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
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


def check_samples(texts: Sequence[Any], labels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return inputs and labels as plain lists, or an error that says what is wrong with them."""
    texts, plain = list(texts), [_plain_label(label) for label in labels]
    if not texts:
        raise KldaError("texts is empty; give at least one sample.")
    if len(texts) != len(plain):
        raise KldaError(
            f"texts has {len(texts)} rows and labels {len(plain)}; give one label each."
        )
    kinds = {type(label).__name__ for label in plain}
    if kinds not in ({"str"}, {"int"}):
        raise KldaError(f"labels has values of {sorted(kinds)}; make them all str or all int.")
    return texts, plain


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


def _plain_label(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label


class Baseline(ABC):
    """A method that learns task after task by training a network.

    Parameters
    ----------
    backbone : str
        See `klda.baselines.backbones.resolve_backbone`.
    device : str, default="auto"
        ``auto`` takes a GPU where there is one.
    epochs : int, default=50
        Passes over a task's data.
    batch_size : int, default=128
        Samples a step.
    head_lr : float, default=1e-3
        Adam's learning rate for what starts untrained (head, prompts).
    backbone_lr : float, default=1e-4
        Adam's learning rate for the foundation model.
    schedule : {"linear", "constant"}, default="linear"
        Learning rate over a task: falling to zero, or fixed.
    clip_norm : float, default=1.0
        Largest norm of a step's gradient.
    max_length : int, default=128
        Tokens a text is cut to.
    precision : {"auto", "bf16", "float32"}, default="auto"
        ``auto`` is bfloat16 autocast on a GPU and float32 elsewhere.
    seed : int, default=0
        Order of samples, new weights, dropout, sampling.
    checkpoint_dir : path or None, default=None
        Folder that keeps the state after every finished task. A method made again with the same
        options and given the same tasks loads them instead of training again.
    progress : bool, default=True
        Show a bar on a terminal.
    """

    name = ""
    needs = "inputs"
    joint = False

    def __init__(
        self,
        backbone: str = "minilm",
        *,
        device: str = "auto",
        epochs: int = 50,
        batch_size: int = 128,
        head_lr: float = 1e-3,
        backbone_lr: float = 1e-4,
        schedule: str = "linear",
        clip_norm: float = 1.0,
        max_length: int = 128,
        precision: str = "auto",
        seed: int = 0,
        checkpoint_dir: str | Path | None = None,
        progress: bool = True,
    ) -> None:
        check_choice("schedule", schedule, ("linear", "constant"))
        check_choice("precision", precision, ("auto", "bf16", "float32"))
        for option, value in (
            ("epochs", epochs),
            ("batch_size", batch_size),
            ("max_length", max_length),
        ):
            check_number(option, value, least=1)
        check_number("head_lr", head_lr)
        check_number("backbone_lr", backbone_lr)
        check_number("clip_norm", clip_norm, above=True)
        self.backbone = str(backbone)
        self.epochs, self.batch_size, self.schedule = epochs, batch_size, schedule
        self.head_lr, self.backbone_lr, self.clip_norm = head_lr, backbone_lr, clip_norm
        self.max_length, self.seed, self.precision = max_length, seed, precision
        self._progress = progress
        self._checkpoints = Path(checkpoint_dir) if checkpoint_dir is not None else None
        self._device = pick_device(device)
        bf16 = self._device.type == "cuda" if precision == "auto" else precision == "bf16"
        self._bf16 = bf16
        self._history = ""
        self.classes_: list[Any] = []
        self.n_tasks_ = 0
        self.module: nn.Module = nn.Module()

    @property
    def settings(self) -> dict[str, Any]:
        """All hyper-parameters, by name."""
        plain = (bool, int, float, str, type(None))
        public = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {
            name: value
            for name, value in public.items()
            if not name.endswith("_") and isinstance(value, plain)
        }

    def learn_task(self, texts: Sequence[str], labels: Sequence[Any]) -> None:
        """Learn one task: all its data, once.

        Parameters
        ----------
        texts : sequence of str
            The task's texts.
        labels : sequence of str or int
            Their classes.
        """
        texts, labels = check_samples(texts, labels)
        self._check_inputs(texts)
        self._check_task(labels)
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
        """Class of each text among all learned so far.

        Parameters
        ----------
        texts : sequence of str
            Texts, of any task.

        Returns
        -------
        ndarray of shape (n,)
            Labels.
        """
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

    def _check_task(self, labels: list[Any]) -> None:
        if self.classes_ and type(labels[0]) is not type(self.classes_[0]):
            raise KldaError(
                f"labels are {type(labels[0]).__name__}, earlier tasks had "
                f"{type(self.classes_[0]).__name__}; use one kind."
            )

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
        hidden = None if self._progress else True
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

    def _task_folder(self) -> Path:
        assert self._checkpoints is not None
        return self._checkpoints / f"task-{self.n_tasks_:04d}"

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
        folder = self._task_folder()
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


def check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise where an option has none of the values that it may have."""
    if value not in choices:
        raise KldaError(f"{option}={value!r} is unknown; choose one of {list(choices)}.")


def check_number(option: str, value: float, *, least: float = 0, above: bool = False) -> None:
    """Raise where an option is smaller than it may be, or no number at all.

    Parameters
    ----------
    option : str
        Its name.
    value : float
        What was given.
    least : float, default=0
        Smallest value allowed.
    above : bool, default=False
        Whether it must be larger than `least`.
    """
    fits = isinstance(value, (int, float)) and (value > least if above else value >= least)
    if not fits or math.isinf(value):
        bound = f"larger than {least}" if above else f"at least {least}"
        raise KldaError(f"{option}={value!r} must be a number {bound}.")


class ClassifierModule(nn.Module):
    """An encoder of texts or images and a growing linear head.

    Parameters
    ----------
    backbone : str
        See `klda.baselines.backbones.resolve_backbone`.
    """

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

    module: ClassifierModule

    def __init__(self, backbone: str = "minilm", **training: Any) -> None:
        super().__init__(backbone, **training)
        self.module = self._make_module().to(self._device)

    def _make_module(self) -> ClassifierModule:
        with seeded(self.seed, self._device):
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
