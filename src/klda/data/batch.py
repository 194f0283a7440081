"""Batches of rows, and where each ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.labels import Label

Modality = Literal["text", "image", "features"]

# Rows that are read, encoded and learned at once.
BATCH_ROWS: dict[Modality, int] = {"text": 2048, "image": 256, "features": 8192}


class TableError(KldaError):
    """A file that can't be read as rows; the message names the file, the place and the fix."""


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

    def __len__(self) -> int:
        return len(self.inputs)

    def without_first(self, rows: int) -> Batch:
        """Return the batch without its first `rows` rows."""
        if not rows:
            return self
        labels, lines = self.labels and self.labels[rows:], self.lines and self.lines[rows:]
        return replace(self, inputs=self.inputs[rows:], labels=labels, lines=lines)
