"""Several files, one after the other, from any place on."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from klda.data.chunk import Chunk, Modality
from klda.data.pipeline import ahead
from klda.data.table import Table
from klda.errors import KldaError

# Rows read, encoded and learned at once.
ROWS: dict[Modality, int] = {"text": 512, "image": 256, "features": 8192}


@dataclass(frozen=True)
class Place:
    """A place in a sequence of files: so many rows of one, and all of those before it."""

    file: int = 0
    rows: int = 0


@dataclass(frozen=True)
class Piece:
    """A chunk of rows, and the place that is reached when it is done."""

    chunk: Chunk
    place: Place


def read(
    tables: Sequence[Table], *, labels: bool, start: Place | None = None
) -> Generator[Piece, None, None]:
    """Read files one after the other, a few chunks ahead of the caller.

    Parameters
    ----------
    tables : sequence of Table
        The files.
    labels : bool
        Whether each row must have a label.
    start : Place, optional
        Where to begin; at the first row by default.

    Yields
    ------
    Piece
        Chunks in their order.
    """
    yield from ahead(_pieces(tables, labels, start or Place()))


def _pieces(tables: Sequence[Table], labels: bool, start: Place) -> Iterator[Piece]:
    for i in range(start.file, len(tables)):
        done = start.rows if i == start.file else 0
        rows = ROWS[tables[i].modality]
        for chunk in tables[i].chunks(labels=labels, rows=rows, skip=done):
            done += len(chunk)
            yield Piece(chunk, Place(i, done))


def as_label(text: str, integers: bool) -> str | int:
    """Turn a label as written in a file or on the command line into the model's kind.

    Parameters
    ----------
    text : str
        As written.
    integers : bool
        Whether the model's classes are integers.

    Returns
    -------
    str or int
        The label.
    """
    if not integers:
        return text
    try:
        return int(text)
    except ValueError as error:
        raise KldaError(
            f"The label {text!r} is not an integer, but this model's classes are integers."
        ) from error
