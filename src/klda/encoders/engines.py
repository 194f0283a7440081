"""Which library runs a text model: ONNX Runtime for BERT-like models on a CPU, else torch."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from typing import Literal, get_args

from klda.encoders.pretrained import Options
from klda.errors import KldaError

Engine = Literal["auto", "onnx", "torch"]
_CUDA_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


def choose_engine(name: str, options: Options, not_bert: str | None) -> str:
    """Return ``"onnx"`` or ``"torch"``; an engine that was asked for must be able to run it.

    `not_bert` is why the model can't be read as BERT (`why_not_bert`), None if it can.
    """
    if options.engine not in get_args(Engine):
        raise KldaError(f'engine={options.engine!r} is not valid: give "auto", "onnx" or "torch".')
    reason = _why_not_onnx(options) or not_bert
    if options.engine == "onnx" and reason is not None:
        raise KldaError(
            f'engine="onnx" can\'t run the model {name!r}: {reason}. Give "auto" or "torch".'
        )
    if options.engine == "auto":
        return "onnx" if reason is None and prefers_onnx(options.device) else "torch"
    return options.engine


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


def _why_not_onnx(options: Options) -> str | None:
    """Return which option ONNX Runtime can't follow here; None if it can follow all."""
    if options.precision not in ("auto", "float32"):
        return f"it computes in float32, not in {options.precision}"
    if options.device not in ("auto", "cpu"):
        return f"it runs on the CPU, not on {options.device}"
    return None


def _uses_gpu(device: str) -> bool:
    """Check whether a device setting means a GPU, importing torch only if there may be one."""
    if device != "auto":
        return device != "cpu"
    if not ("torch" in sys.modules or _has_cuda_driver()):
        return False
    import torch

    return bool(torch.cuda.is_available())


def _has_cuda_driver() -> bool:
    for library in _CUDA_DRIVERS:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False
