"""Rows on their way from a file to the model: as they are found, and as they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
# What columns and headers are guessed from: so many rows, or characters.
HEAD_ROWS = 200
HEAD_SIZE = 1 << 20


class TableError(KldaError):
    """A file that can't be read as rows; the message names the file, the place and the fix."""


class BadRowError(TableError):
    """A row that can't be used; those around it can."""


class Layout(NamedTuple):
    """What a user says of a file; what is None, klda finds out."""

    input: str | Sequence[str] | None = None  # the column of inputs, or columns to be joined
    label: str | None = None  # the column of labels
    header: bool | None = None  # whether the first row names the columns
    encoding: str | None = None
    ignore_case: bool = False  # whether labels that differ in case are one

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the columns of inputs."""
        if self.input is None:
            return ()
        return (self.input,) if isinstance(self.input, str) else tuple(self.input)


GUESSED = Layout()


@dataclass(frozen=True)
class Block:
    """Consecutive rows as they are in a file."""

    columns: Mapping[str, Any]  # the cells of each: a list, or an array with one row per sample
    fraction: float = 1.0  # of the file that has been read
    lines: Sequence[int] | None = None  # that the rows begin on, in a text file
    broken: Mapping[int, str] | None = None  # what is wrong with rows that can't be read

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.lines is None else len(self.lines)

    def row(self, i: int) -> dict[str, Any]:
        """Return the cells of a row."""
        return {name: column[i] for name, column in self.columns.items()}

    def rest(self, rows: int) -> Block:
        """Return the block without its first rows."""
        if not rows:
            return self
        columns = {name: column[rows:] for name, column in self.columns.items()}
        broken = {i - rows: said for i, said in (self.broken or {}).items() if i >= rows}
        return replace(self, columns=columns, lines=self.lines and self.lines[rows:], broken=broken)


@dataclass(frozen=True)
class Contents:
    """What a reader finds in a file."""

    names: Sequence[str]  # of all columns
    # Reads some columns, or all that there are, in blocks of so many rows.
    blocks: Callable[[Sequence[str] | None, int], Iterator[Block]]
    # The first cells of some columns, but for those that can hold neither texts nor labels.
    head: Callable[[Sequence[str]], Mapping[str, Sequence[Any]]] = lambda names: {}
    features: Sequence[str] = ()  # the columns that look like features
    header: bool | None = None  # whether the first row names the columns; None where others do
    labels_hint: str = "Give a file with a column of labels beside it."  # where there are none


class Position(NamedTuple):
    """A position in a sequence of files: `rows` rows of one file, and all files before it."""

    file: int = 0
    rows: int = 0


START = Position()


@dataclass(frozen=True)
class Batch:
    """Some rows of a table, checked."""

    inputs: Any  # a list of texts or image paths, or an array with one row per sample
    labels: list[Label] | None  # one per row; None if there are none or they are not needed
    fraction: float = 1.0  # of the file, or of all files, that has been read after this batch
    end: Position = START  # where the next batch begins: reading can be resumed there
    cells: Mapping[str, Sequence[Any]] | None = None  # all columns of the rows, if they are kept
    layout: Layout = GUESSED  # where the inputs and labels were found
    numbers: Sequence[int] = ()  # of the rows in their file, from 1 on

    def __len__(self) -> int:
        return len(self.inputs)


class BadRow(NamedTuple):
    """A row that can't be used."""

    file: str
    place: str  # as "line 7"
    problem: str
    cells: Mapping[str, Any]


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


def first_of(items: Iterator[T], size: Callable[[T], int]) -> list[T]:
    """Take the first of some items: enough to guess from."""
    return next(gathered(((item, size(item)) for item in items), HEAD_ROWS, HEAD_SIZE), [])


def rows_at_once(rows: int, row_bytes: int) -> int:
    """Return how many rows, of so many bytes each, one batch takes; a row must fit in it."""
    if row_bytes > BATCH_BYTES:
        raise ValueError(f"a row of {row_bytes:,} bytes, more than {BATCH_BYTES:,}")
    return min(rows, BATCH_BYTES // max(1, row_bytes))
