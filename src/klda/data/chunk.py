"""Some rows of a file, and what is said of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from klda.errors import KldaError

Modality = Literal["text", "image", "features"]

CHUNK_ROWS = 4096


class TableError(KldaError):
    """A file that can't be read as rows; the message names the file, the place and the fix."""


@dataclass(frozen=True)
class Columns:
    """Which columns hold the input and the label; None means: guess from the names."""

    input: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class Chunk:
    """Some consecutive rows of a file.

    Attributes
    ----------
    inputs : list or ndarray
        Texts, image paths, or an array with one row a sample.
    labels : list of str or None
        One label a row; None when the file has none.
    fraction : float
        How much of the file has been read after this chunk, between 0 and 1.
    """

    inputs: Any
    labels: list[str] | None
    fraction: float = 1.0

    def __len__(self) -> int:
        return len(self.inputs)
