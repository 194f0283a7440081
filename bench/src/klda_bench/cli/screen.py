"""What the commands show: tables on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from rich.console import Console

from klda.cli.console import say
from klda_bench.display.show import rich_table


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; the block tells it."""
    with Console(stderr=True, highlight=False).status("starting") as status:
        yield status.update


def results() -> Console:
    """Return a console for results, as wide as they are where standard output is a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=200, highlight=False)


def show(frame: pd.DataFrame, title: str | None = None) -> None:
    """Print a frame."""
    results().print(rich_table(frame, title))


def wrote(files: Iterable[Path]) -> None:
    """Tell which files were written."""
    for file in files:
        say(f"wrote {file}")
