"""Which library runs a text model: ONNX Runtime for BERT-like models on a CPU, else torch."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from typing import Literal, get_args

from klda.encoders import onnx_network
from klda.encoders.files import ModelFiles
from klda.encoders.pretrained import Options
from klda.encoders.recipes import read_recipe
from klda.errors import KldaError

Engine = Literal["auto", "onnx", "torch"]
_ENGINES = get_args(Engine)
_CUDA_DRIVERS = ("libcuda.so.1", "nvcuda.dll")


def choose_engine(name: str, files: ModelFiles, options: Options) -> str:
    """Return ``"onnx"`` or ``"torch"``; an engine that was asked for must be able to run it."""
    if options.engine not in _ENGINES:
        raise KldaError(f'engine={options.engine!r} is not valid: give "auto", "onnx" or "torch".')
    if options.engine == "torch":
        return "torch"
    reason = _why_not_onnx(files, options)
    if options.engine == "onnx" and reason is not None:
        raise KldaError(
            f'engine="onnx" can\'t run the model {name!r}: {reason}. Give "auto" or "torch".'
        )
    if reason is not None:
        return "torch"
    return "onnx" if options.engine == "onnx" or prefers_onnx(options.device) else "torch"


def prefers_onnx(device: str = "auto") -> bool:
    """Check whether ONNX Runtime is the better choice for models that it can run."""
    if not is_installed("torch"):
        return True
    return can_run_onnx() and not _uses_gpu(device)


def _why_not_onnx(files: ModelFiles, options: Options) -> str | None:
    if options.precision not in ("auto", "float32"):
        return f"it computes in float32, not in {options.precision}"
    if options.device not in ("auto", "cpu"):
        return f"it runs on the CPU, not on {options.device}"
    return onnx_network.why_not(files, read_recipe(files))


def _uses_gpu(device: str) -> bool:
    """Check whether a device setting means a GPU, importing torch only if there may be one."""
    if device != "auto" or not (_is_loaded("torch") or _has_cuda_driver()):
        return False
    import torch

    return bool(torch.cuda.is_available())


def can_run_onnx() -> bool:
    """Check whether ONNX Runtime and tokenizers are installed, without importing them."""
    return is_installed("onnxruntime") and is_installed("tokenizers")


def is_installed(module: str) -> bool:
    """Check whether a module is installed, without importing it."""
    return importlib.util.find_spec(module) is not None


def _is_loaded(module: str) -> bool:
    return module in sys.modules


def _has_cuda_driver() -> bool:
    for library in _CUDA_DRIVERS:
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return True
    return False
