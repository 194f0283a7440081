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
from rich.table import Table as RichTable

from klda.cli.console import say
from klda_bench.results import Row

_DIM = ("paper", "diff.")
_HIDDEN = ("what", "runs", "ok")


def text_of(value: Any, name: str = "") -> str:
    """Write one value; the name of its column may tell its unit."""
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "-"
    if isinstance(value, (bool, str)):
        return str(value)
    if name.endswith("bytes"):
        return f"{value / 1e9:.2f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"
    if name == "flops":
        return f"{value / 1e12:.3g} TFLOP/s"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


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
    sides = ["---" if _are_words(frame, i) or not i else "---:" for i in range(shown.shape[1])]
    return "\n".join([head, f"|{'|'.join(sides)}|", *lines])


def rich_table(frame: pd.DataFrame, title: str | None = None) -> RichTable:
    """Draw a frame, one line per row; words on the left, numbers on the right."""
    table = RichTable(title=title, title_justify="left")
    for i, name in enumerate(as_text(frame).columns):
        words = _are_words(frame, i)
        table.add_column(
            name,
            justify="left" if words else "right",
            style="dim" if name in _DIM else None,
            overflow="fold",
            no_wrap=not words,
        )
    for _, row in as_text(frame).iterrows():
        table.add_row(*row)
    return table


def _are_words(frame: pd.DataFrame, column: int) -> bool:
    """Whether most of a column are words, and not figures such as a mean and its spread."""
    values = frame.iloc[:, column].tolist()
    texts = [value for value in values if isinstance(value, str) and value not in ("-", "")]
    return 2 * sum(text.lstrip("+-")[:1].isdigit() for text in texts) < len(texts)


def show_rows(rows: Sequence[Row]) -> Iterator[Any]:
    """Yield what a console prints of rows: those of one kind (``what``) make one table.

    A single row is shown as one line per value.
    """
    for what, group in itertools.groupby(rows, key=lambda row: row["what"]):
        kept = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in group]
        if len(kept) == 1:
            grid = RichTable(show_header=False, title=what, title_justify="left")
            for name, value in kept[0].items():
                grid.add_row(name.replace("_", " "), text_of(value, name))
            yield grid
        else:
            yield rich_table(pd.DataFrame(kept, dtype=object), what)


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
