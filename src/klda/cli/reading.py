"""From the files on the command line to batches, with a progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer

from klda import data
from klda.data import Batch, Position, Table


def open_tables(
    paths: Sequence[Path],
    modality: Any,
    input_column: str | None = None,
    label_column: str | None = None,
    classes: Collection[Any] = (),
) -> list[Table]:
    """Open the files of one command, as :func:`klda.data.open_tables` does."""
    if label_column is not None and input_column == label_column:
        raise typer.BadParameter(
            f"--input-column and --label-column both name {label_column!r}: name two columns."
        )
    columns = data.Columns(input_column, label_column)
    return data.open_tables(paths, modality=modality, columns=columns, classes=classes)


class ShownRows:
    """The batches of some tables, and a bar that shows how many of their rows are done."""

    def __init__(self, batches: Iterator[Batch], report: Callable[..., None]) -> None:
        self._batches, self._report = batches, report
        self._ends = [(0, 0.0)]  # of the batches read: the rows, and the fraction of all files
        self._done = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._ends.append((self._ends[-1][0] + len(batch), batch.fraction))
            yield batch

    def done(self, rows: int) -> None:
        """Show that so many rows are done."""
        self._done = max(self._done, rows)
        ends, fractions = zip(*self._ends, strict=True)
        self._report(float(np.interp(self._done, ends, fractions)), f"{self._done:,} rows")


@contextmanager
def shown(
    tables: Sequence[Table], doing: str, *, labels: bool, start: Position = data.START
) -> Iterator[ShownRows]:
    """Read tables in batches, a little ahead of the caller, who says how many rows are done."""
    from klda.encoders.progress import progress_bar

    with (
        progress_bar(doing, 1.0) as report,
        closing(data.read(tables, labels=labels, start=start)) as batches,
    ):
        yield ShownRows(batches, report)


def batches(tables: Sequence[Table], doing: str, *, labels: bool) -> Iterator[Batch]:
    """Read tables in batches; the rows of one are done when the next is asked for."""
    with shown(tables, doing, labels=labels) as rows:
        done = 0
        for batch in rows:
            yield batch
            done += len(batch)
            rows.done(done)
