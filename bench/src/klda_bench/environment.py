"""The machine: its devices, memory and versions, what is missing on it, and optional packages."""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.metadata
import multiprocessing
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from klda.errors import KldaError, MissingDependencyError

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")
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


@contextlib.contextmanager
def peak_memory() -> Iterator[SimpleNamespace]:
    """Measure the largest resident memory of this process inside the block: ``peak_bytes``.

    On Linux the kernel's high-water mark is reset on entry, so that a run is not charged with
    what ran before it; elsewhere the mark of the whole process is the best there is.
    """
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")
    found = SimpleNamespace(peak_bytes=0)
    yield found
    found.peak_bytes = _high_water_mark()


def resident_bytes() -> int:
    """Memory that this process holds now."""
    with peak_memory() as memory:
        pass
    return int(memory.peak_bytes)


def _high_water_mark() -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    scale = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * scale


def held_bytes(thing: Any) -> int:
    """Bytes of all distinct arrays and tensors reachable from a fitted method.

    An array seen twice, or a view of one already counted, counts once.
    """
    buffers: dict[int, int] = {}
    visited: set[int] = set()
    stack = [thing]
    while stack:
        item = stack.pop()
        if id(item) in visited or isinstance(item, (type, ModuleType, FunctionType)):
            continue
        visited.add(id(item))
        if isinstance(item, np.ndarray):
            owner = item
            while isinstance(owner.base, np.ndarray):
                owner = owner.base
            buffers[owner.__array_interface__["data"][0]] = owner.nbytes
        elif hasattr(item, "untyped_storage"):
            storage = item.untyped_storage()
            buffers[storage.data_ptr()] = storage.nbytes()
        else:
            stack.extend(gc.get_referents(item))
    return sum(buffers.values())


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


def describe_machine(found: dict[str, Any]) -> str:
    """Say in a few words where a run was made, from the ``machine`` of its row."""
    cores = found.get("cores")
    parts = [str(found.get("device", "unknown device"))]
    if cores is not None:
        parts.append(f"{cores} core{'' if cores == 1 else 's'}")
    threads = found.get("threads")
    if threads is not None and str(threads) != str(cores):
        parts.append(f"OMP_NUM_THREADS={threads}")
    return ", ".join(parts)


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


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a fresh process, so that its peak of memory is its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise KldaError(
                "The process that measures ended without a result: there may be too little memory."
            ) from error
