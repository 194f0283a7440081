"""From the files on the command line to batches, with a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from klda.cli.console import messages
from klda.errors import KldaError
from klda.tables import Chunk, Columns, Modality, Table, open_table

# Rows between two steps of the progress bar, which are also the rows learned at once.
ROWS: dict[Modality, int] = {"text": 512, "image": 256, "features": 8192}


def open_tables(
    paths: Sequence[Path], modality: str | None, input_column: str | None, label_column: str | None
) -> list[Table]:
    """Open the files of one command; all must hold the same kind of rows.

    Parameters
    ----------
    paths : sequence of Path
        Files or folders of images.
    modality : str or None
        What the model takes; None takes what the first file holds.
    input_column, label_column : str or None
        Names of columns.

    Returns
    -------
    list of Table
        In the order given.
    """
    columns = Columns(input_column, label_column)
    tables: list[Table] = []
    for path in paths:
        expected: Any = modality or (tables[0].modality if tables else None)
        tables.append(open_table(path, modality=expected, columns=columns))
    return tables


def batches(tables: Sequence[Table], doing: str, *, labels: bool) -> Iterator[Chunk]:
    """Read tables chunk by chunk, and show how far it is.

    Parameters
    ----------
    tables : sequence of Table
        Read one after the other.
    doing : str
        What is done with the rows, as ``"Learning"``.
    labels : bool
        Whether each row must have a label.

    Yields
    ------
    Chunk
        The bar moves on when the next one is asked for, that is, when this one has been used.
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
        for i, table in enumerate(tables):
            before = sum(weights[:i])
            for chunk in table.chunks(labels=labels, rows=ROWS[table.modality]):
                yield chunk
                rows += len(chunk)
                done = before + weights[i] * chunk.fraction
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
            yield str(value) if isinstance(value, str | Path) else row, answer


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


def has_integer_classes(classes: dict[Any, int]) -> bool:
    """Whether a model's classes are integers (it was taught so through the Python interface)."""
    return any(isinstance(label, int) for label in classes)


def _size(path: Path) -> int:
    return max(1, path.stat().st_size) if path.is_file() else 1
