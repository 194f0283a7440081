"""How a network runs: by ONNX Runtime or torch, on which device, in which number format."""

from __future__ import annotations

import ctypes
import importlib.util
import operator
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from klda.checks import check_count
from klda.errors import KldaError

Layers = tuple[int, ...] | Literal["last", "auto"]  # "auto" only until a model is chosen
Runtime = Literal["auto", "onnx", "torch"]
Precision = Literal["auto", "float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class RunOptions:
    """How to run a network; the fields are parameters of :func:`klda.encoders.load`."""

    device: str = "auto"
    layers: Layers = "last"  # numbers may be negative
    batch_size: int | None = None
    precision: Precision = "auto"
    runtime: Runtime = "auto"
    trust_remote_code: bool = False
    prompt: str | None = None  # put before each text; None is the model's own, if it has one

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", _parse_layers(self.layers))
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if not re.fullmatch(r"auto|(cpu|cuda|mps|xpu)(:\d+)?", self.device):
            raise KldaError(
                f'device={self.device!r} is not a device: give "auto", "cpu" or "cuda".'
            )
        for name, choices in (("runtime", get_args(Runtime)), ("precision", get_args(Precision))):
            if (given := getattr(self, name)) not in choices:
                raise KldaError(
                    f"{name}={given!r} is not valid: give one of {', '.join(map(repr, choices))}."
                )

    def choose_runtime(self, name: str, is_bert: bool) -> str:
        """Return ``"onnx"`` or ``"torch"``; a runtime that was asked for must be able to run it."""
        fits = self.device in ("auto", "cpu") and self.precision in ("auto", "float32") and is_bert
        if self.runtime == "onnx" and not fits:
            raise KldaError(
                f'runtime="onnx" can\'t run the model {name!r} with device={self.device!r} and '
                f"precision={self.precision!r}. It runs BERT's architecture with gelu and absolute "
                "positions, from safetensors files and a tokenizer.json, on a CPU in float32. Give "
                'runtime="auto" or "torch".'
            )
        if self.runtime != "auto":
            return self.runtime
        if not fits or (self.device == "auto" and _has_gpu()):
            return "torch"
        return "onnx" if can_run_onnx() or not is_installed("torch") else "torch"

    def resolve_layers(self, n_layers: int, name: str) -> Layers:
        """Return layer numbers from 0 (the embedding) to `n_layers`; -1 is the last layer."""
        if isinstance(self.layers, str):
            return "last"
        found = tuple(n_layers + 1 + layer if layer < 0 else layer for layer in self.layers)
        for layer, number in zip(self.layers, found, strict=True):
            if not 0 <= number <= n_layers:
                raise KldaError(
                    f"layers={self.layers!r}: the model {name!r} has no layer {layer}. It has "
                    f"layers 0 (the embedding) to {n_layers} (the last one, also -1)."
                )
        if len(set(found)) < len(found):
            raise KldaError(f"layers={self.layers!r} names a layer of {name!r} twice.")
        return found

    def require_last_layer(self, name: str) -> None:
        """Raise if other layers are asked of a network that has one feature only."""
        if not isinstance(self.layers, str):
            raise KldaError(
                f"layers={self.layers!r}: the model {name!r} has no layers to choose from. Leave "
                "layers out, or use a transformer."
            )


def _parse_layers(layers: Any) -> Layers:
    """Return a ``layers`` setting in one form."""
    if isinstance(layers, str) and layers in ("last", "auto"):
        return layers  # type: ignore[return-value]
    try:
        parts = layers.split(",") if isinstance(layers, str) else np.atleast_1d(layers)
        numbers = tuple(int(n) if isinstance(n, str) else operator.index(n) for n in parts)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers:
        raise KldaError(
            f'layers={layers!r} is not valid: give "last", "auto", or layer numbers such as '
            '(4, 5, 6), "4,5,6" or (-3, -2, -1).'
        )
    return numbers


DEFAULT = RunOptions()


def can_run_onnx() -> bool:
    """Check whether ONNX Runtime and tokenizers are installed, without importing them."""
    return is_installed("onnxruntime") and is_installed("tokenizers")


def is_installed(module: str) -> bool:
    """Check whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def _has_gpu() -> bool:
    """Check whether torch has a GPU, importing it only if there may be one."""
    if not is_installed("torch"):
        return False
    if "torch" not in sys.modules:
        try:
            ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        except OSError:
            return False
    import torch

    return bool(torch.cuda.is_available())
