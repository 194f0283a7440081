"""From the files on the command line to batches, with a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import Any

import typer

from klda import data
from klda.cli.options import Columns
from klda.data import Batch, Position, Table


def open_tables(
    paths: Sequence[Path], modality: Any, columns: Columns, classes: Collection[Any] = ()
) -> list[Table]:
    """Open the files of one command, as :func:`klda.data.open_tables` does."""
    names = columns.input_column, columns.label_column
    if names[1] is not None and names[0] == names[1]:
        raise typer.BadParameter(
            f"--input-column and --label-column both name {names[1]!r}: name two columns."
        )
    return data.open_tables(paths, modality=modality, columns=data.Columns(*names), classes=classes)


def batches(
    tables: Sequence[Table], doing: str, *, labels: bool, start: Position = data.START
) -> Generator[Batch, None, None]:
    """Read tables in batches, a little ahead of the caller, and show the progress.

    The bar advances when the next batch is asked for, that is, when this one has been used.
    """
    from klda.encoders.progress import progress_bar

    with progress_bar(doing, 1.0) as report:
        rows = 0
        for batch in data.read(tables, labels=labels, start=start):
            yield batch
            rows += len(batch)
            report(batch.fraction, f"{rows:,} rows")
