"""How many rows, and how many classes, are worked on at once."""

from __future__ import annotations

from collections.abc import Iterator

from klda.backend import Backend

BLOCK_BYTES = {"cpu": 80 << 20, "gpu": 1 << 30}  # of features in flight at once
BLOCK_ROWS = {"cpu": 4096, "gpu": 1 << 16}  # summed one after another: more lose digits
TILE_BYTES = {"cpu": 32 << 20, "gpu": 1 << 30}  # of scores in flight at once
FEWEST_IN_TILE = 256  # classes


def row_blocks(n_samples: int, n_components: int, backend: Backend) -> Iterator[slice]:
    """Rows whose features are worked out at once."""
    kind = "cpu" if backend.device == "cpu" else "gpu"
    size = max(64, BLOCK_BYTES[kind] // (n_components * backend.dtype.itemsize))
    size = min(size, BLOCK_ROWS[kind])
    for start in range(0, n_samples, size):
        yield slice(start, min(start + size, n_samples))


def class_tiles(n_rows: int, n_classes: int, backend: Backend) -> list[slice]:
    """Classes whose scores are worked out at once."""
    budget = TILE_BYTES["cpu" if backend.device == "cpu" else "gpu"]
    size = max(FEWEST_IN_TILE, budget // (n_rows * backend.dtype.itemsize))
    return [slice(i, min(i + size, n_classes)) for i in range(0, n_classes, size)]
