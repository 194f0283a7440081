"""How many rows are taken at once, so that no file is in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from klda.checks import Modality

T = TypeVar("T")

# Rows that are read, encoded and learned at once.
BATCH_ROWS: dict[Modality, int] = {"text": 2048, "image": 256, "features": 8192}
# A batch of long rows has fewer of them: 8,192 rows of 2,048 numbers fill it.
BATCH_BYTES = 1 << 26
# What columns and headers are guessed from: so many rows, or characters.
HEAD_ROWS = 200
HEAD_SIZE = 1 << 20


def gathered(items: Iterable[tuple[T, int]], rows: int, most: int) -> Iterator[list[T]]:
    """Gather items, given with their sizes, into lists of so many; large ones into shorter lists.

    A list ends with the item that takes it to the size `most`.
    """
    part: list[T] = []
    total = 0
    for item, size in items:
        part.append(item)
        total += size
        if len(part) == rows or total >= most:
            yield part
            part, total = [], 0
    if part:
        yield part


def first_of(items: Iterator[T], size: Callable[[T], int]) -> list[T]:
    """Take the first of some items: enough to guess from."""
    return next(gathered(((item, size(item)) for item in items), HEAD_ROWS, HEAD_SIZE), [])


def rows_at_once(rows: int, row_bytes: int) -> int:
    """Return how many rows, of so many bytes each, one batch takes; a row must fit in it."""
    if row_bytes > BATCH_BYTES:
        raise ValueError(f"a row of {row_bytes:,} bytes, more than {BATCH_BYTES:,}")
    return min(rows, BATCH_BYTES // max(1, row_bytes))
