"""The few array operations that the engine needs, on the CPU (BLAS) and on a GPU (torch).

Vectors are rows everywhere: samples ``(n, D)``, means ``(M, D)``, weights ``(M, D)``.

A *square* is one ``(D, D)`` array that holds two things at once. Its lower triangle with the
diagonal is the scatter matrix S. Its strict upper triangle is the unit-triangular factor of the
last factorisation, ``S + rho I = U^T diag(pivots) U`` with ``U`` unit upper triangular, whose
diagonal of ones needs no room. So a model at rest holds one square and nothing else of that size.
"""

from __future__ import annotations

import sys
from typing import Any

from klda.backend.cpu import NumpyBackend
from klda.backend.gpu import TorchBackend
from klda.backend.interface import Array, Backend, Grouping, Steps, is_torch
from klda.errors import KldaError

__all__ = [
    "Array",
    "Backend",
    "Grouping",
    "NumpyBackend",
    "Steps",
    "TorchBackend",
    "choose_backend",
    "is_torch",
]


def choose_backend(device: str, dtype: str, values: Any = None) -> Backend:
    """Return the backend for a device.

    Parameters
    ----------
    device : str
        ``"cpu"``, a torch device such as ``"cuda"`` or ``"cuda:1"``, or ``"auto"``: the device of
        ``values`` if they are a tensor on a GPU, else the GPU if torch is already imported and
        sees one, else the CPU.
    dtype : str
        ``"float32"`` or ``"float64"``.
    values : array-like, optional
        The first input, whose device ``"auto"`` follows.
    """
    if dtype not in ("float32", "float64"):
        raise KldaError(f"dtype={dtype!r} is not known; use 'float32' or 'float64'.")
    if device == "auto":
        device = _automatic_device(values)
    if device == "cpu":
        return NumpyBackend(dtype)
    return TorchBackend(_checked_device(device), dtype)


def _automatic_device(values: Any) -> str:
    if is_torch(values):
        return "cpu" if values.device.type == "cpu" else str(values.device)
    torch = sys.modules.get("torch")
    return "cuda" if torch is not None and torch.cuda.is_available() else "cpu"


def _checked_device(device: str) -> str:
    from klda.errors import require

    torch = require("torch", "text")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise KldaError(
            f"device={device!r} can't be used ({str(error).splitlines()[0]}); "
            "use 'cpu', 'auto', or a device that torch sees."
        ) from error
    return device
