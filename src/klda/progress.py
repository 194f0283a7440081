"""A progress bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Iterator

# Whether to show a bar; or a function that is called with how much is done, and shows it itself.
Show = bool | Callable[..., None]


def _is_piped() -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:  # there is no standard output
        return False


@contextlib.contextmanager
def progress_bar(
    doing: str, total: float | None = None, *, show: Show = True
) -> Iterator[Callable[..., None]]:
    """Show a progress bar on standard error if it is a terminal and `show` is true.

    Not while results go through a pipe: the next program may write to the same terminal.

    `doing` names the work, as ``"Learning"``; `total` is the amount of it, None if unknown. Yields
    ``report(done, note="")``, which sets how much is done and a note such as ``"1,200 rows"``; if
    `show` is a function, that one.
    """
    if callable(show):
        yield show
        return
    if not (show and sys.stderr.isatty()) or _is_piped():
        yield lambda done, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    note_column = TextColumn("{task.fields[note]}")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), note_column)
    console = Console(stderr=True, highlight=False)
    with Progress(*columns, Remaining(), console=console, transient=True) as bar:
        task = bar.add_task(doing, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
