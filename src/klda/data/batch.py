"""Batches of rows, and where each ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from klda.checks import Modality
from klda.errors import KldaError
from klda.labels import Label

T = TypeVar("T")

# Rows that are read, encoded and learned at once.
BATCH_ROWS: dict[Modality, int] = {"text": 2048, "image": 256, "features": 8192}
# A batch of long rows has fewer of them: 8,192 rows of 2,048 numbers fill it.
BATCH_BYTES = 1 << 26


class TableError(KldaError):
    """A file that can't be read as rows; the message names the file, the place and the fix."""


@contextmanager
def damage_named(where: Callable[[], object]) -> Iterator[None]:
    """Turn what a damaged file raises while it is read into an error that says where.

    Our own errors say it already, and a lack of memory is not the file's fault.
    """
    try:
        yield
    except (KldaError, MemoryError):
        raise
    except Exception as error:  # libraries raise almost anything
        if isinstance(error, OSError) and error.errno is not None:
            raise TableError(f"{where()}: {error.strerror}") from error
        reason = f"{type(error).__name__}: {error}".rstrip(": .")
        raise TableError(
            f"{where()}: the file is damaged, cut short, or not what its name says ({reason})."
        ) from error


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


def rows_at_once(rows: int, row_bytes: int) -> int:
    """Return how many rows, of so many bytes each, one batch takes; a row must fit in it."""
    if row_bytes > BATCH_BYTES:
        raise ValueError(f"a row of {row_bytes:,} bytes, more than {BATCH_BYTES:,}")
    return min(rows, BATCH_BYTES // max(1, row_bytes))


class Position(NamedTuple):
    """A position in a sequence of files: `rows` rows of one file, and all files before it."""

    file: int = 0
    rows: int = 0


START = Position()


@dataclass(frozen=True)
class Batch:
    """Some consecutive rows of a table."""

    inputs: Any  # a list of texts or image paths, or an array with one row per sample
    labels: list[Label] | None  # one per row; None if there are none or they are not needed
    fraction: float = 1.0  # of the file, or of all files, that has been read after this batch
    end: Position = START  # where the next batch begins: reading can be resumed there
    lines: Sequence[int] | None = None  # the line that each row begins on, in a text file
    extra: Any = None  # other columns of the same rows, as an Arrow table

    def __len__(self) -> int:
        return len(self.inputs)

    def without_first(self, rows: int) -> Batch:
        """Return the batch without its first `rows` rows."""
        if not rows:
            return self
        labels, lines = self.labels and self.labels[rows:], self.lines and self.lines[rows:]
        extra = None if self.extra is None else self.extra.slice(rows)
        return replace(self, inputs=self.inputs[rows:], labels=labels, lines=lines, extra=extra)
