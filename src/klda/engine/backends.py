"""Which arrays the engine computes with: NumPy on the CPU, torch on any other device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from klda.engine.arrays import Array, NumpyBackend, is_torch
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.engine.arrays_torch import TorchBackend

__all__ = ["Array", "Backend", "choose_backend", "row_blocks"]

Backend: TypeAlias = "NumpyBackend | TorchBackend"  # of one device and one floating-point type

BLOCK_BYTES = {"cpu": 80 << 20, "gpu": 1 << 30}  # of features, or of scores, computed at once
BLOCK_ROWS = {"cpu": 4096, "gpu": 1 << 16}  # summed one after another: more lose digits
FEWEST_ROWS = 64  # in a block: all weights are read once per block


def choose_backend(device: str, dtype: str, values: Any = None) -> Backend:
    """Return the backend for a device: ``"cpu"``, a torch device such as ``"cuda:1"``, or "auto".

    ``"auto"`` is the device of ``values``, the first input, if they are a tensor; otherwise the GPU
    if torch is already imported and sees one, else the CPU.
    """
    if dtype not in ("float32", "float64"):
        raise KldaError(f"dtype={dtype!r} is not known; use 'float32' or 'float64'.")
    if device == "auto":
        torch = sys.modules.get("torch")
        if is_torch(values):
            device = "cpu" if values.device.type == "cpu" else str(values.device)
        else:
            device = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return NumpyBackend(dtype)
    from klda.engine.arrays_torch import TorchBackend

    return TorchBackend(device, dtype)


def row_blocks(n_rows: int, width: int, backend: Backend) -> list[slice]:
    """Split rows into blocks, for each of which an array of this width is computed at once."""
    kind = "cpu" if backend.device == "cpu" else "gpu"
    size = max(FEWEST_ROWS, BLOCK_BYTES[kind] // (width * backend.dtype.itemsize))
    size = min(size, BLOCK_ROWS[kind])
    return [slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size)]
