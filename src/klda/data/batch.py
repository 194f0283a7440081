"""Rows on their way from a file to the model: as they are found, and as they are used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from klda.labels import Label


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


def nested(cells: Mapping[str, Any], name: str) -> Any:
    """Return the cell of a name; ``ticket.subject`` may be one of an object in another cell."""
    if name in cells:
        return cells[name]
    for dot in re.finditer(r"\.", name):
        if isinstance(found := cells.get(name[: dot.start()]), dict):
            return nested(found, name[dot.end() :])
    return None


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

    def column(self, name: str) -> Any:
        """Return the cells of a column; ``ticket.subject`` may be in the objects of another."""
        if name in self.columns:
            return self.columns[name]
        return [nested(self.row(i), name) for i in range(len(self))]

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
    labels_hint: str = "Add a column of labels."  # where there are none


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
