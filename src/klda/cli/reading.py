"""From the files on the command line to batches, with a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from klda.cli.console import messages, printable
from klda.data import (
    Chunk,
    Columns,
    Piece,
    Place,
    Table,
    as_label,
    find_files,
    open_table,
    read,
)


def open_tables(
    paths: Sequence[Path], modality: str | None, input_column: str | None, label_column: str | None
) -> list[Table]:
    """Open the files of one command; all must hold the same kind of rows.

    Parameters
    ----------
    paths : sequence of Path
        Files, folders of images or of data files, and patterns such as ``shards/*.parquet``.
    modality : str or None
        What the model takes; None takes what the first file holds.
    input_column, label_column : str or None
        Names of columns.

    Returns
    -------
    list of Table
        In the order given; those of a folder or a pattern sorted.
    """
    if label_column is not None and label_column == input_column:
        raise typer.BadParameter(
            f"--input-column and --label-column both name {label_column!r}: name two columns."
        )
    columns = Columns(input_column, label_column)
    tables: list[Table] = []
    for path in find_files(paths):
        expected: Any = modality or (tables[0].modality if tables else None)
        tables.append(open_table(path, modality=expected, columns=columns))
    return tables


def batches(tables: Sequence[Table], doing: str, *, labels: bool) -> Iterator[Chunk]:
    """Read tables chunk by chunk, and show how far it is.

    Parameters
    ----------
    tables : sequence of Table
        Read one after the other, a little ahead of what is done with the rows.
    doing : str
        What is done with the rows, as ``"Learning"``.
    labels : bool
        Whether each row must have a label.

    Yields
    ------
    Chunk
        The bar moves on when the next one is asked for, that is, when this one has been used.
    """
    for piece in pieces(tables, doing, labels=labels):
        yield piece.chunk


def pieces(
    tables: Sequence[Table], doing: str, *, labels: bool, start: Place | None = None
) -> Generator[Piece, None, None]:
    """Read tables as `batches` does, from a place on, and say which place each chunk leads to.

    Parameters
    ----------
    tables, doing, labels
        As for `batches`.
    start : Place, optional
        Where to begin.

    Yields
    ------
    Piece
        A chunk and the place after it.
    """
    weights = [_size(table.path) for table in tables]
    total = sum(weights)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeRemainingColumn(),
    )
    quiet = not messages.is_terminal
    with Progress(*columns, console=messages, transient=True, disable=quiet) as progress:
        task = progress.add_task(doing, total=total, rows=0)
        rows = 0
        for piece in read(tables, labels=labels, start=start):
            yield piece
            rows += len(piece.chunk)
            at = piece.place.file
            done = sum(weights[:at]) + weights[at] * piece.chunk.fraction
            progress.update(task, completed=done, rows=rows)


def labelled(chunks: Iterator[Chunk], integers: bool) -> Iterator[tuple[Any, list[Any]]]:
    """Pairs of inputs and labels, as :class:`klda.learner.Learner` takes them.

    Parameters
    ----------
    chunks : iterator of Chunk
        With labels.
    integers : bool
        Whether the model's classes are integers, so that the labels of a file have to be, too.

    Yields
    ------
    tuple
        Inputs and labels.
    """
    for chunk in chunks:
        labels: list[Any] = chunk.labels or []
        yield chunk.inputs, [as_label(label, integers) for label in labels] if integers else labels


def answered(
    chunks: Iterator[Chunk], ask: Callable[[Any], Iterable[Any]]
) -> Iterator[tuple[Any, Any]]:
    """Pairs of each input, as it is shown, and what was answered.

    Parameters
    ----------
    chunks : iterator of Chunk
        Inputs.
    ask : callable
        Answers the inputs of a chunk, one after the other.

    Yields
    ------
    tuple
        The text or path, or for features the number of the row, from 1; and the answer.
    """
    row = 0
    for chunk in chunks:
        for value, answer in zip(chunk.inputs, ask(chunk.inputs), strict=True):
            row += 1
            yield printable(str(value)) if isinstance(value, str | Path) else row, answer


def has_integer_classes(classes: dict[Any, int]) -> bool:
    """Whether a model's classes are integers (it was taught so through the Python interface)."""
    return any(isinstance(label, int) for label in classes)


def _size(path: Path) -> int:
    return max(1, path.stat().st_size) if path.is_file() else 1
