"""How a network runs: on ONNX Runtime or torch, on which device, in which number format."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from dataclasses import dataclass
from typing import Any, Literal, get_args

from klda.encoders.base import Layers, Precision
from klda.engine.cpus import usable_cpus
from klda.errors import KldaError, require

Engine = Literal["auto", "onnx", "torch"]
# Architectures whose activations exceed float16's range.
_WIDE = ("t5", "mt5", "umt5", "longt5", "gemma", "gemma2", "gemma3", "gemma3_text")


@dataclass(frozen=True)
class Options:
    """How to run a network; the fields are parameters of :func:`klda.encoders.load`."""

    device: str = "auto"
    layers: Layers = "last"
    batch_size: int | None = None
    precision: Precision = "auto"
    engine: str = "auto"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.engine not in get_args(Engine):
            raise KldaError(f'engine={self.engine!r} is not valid: give "auto", "onnx" or "torch".')
        if self.precision not in get_args(Precision):
            raise KldaError(
                f'precision={self.precision!r} is not valid: give "auto", "float32", "float16" or '
                '"bfloat16".'
            )

    def choose_engine(self, name: str, is_bert: bool) -> str:
        """Return ``"onnx"`` or ``"torch"``; an engine that was asked for must be able to run it."""
        fits = self.device in ("auto", "cpu") and self.precision in ("auto", "float32") and is_bert
        if self.engine == "onnx" and not fits:
            raise KldaError(
                f'engine="onnx" can\'t run the model {name!r} with device={self.device!r} and '
                f"precision={self.precision!r}. It runs BERT's architecture with gelu and absolute "
                "positions, from safetensors files and a tokenizer.json, on a CPU in float32. Give "
                'engine="auto" or "torch".'
            )
        if self.engine == "auto":
            return "onnx" if fits and prefers_onnx(self.device) else "torch"
        return self.engine

    def on_torch(self, config: dict[str, Any]) -> tuple[Any, Any]:
        """Choose torch's device, a GPU if there is one, and the number format of the weights.

        ``"auto"`` is float32 on a CPU and half precision on a GPU: bfloat16 for models that exceed
        float16's range (T5) or were published in bfloat16, as their `config` says, else float16,
        whose rounding error is an eighth of bfloat16's.
        """
        torch = require("torch", "text")
        device = self._torch_device(torch)
        if device.type == "cpu":
            # torch does not see a quota of this process.
            torch.set_num_threads(min(torch.get_num_threads(), usable_cpus()))
        if self.precision != "auto":
            return device, getattr(torch, self.precision)
        if device.type != "cuda":
            return device, torch.float32
        published = config.get("dtype") or config.get("torch_dtype")
        is_wide = config.get("model_type") in _WIDE or published == "bfloat16"
        return device, torch.bfloat16 if is_wide else torch.float16

    def _torch_device(self, torch: Any) -> Any:
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise KldaError(
                f'device={self.device!r} is not a device: give "auto", "cpu" or "cuda".'
            ) from error
        if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
            raise KldaError(
                f"device={self.device!r}: this computer has {torch.cuda.device_count()} CUDA "
                'devices. Give "auto" or "cpu".'
            )
        return device

    def require_last_layer(self, name: str) -> None:
        """Raise if other layers are asked of a network that has one feature only."""
        if self.layers != "last":
            raise KldaError(
                f"layers={self.layers!r}: the model {name!r} has no layers to choose from. Leave "
                "layers out, or use a transformer."
            )


DEFAULT = Options()


def prefers_onnx(device: str = "auto") -> bool:
    """Check whether ONNX Runtime is the better choice for models that it can run."""
    if not is_installed("torch"):
        return True
    return can_run_onnx() and not _uses_gpu(device)


def can_run_onnx() -> bool:
    """Check whether ONNX Runtime and tokenizers are installed, without importing them."""
    return is_installed("onnxruntime") and is_installed("tokenizers")


def is_installed(module: str) -> bool:
    """Check whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def _uses_gpu(device: str) -> bool:
    """Check whether a device setting means a GPU, importing torch only if there may be one."""
    if device != "auto":
        return device != "cpu"
    if not ("torch" in sys.modules or _has_cuda_driver()):
        return False
    import torch

    return bool(torch.cuda.is_available())


def _has_cuda_driver() -> bool:
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True
