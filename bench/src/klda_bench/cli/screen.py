"""What the commands show: tables on standard output, everything else on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import typer
from rich.console import Console
from rich.text import Text

from klda.errors import KldaError
from klda_bench.report.show import rich_table

messages = Console(stderr=True, highlight=False)


@contextmanager
def errors() -> Iterator[None]:
    """Show an error of ours as one line, and leave with status 1."""
    try:
        yield
    except KldaError as error:
        line = Text.assemble(("Error:", "bold red"), " ", str(error))
        messages.print(line, soft_wrap=True)
        raise typer.Exit(1) from error


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; the block tells it."""
    with messages.status("starting") as status:
        yield status.update


def results() -> Console:
    """Return a console for results, as wide as they are where standard output is a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=200, highlight=False)


def show(frame: pd.DataFrame, title: str | None = None) -> None:
    """Print a frame."""
    results().print(rich_table(frame, title))


def say(text: Any) -> None:
    """Tell the user something, on standard error."""
    messages.print(text, markup=False, soft_wrap=True)


def wrote(files: Iterable[Path]) -> None:
    """Tell which files were written."""
    for file in files:
        say(f"wrote {file}")
