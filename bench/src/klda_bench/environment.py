"""The machine: its devices, memory and versions, what is missing on it, and optional packages."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import resource
from pathlib import Path
from typing import Any

from klda import errors
from klda.errors import KldaError

_PACKAGES = ("klda", "numpy", "scipy", "scikit-learn", "torch", "transformers")


class UnavailableError(KldaError):
    """Something that a run needs is not on this machine, or a model does not fit a method."""


def require(module: str, extra: str) -> Any:
    """Import a module of an optional dependency; `extra` is what installs it."""
    install = f'pip install -e "bench[{extra}]", in a clone of klda\'s repository'
    return errors.require(module, extra, install)


def versions() -> dict[str, str]:
    """Versions of Python and of the packages whose arithmetic a number depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def machine() -> dict[str, Any]:
    """Cores, threads and kind of the machine; nothing that names it."""
    # What the CPU calls itself: its architecture alone says nothing of its speed.
    cpu = _find("/proc/cpuinfo", r"model name\s*: (.*)")
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpu": cpu or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }


def _find(file: str, pattern: str) -> str | None:
    found = re.search(pattern, Path(file).read_text()) if Path(file).exists() else None
    return found[1] if found else None


def peak_bytes() -> int:
    """Return the most memory that this process has held."""
    kilobytes = _find("/proc/self/status", r"VmHWM:\s*(\d+)")
    return 1024 * int(kilobytes or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


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
        return f"{device} ({require('torch', 'baselines').cuda.get_device_name(device)})"
    return device


def require_device(device: str) -> None:
    """Raise an error if `device` is unknown, or a GPU that is not there."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise KldaError(f"device={device!r} is unknown: give 'auto', 'cpu' or 'cuda'.")
    if device.startswith("cuda") and resolve_device("auto") != "cuda":
        raise UnavailableError(
            f"device={device!r}: PyTorch sees no CUDA GPU here. Use device='cpu' or 'auto'."
        )
