"""What is shown: frames and rows as tables, on a terminal and in Markdown, and progress.

Tables go to standard output, everything else to standard error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from klda.cli.console import are_figures, say, table
from klda_bench.results import Row

_HIDDEN = ["what", "runs", "ok"]


def text_of(value: Any, name: str = "") -> str:
    """Write one value; the name of its column may tell its unit."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "-"
    if name.endswith("bytes"):
        return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"
    if isinstance(value, float):
        return f"{value:.4g}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)


def as_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame of what is shown, values as text and names without underscores."""
    columns = [
        [text_of(value, str(name)) for value in frame.iloc[:, i].tolist()]
        for i, name in enumerate(frame.columns)
    ]
    names = [str(name).replace("_", " ") for name in frame.columns]
    return pd.DataFrame(dict(enumerate(columns))).set_axis(names, axis="columns")


def markdown(frame: pd.DataFrame) -> str:
    """Write a frame as a Markdown table; words on the left, numbers on the right."""
    shown = as_text(frame)
    rows = [[text.replace("|", r"\|") for text in row] for row in (shown, *shown.to_numpy())]
    head, *lines = [f"| {' | '.join(row)} |" for row in rows]
    sides = [
        "---:" if i and are_figures(shown.iloc[:, i]) else "---" for i in range(shown.shape[1])
    ]
    return "\n".join([head, f"|{'|'.join(sides)}|", *lines])


def write_page(file: Path, title: str, parts: Iterable[tuple[str, pd.DataFrame]]) -> None:
    """Write tables with their titles as a Markdown page."""
    lines = [f"## {heading}\n\n{markdown(frame)}\n" for heading, frame in parts]
    file.write_text("\n".join([f"# {title}\n", *lines]), encoding="utf-8")
    wrote([file])


def show_rows(rows: Sequence[Row]) -> None:
    """Print rows: those of one kind (``what``) make one table."""
    for what, group in itertools.groupby(rows, key=lambda row: row["what"]):
        show(pd.DataFrame(group, dtype=object).drop(columns=_HIDDEN, errors="ignore"), what)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done; the block tells it."""
    with Console(stderr=True, highlight=False).status("starting") as status:
        yield status.update


def results() -> Console:
    """Return a console for results, as wide as they are where standard output is a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(width=200, highlight=False)


def show(frame: pd.DataFrame, title: str | None = None, console: Console | None = None) -> None:
    """Print a frame, one line per row; words on the left, numbers on the right."""
    shown, console = as_text(frame), console or results()
    if title:
        console.print(title, style="italic", markup=False)
    console.print(table(*shown, rows=shown.to_numpy().tolist()), "")


def wrote(files: Iterable[Path]) -> None:
    """Tell which files were written."""
    for file in files:
        say(f"wrote {file}")
