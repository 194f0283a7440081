"""From the files on the command line to batches, with a progress bar on a terminal."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from klda import data
from klda.cli.answers import Record, shortened, shown_input, words, write_rows
from klda.cli.console import print_json, results, say, table
from klda.data import BadRow, Batch, Layout, Table, TableError
from klda.data.writing import write_csv
from klda.errors import KldaError
from klda.messages import counted
from klda.storage import folder

if TYPE_CHECKING:
    from klda.labels import Label
    from klda.learner import Learner

STANDARD_INPUT = Path("-")
SHORT = {"confidence": "prob.", "probability": "prob."}  # names of columns in a table


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
        for path in filter(folder.exists, paths):
            raise KldaError(f"{path} is a model, not data: name a file, or a folder of files.")
        return data.open_tables(paths, layout=layout, modality=modality, classes=classes)
    if len(paths) > 1 or modality not in (None, "text"):
        raise typer.BadParameter("Standard input (-) stands alone, and holds texts.")
    options: Any = {"layout": layout, "classes": classes, "suffix": ".txt" if lines else ""}
    return [data.open_bytes(sys.stdin.buffer, name="standard input", **options)]


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

    def __init__(
        self,
        batches: Iterator[Batch],
        report: Callable[..., None],
        nothing: TableError | None = None,
    ) -> None:
        self._batches, self._report = batches, report
        self._nothing = nothing  # the error if there is no row
        self.skipped = 0  # known at the end
        self._ends = [(0, 0.0)]  # of the batches read: the rows, and the fraction of all files
        self._done = 0

    def __iter__(self) -> Iterator[Batch]:
        for batch in self._batches:
            self._ends.append((self._ends[-1][0] + len(batch), batch.fraction))
            yield batch
        if len(self._ends) == 1 and self._nothing is not None:
            raise self._nothing

    def done(self, rows: int) -> None:
        """Show that so many rows are done."""
        self._done = max(self._done, rows)
        ends, fractions = zip(*self._ends, strict=True)
        self._report(float(np.interp(self._done, ends, fractions)), f"{self._done:,} rows")


@contextmanager
def progress_over(
    tables: Sequence[Table], doing: str, *, skip_bad: bool = False, **options: Any
) -> Iterator[ShownRows]:
    """Read tables in batches, a little ahead of the caller, who says how many rows are done."""
    from klda.progress import progress_bar

    resumed = options.get("start", data.START) != data.START
    skipped = SkippedRows(tables, resumed)
    bad = skipped.take if skip_bad else None
    # Of what is resumed, all rows may have been read before.
    nothing = None if resumed else TableError(f"{_names(tables)}: no row can be used.")
    try:
        with (
            progress_bar(doing, 1.0) as report,
            closing(data.read(tables, bad=bad, **options)) as batches,
        ):
            rows = ShownRows(batches, report, nothing)
            yield rows
        rows.skipped = skipped.reasons.total()
    finally:
        skipped.tell()


def _names(tables: Sequence[Table]) -> str:
    more = f" and {len(tables) - 1:,} more" if len(tables) > 1 else ""
    return f"{tables[0].path}{more}"


def batches(tables: Sequence[Table], doing: str, **options: Any) -> Iterator[Batch]:
    """Read tables in batches; the rows of one are done when the next is asked for."""
    with progress_over(tables, doing, **options) as rows:
        done = 0
        for batch in rows:
            yield batch
            done += len(batch)
            rows.done(done)


class EncodedRows:
    """All rows of some tables: encoded, with their labels, and as they are shown."""

    def __init__(
        self, learner: Learner, tables: Sequence[Table], doing: str, *, labels: bool, skip_bad: bool
    ) -> None:
        self.labels: list[Label] = []
        self.places: list[Record] = []  # their files, if several, and numbers
        self.inputs: list[str | int] = []
        self._rows: list[np.ndarray] = []
        self._cells: list[Record] = []
        for batch in batches(tables, doing, labels=labels, keep=None, skip_bad=skip_bad):
            self._rows.append(learner.encode(batch.inputs))
            self.labels += batch.labels or ()
            file = {"file": str(tables[batch.end.file].path)} if len(tables) > 1 else {}
            self.places += [file | {"row": number} for number in batch.numbers]
            self.inputs += map(shown_input, batch.inputs, batch.numbers)
            cells = batch.cells or {}
            self._cells += [
                {name: column[i] for name, column in cells.items()} for i in range(len(batch))
            ]

    def features(self) -> np.ndarray:
        """Return the rows of features."""
        return np.concatenate(self._rows)

    def write(
        self,
        facts: Mapping[int, Record],
        output: Path | None,
        as_json: str | None,
        most: int | None = None,
        more: Mapping[int, Record] | None = None,
    ) -> None:
        """Write rows with what is to be said of each: a table on a terminal, CSV elsewhere.

        With `as_json`, the name of a list, standard output gets JSON, which says `more` of them.
        """
        listed = {row: self.places[row] | self._cells[row] | said for row, said in facts.items()}
        if output is not None:
            write_rows(output, listed.values())
        if as_json:
            rows = [record | (more or {}).get(row, {}) for row, record in listed.items()]
            print_json({"rows": len(self.inputs), as_json: rows})
        elif output is None and sys.stdout.isatty():
            label = ("label",) if self.labels else ()
            heads = next(iter(facts.values()), {})
            lines = [
                (
                    self.places[row]["row"],
                    shortened(self.inputs[row]),
                    *(self.labels[row] for _ in label),
                    *map(words, said.values()),
                )
                for row, said in facts.items()
            ]
            columns = ("row", "input", *label, *(SHORT.get(name, name) for name in heads))
            results().print(table(*columns, rows=lines, most=most, all_by="--all"))
        elif output is None:
            write_csv(sys.stdout, listed.values())
