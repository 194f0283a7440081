"""The machine: its devices, memory and versions, what is missing on it, and optional packages."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import os
import platform
import resource
from pathlib import Path
from typing import Any

from klda.errors import KldaError, MissingDependencyError

_PACKAGES = ("klda", "numpy", "scipy", "scikit-learn", "torch", "transformers")


NOT_HERE = "not available offline"


class UnavailableError(KldaError):
    """Something that a run needs is not on this machine, or a model does not fit a method.

    It leaves a gap in a table, where `gap` says why in two or three words.
    """

    def __init__(self, message: str, gap: str = NOT_HERE) -> None:
        super().__init__(message)
        self.gap = gap


def require(module: str, extra: str) -> Any:
    """Import a module of an optional dependency; `extra` is what installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        if error.name is None or error.name.split(".")[0] != package:
            raise
        raise MissingDependencyError(
            f"This needs the package {package!r}, which is not installed. In a clone of klda's "
            f'repository, run: pip install -e "bench[{extra}]"'
        ) from error


def versions() -> dict[str, str]:
    """Versions of Python and of the packages whose arithmetic a number depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    """Cores, threads and kind of the machine; nothing that names it."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _cpu_model() -> str:
    """Return what the CPU calls itself: its architecture alone says nothing of its speed."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024


def resolve_device(device: str) -> str:
    """``"auto"`` as the device that will be used; anything else unchanged."""
    if device != "auto":
        return device
    try:
        import torch
    except ImportError:
        return "cpu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_device(device: str) -> str:
    """Name a device for result lines: a GPU with its model, where PyTorch sees it."""
    if device.startswith("cuda") and resolve_device("auto") == "cuda":
        import torch

        return f"{device} ({torch.cuda.get_device_name(device)})"
    return device


def require_device(device: str) -> None:
    """Raise an error if `device` is a GPU that is not there."""
    if device.startswith("cuda") and resolve_device("auto") != "cuda":
        raise UnavailableError(
            f"device={device!r}: PyTorch sees no CUDA GPU here. Use device='cpu' or 'auto'.",
            gap="not run here",
        )


def allow_tf32(allowed: bool) -> None:
    """Let matrix products on a GPU round float32 inputs to TF32, or not; factors stay float32."""
    require("torch", "baselines").set_float32_matmul_precision("high" if allowed else "highest")
