"""A progress bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from klda.cluster.pool import Status

Report = Callable[[Status], None]


@contextlib.contextmanager
def shown(progress: bool | Report, doing: str) -> Iterator[Report]:
    """Make what is told how far the work is.

    Parameters
    ----------
    progress : bool or callable
        True for a bar if standard error is a terminal; or what is to be told.
    doing : str
        What is being done, as ``"Learning"``.

    Yields
    ------
    callable
        To be called with a `Status`.
    """
    if callable(progress):
        yield progress
        return
    console = Console(stderr=True, highlight=False)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rows]:,} rows, {task.fields[workers]} workers"),
        TimeRemainingColumn(),
    )
    quiet = not progress or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=quiet) as bar:
        task = bar.add_task(doing, total=None, rows=0, workers=0)

        def report(status: Status) -> None:
            known = not math.isnan(status.fraction)
            bar.update(
                task,
                total=1.0 if known else None,
                completed=status.fraction if known else 0,
                rows=status.rows,
                workers=len(status.workers),
            )

        yield report
