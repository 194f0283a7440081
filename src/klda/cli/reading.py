"""From the files on the command line to batches, with a progress bar on a terminal."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import typer

from klda import data
from klda.cli.console import counted, say
from klda.data import BadRow, Batch, Layout, Table

STANDARD_INPUT = Path("-")


def open_tables(
    paths: Sequence[Path],
    layout: Layout,
    modality: Any,
    classes: Collection[Any] = (),
    *,
    lines: bool = False,
) -> list[Table]:
    """Open the files of one command, as :func:`klda.data.open_tables` does, or standard input.

    The `lines` of standard input may be texts, unless they are a table.
    """
    if STANDARD_INPUT not in paths:
        return data.open_tables(paths, layout=layout, modality=modality, classes=classes)
    if len(paths) > 1 or modality not in (None, "text"):
        raise typer.BadParameter("Standard input (-) stands alone, and holds texts.")
    name = "standard input.txt" if lines else "standard input"
    return [data.open_bytes(sys.stdin.buffer, name=name, layout=layout, classes=classes)]


class SkippedRows:
    """Rows that can't be used, written to a file in the working directory as they come."""

    def __init__(self, tables: Sequence[Table], resumed: bool) -> None:
        self.path = Path(f"{tables[0].path.name.partition('.')[0]}.skipped.csv")
        self.reasons: Counter[str] = Counter()
        self._is_begun = resumed and self.path.exists()

    def take(self, row: BadRow) -> None:
        """Write a row."""
        with self.path.open("a" if self._is_begun else "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            if not self._is_begun:
                writer.writerow(["file", "place", "problem", *row.cells])
            writer.writerow([row.file, row.place, row.problem, *row.cells.values()])
        self._is_begun = True
        self.reasons[row.problem.partition(":")[0].rstrip(".")] += 1

    def tell(self) -> None:
        """Say how many rows were skipped, why, and where they are."""
        if self.reasons:
            several = len(self.reasons) > 1
            why = "; ".join(
                f"{count:,}: {said}" if several else said
                for said, count in self.reasons.most_common()
            )
            say(f"Skipped {counted(self.reasons.total(), 'row')} ({why}), listed in {self.path}.")


class ShownRows:
    """The batches of some tables, and a bar that shows how many of their rows are done."""

    def __init__(self, batches: Iterator[Batch], report: Callable[..., None]) -> None:
        self._batches, self._report = batches, report
        self.skipped = 0  # known at the end
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
    tables: Sequence[Table], doing: str, *, skip_bad: bool = False, **options: Any
) -> Iterator[ShownRows]:
    """Read tables in batches, a little ahead of the caller, who says how many rows are done."""
    from klda.progress import progress_bar

    skipped = SkippedRows(tables, options.get("start", data.START) != data.START)
    bad = skipped.take if skip_bad else None
    with (
        progress_bar(doing, 1.0) as report,
        closing(data.read(tables, bad=bad, **options)) as batches,
    ):
        rows = ShownRows(batches, report)
        yield rows
    rows.skipped = skipped.reasons.total()
    skipped.tell()


def batches(tables: Sequence[Table], doing: str, **options: Any) -> Iterator[Batch]:
    """Read tables in batches; the rows of one are done when the next is asked for."""
    with shown(tables, doing, **options) as rows:
        done = 0
        for batch in rows:
            yield batch
            done += len(batch)
            rows.done(done)
