"""From the files on the command line to batches, with a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from klda import data
from klda.cli.console import messages, printable
from klda.data import Batch, Columns, Position, Table


def open_tables(
    paths: Sequence[Path],
    modality: Any,
    input_column: str | None,
    label_column: str | None,
    classes: Collection[Any] = (),
) -> list[Table]:
    """Open the files of one command, as :func:`klda.data.open_tables` does.

    Parameters
    ----------
    paths : sequence of Path
        Files, folders of images or of data files, and patterns such as ``shards/*.parquet``.
    modality : str or None
        What the model takes; None takes what the first file holds.
    input_column, label_column : str or None
        Names of columns.
    classes : collection of label
        The classes of the model.

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
    return data.open_tables(paths, modality=modality, columns=columns, classes=classes)


def batches(
    tables: Sequence[Table], doing: str, *, labels: bool, start: Position = data.START
) -> Generator[Batch, None, None]:
    """Read tables in batches and show the progress.

    Parameters
    ----------
    tables : sequence of Table
        Read one after the other, a little ahead of what is done with the rows.
    doing : str
        What is done with the rows, such as ``"Learning"``.
    labels : bool
        Whether each row must have a label.
    start : Position
        Where to begin.

    Yields
    ------
    Batch
        The bar advances when the next one is asked for, that is, when this one has been used.
    """
    weights = [_size(table.path) for table in tables]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows"),
        TimeRemainingColumn(),
    )
    quiet = not messages.is_terminal
    with Progress(*columns, console=messages, transient=True, disable=quiet) as progress:
        task = progress.add_task(doing, total=sum(weights), rows=0)
        rows = 0
        for batch in data.read(tables, labels=labels, start=start):
            yield batch
            rows += len(batch)
            file = batch.end.file
            done = sum(weights[:file]) + weights[file] * batch.fraction
            progress.update(task, completed=done, rows=rows)


def answered(
    batches: Iterator[Batch], ask: Callable[[Any], Iterable[Any]]
) -> Iterator[tuple[Any, Any]]:
    """Yield each input, as it is shown, with its answer.

    Parameters
    ----------
    batches : iterator of Batch
        Inputs.
    ask : callable
        Answers the inputs of a batch, one after the other.

    Yields
    ------
    tuple
        The text or path, or for features the number of the row, from 1; and the answer.
    """
    row = 0
    for batch in batches:
        for value, answer in zip(batch.inputs, ask(batch.inputs), strict=True):
            row += 1
            yield printable(str(value)) if isinstance(value, str | Path) else row, answer


def _size(path: Path) -> int:
    return max(1, path.stat().st_size) if path.is_file() else 1
