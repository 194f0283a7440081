"""What every encoder shares: the interface, layers, devices, batches, progress, fingerprints."""

from __future__ import annotations

import contextlib
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from klda.encoders.files import ModelFiles
from klda.errors import KldaError, require

Modality = Literal["text", "image", "features"]
Layers = tuple[int, ...] | Literal["last"]
Precision = Literal["auto", "float32", "float16", "bfloat16"]

# What identifies the features; the name and the place of the files do not.
_IDENTITY = ("modality", "revision", "pooling", "layers", "dimension")


@runtime_checkable
class Encoder(Protocol):
    """A frozen foundation model: inputs in, one float32 feature row each out.

    An encoder never changes after it is made, so ``encode`` may be called from several threads.
    """

    @property
    def name(self) -> str:
        """Name it was asked for by."""

    @property
    def modality(self) -> Modality:
        """What it takes: ``"text"``, ``"image"`` or ``"features"``."""

    @property
    def dimension(self) -> int:
        """Length of a feature row (0 for precomputed features of any length)."""

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Turn n inputs into a float32 array (n, dimension), in the order given."""

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features in JSON-able values; see :func:`same_features`."""


def same_features(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Say whether two fingerprints describe the same features.

    Weights, pooling, layers and dimension decide; the folder or package that the files came from,
    the device and the numeric precision do not.

    Parameters
    ----------
    first, second : dict
        What ``Encoder.fingerprint()`` returned, possibly read back from JSON.

    Returns
    -------
    bool
        True if features of one may be used with a classifier that learned from the other's.
    """
    for key in _IDENTITY:
        one, other = first.get(key), second.get(key)
        if key == "dimension" and 0 in (one, other):
            continue  # precomputed features of a length the encoder does not prescribe
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            one, other = list(one), list(other)
        if one != other:
            return False
    return True


def parse_layers(layers: Any) -> Layers | Literal["auto"]:
    """Read a ``layers`` setting.

    Parameters
    ----------
    layers : str, int or sequence of int
        ``"last"``, ``"auto"``, or layer numbers: ``(4, 5, 6)``, ``"4,5,6"``, ``(-3, -2, -1)``.

    Returns
    -------
    "last", "auto" or tuple of int
        The setting in one form; negative numbers are kept.

    Raises
    ------
    KldaError
        If it is none of these.
    """
    if layers in ("last", "auto"):
        return layers
    try:
        if isinstance(layers, str):
            numbers = tuple(int(part) for part in layers.split(","))
        elif isinstance(layers, int | np.integer) and not isinstance(layers, bool):
            numbers = (int(layers),)
        else:
            numbers = tuple(int(part) for part in layers)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers:
        raise KldaError(
            f'layers={layers!r} is not understood: give "last", "auto", or layer numbers such as '
            '(4, 5, 6), "4,5,6" or (-3, -2, -1).'
        )
    return numbers


def resolve_layers(layers: Layers, n_layers: int, name: str) -> Layers:
    """Replace negative layer numbers and refuse those that the model does not have.

    Parameters
    ----------
    layers : "last" or tuple of int
        Layer 0 is the embedding, layer ``n_layers`` the last one.
    n_layers : int
        How many layers the model has.
    name : str
        The model, for the error.

    Returns
    -------
    "last" or tuple of int
        Layer numbers from 0 to ``n_layers``.
    """
    if layers == "last":
        return layers
    resolved = tuple(n_layers + 1 + layer if layer < 0 else layer for layer in layers)
    outside = [layer for layer, at in zip(layers, resolved, strict=True) if not 0 <= at <= n_layers]
    if outside:
        raise KldaError(
            f"layers={layers!r}: the model {name!r} has no layer {outside[0]}. It has layers 0 "
            f"(the embedding) to {n_layers} (the last; -1 counts from there)."
        )
    if len(set(resolved)) < len(resolved):
        raise KldaError(f"layers={layers!r} names a layer of {name!r} twice: give each once.")
    return resolved


def choose_device(device: str) -> Any:
    """Turn a ``device`` setting into a ``torch.device``.

    Parameters
    ----------
    device : str
        ``"auto"`` (CUDA where there is a GPU, else the CPU) or any name that torch knows.

    Returns
    -------
    torch.device
        The device.

    Raises
    ------
    KldaError
        If torch does not know the device or this computer does not have it.
    """
    torch = require("torch", "text")
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise KldaError(
            f'device={device!r} is not a device: give "auto", "cpu" or "cuda".'
        ) from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise KldaError(
            f"device={device!r}: this computer has {torch.cuda.device_count()} CUDA devices. "
            'Give "auto" or "cpu".'
        )
    return chosen


def choose_dtype(precision: Precision, device: Any, *, wide_range: bool) -> Any:
    """Pick the number format of the weights.

    Parameters
    ----------
    precision : {"auto", "float32", "float16", "bfloat16"}
        ``"auto"`` is float32 on a CPU and half precision on a GPU.
    device : torch.device
        Where the model runs.
    wide_range : bool
        Whether the model's activations leave float16's range (T5) or its weights were published
        in bfloat16: then ``"auto"`` takes bfloat16, otherwise float16, whose rounding error is an
        eighth of bfloat16's.

    Returns
    -------
    torch.dtype
        The format.
    """
    torch = require("torch", "text")
    formats = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16")}
    if precision in formats:
        return formats[precision]
    if precision != "auto":
        raise KldaError(
            f'precision={precision!r} is not known: give "auto", "float32", "float16" or '
            '"bfloat16".'
        )
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if wide_range else torch.float16


def length_batches(
    lengths: Sequence[int], batch_size: int, max_tokens: int
) -> Iterator[np.ndarray]:
    """Group items of similar length, so that almost nothing is padding.

    Parameters
    ----------
    lengths : sequence of int
        Length of each item.
    batch_size : int
        Most items in a batch.
    max_tokens : int
        Most tokens in a batch, padding included (one longer item still makes a batch).

    Yields
    ------
    ndarray of int
        Positions of a batch's items, longest batches first so that too little memory shows at
        once and not after an hour.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, lengths[order[start]])
        count = max(1, min(batch_size, max_tokens // longest))
        yield order[start : start + count]
        start += count


@contextlib.contextmanager
def progress_bar(total: int, label: str, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; stay quiet anywhere else.

    Parameters
    ----------
    total : int
        How many items there are.
    label : str
        What is being done.
    show : bool
        Whether the caller wants a bar at all.

    Yields
    ------
    callable
        To be called with the number of items just finished.
    """
    if not (show and sys.stderr.isatty()):
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        yield lambda count: progress.update(task, advance=count)


def check_batch_size(batch_size: int | None, default: int) -> int:
    """Return ``batch_size``, or the default where it is None; refuse what is not positive."""
    if batch_size is None:
        return default
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise KldaError(f"batch_size={batch_size!r} must be a positive whole number.")
    return batch_size


def unit_rows(rows: Any) -> Any:
    """Scale each row of a tensor to unit length (a zero row stays zero)."""
    return rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-12)


class FrozenModel(ABC):
    """Base of the encoders that run a network.

    Parameters
    ----------
    name : str
        Name that the model was asked for by.
    files : ModelFiles
        Where its weights are.
    layers : "last" or tuple of int
        Resolved layers.
    pooling : str
        How token or pixel features become one row.
    dimension : int
        Length of a feature row.
    batch_size : int
        Most inputs in one forward pass.
    """

    modality: Modality

    def __init__(
        self,
        *,
        name: str,
        files: ModelFiles,
        layers: Layers,
        pooling: str,
        dimension: int,
        batch_size: int,
    ) -> None:
        self.name = name
        self.files = files
        self.layers = layers
        self.pooling = pooling
        self.dimension = dimension
        self.batch_size = batch_size
        # A network fills all cores by itself: calls from several threads take turns.
        self._lock = threading.Lock()

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Turn inputs into features.

        Parameters
        ----------
        inputs : sequence
            The texts or images.
        progress : bool, default=False
            Show a progress bar if standard error is a terminal.

        Returns
        -------
        ndarray of shape (n, dimension), float32
            One row an input, in the order given.

        Raises
        ------
        KldaError
            If an input is of the wrong kind or can't be read; the message says which.
        """
        checked = self._check(inputs)
        features = np.empty((len(checked), self.dimension), dtype=np.float32)
        label = f"Encoding with {self.name}"
        with progress_bar(len(checked), label, show=progress) as advance:
            for positions, rows in self._encode_batches(checked):
                features[positions] = rows
                advance(len(positions))
        self._check_finite(features)
        return features

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features.

        Returns
        -------
        dict
            JSON-able: name, modality, source, revision (digest of the weights), pooling, layers
            and dimension.
        """
        return {
            "name": self.name,
            "modality": self.modality,
            "source": self.files.source,
            "revision": self.files.revision,
            "pooling": self.pooling,
            "layers": self.layers if isinstance(self.layers, str) else list(self.layers),
            "dimension": self.dimension,
        }

    def cache_key(self) -> dict[str, Any]:
        """Describe the features to the last bit, for a cache.

        Returns
        -------
        dict
            The fingerprint's identity, with the settings files (tokenizer, image size) and the
            numeric precision.
        """
        fingerprint = self.fingerprint()
        key = {part: fingerprint[part] for part in _IDENTITY}
        return key | {"settings": self.files.settings_digest, "precision": self.precision}

    @property
    @abstractmethod
    def precision(self) -> str:
        """Number format of the weights, as ``"float32"``."""

    @abstractmethod
    def _check(self, inputs: Any) -> Sequence[Any]:
        """Return the inputs as a sequence, or raise an error that says which one is wrong."""

    @abstractmethod
    def _encode_batches(self, inputs: Sequence[Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield positions and their features until all inputs are done."""

    def _check_finite(self, features: np.ndarray) -> None:
        """Refuse features that half precision, or a damaged model, has spoilt."""
        broken = np.flatnonzero(~np.isfinite(features).all(axis=1))
        if len(broken):
            advice = "The weights may be damaged."
            if self.precision != "float32":
                advice = 'Load it with precision="float32" (or "bfloat16").'
            raise KldaError(
                f"The model {self.name!r} gave infinite or undefined features for "
                f"inputs[{broken[0]}] in {self.precision}. {advice}"
            )
