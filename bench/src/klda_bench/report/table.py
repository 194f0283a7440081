"""Tables: figures measured here beside the paper's, one row of data per cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from klda.errors import KldaError
from klda_bench import published
from klda_bench.results import Row
from klda_bench.runs.grid import Cell, unpack_bits
from klda_bench.runs.metrics import FINAL, METRICS, Spread, paired_difference


@dataclass
class Table:
    """A table of accuracies.

    `cells` holds one row per cell: where it stands (``row``, ``column`` and their titles), what was
    measured here (``mean``, ``std``, ``n`` of so many ``seeds``), the ``paper``'s figure, their
    ``difference``, why there is no figure (``gap``), a ``note`` such as the part of the data that
    was used, and all other metrics.
    """

    name: str
    title: str
    cells: list[Row]
    notes: list[str] = field(default_factory=list)
    command: str = ""
    metric: str = FINAL

    def cell(self, row: str, column: str) -> Row:
        """Return one cell."""
        return next(c for c in self.cells if (c["row"], c["column"]) == (row, column))

    @property
    def rows(self) -> dict[str, str]:
        """Names and titles of the rows."""
        return {cell["row"]: cell["row_title"] for cell in self.cells}

    @property
    def columns(self) -> dict[str, str]:
        """Names and titles of the columns."""
        return {cell["column"]: cell["column_title"] for cell in self.cells}

    def grid(self, best: Callable[[str], str] = str) -> pd.DataFrame:
        """Return what is shown, as text; `best` marks the best figure of each column."""
        names, columns = [""], [list(self.rows.values())]
        for column, title in self.columns.items():
            cells = [self.cell(row, column) for row in self.rows]
            means = [cell["mean"] for cell in cells if cell["mean"] is not None]
            top = (min if self.metric == "forgetting" else max)(means, default=None)
            names.append(title)
            columns.append([(best if c["mean"] == top else str)(shown(c)) for c in cells])
            if any(cell["paper"] is not None for cell in cells):
                names += ["paper", "diff."]
                columns.append([_number(cell["paper"], "g") for cell in cells])
                columns.append([_number(cell["difference"], "+.1f") for cell in cells])
        return pd.DataFrame(dict(enumerate(columns))).set_axis(names, axis="columns")

    def write(self, folder: Path) -> list[Path]:
        """Write ``name.csv`` and ``name.json`` into a folder; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        csv_file, json_file = folder / f"{self.name}.csv", folder / f"{self.name}.json"
        pd.DataFrame(self.cells).to_csv(csv_file, index=False, float_format="%.4f")
        json_file.write_text(json.dumps(vars(self), indent=1) + "\n", encoding="utf-8")
        return [csv_file, json_file]

    @classmethod
    def read(cls, file: Path) -> Table:
        """Read a table that was written as JSON."""
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except TypeError as error:
            raise KldaError(
                f"{file} was written by another version: run its command again."
            ) from error


def shown(cell: Row) -> str:
    """Our figure of a cell as text: mean and spread, the number of seeds where it is small."""
    if cell["mean"] is None:
        return cell["gap"] or "-"
    spread = Spread(cell["mean"], cell["std"], cell["n"])
    return spread.text(cell["seeds"]) + ("*" if cell["note"] else "")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def cell_of(
    cells: Sequence[Cell],
    theirs: published.Figure | None = None,
    metric: str = FINAL,
    seeds: int | None = None,
) -> Row:
    """Reduce the runs of one cell, one per seed; `seeds` were asked for."""
    records = [cell.record for cell in cells if cell.record is not None]
    own: Row = {"mean": None, "std": None, "n": 0}
    found: Row = {}
    for name in METRICS:
        values = [record["metrics"].get(name) for record in records]
        measured = [value for value in values if value is not None]
        if measured:
            spread = Spread.of(measured)
            found |= {name: spread.mean, f"{name}_std": spread.std, f"{name}_n": spread.n}
            own = spread._asdict() if name == metric else own
    gaps = [cell.gap for cell in cells if cell.gap]
    gap = gaps[0] if gaps else ("not measured" if records else "not run here")
    here = own["mean"] is not None
    paper = None if theirs is None else theirs.value
    return {
        **own,
        "seeds": len(cells) if seeds is None else seeds,
        "paper": paper,
        "difference": own["mean"] - paper if here and paper is not None else None,
        "gap": "" if here else gap,
        "note": records[0]["settings"]["subset"] if here else "",
        "source": None if theirs is None else theirs.source,
        **found,
    }


def reasons(cells: Sequence[Cell], status: str = "unavailable") -> list[str]:
    """Why cells of a status have no figure, the first line of each reason once."""
    own = [cell.reason for cell in cells if cell.reason and cell.status == status]
    return list(dict.fromkeys(reason.splitlines()[0] for reason in own))


def notes_of(table: Sequence[Row], cells: Sequence[Cell]) -> list[str]:
    """Collect a table's notes: subsets, sources of the paper's figures, reasons for gaps."""
    found = [f"* {cell['column']}: {cell['note']}" for cell in table if cell["note"]]
    sources = sorted({cell["source"] for cell in table} - {None})
    found += [f"Paper: {published.SOURCES[source]}." for source in sources]
    found += [f"Missing: {reason}" for reason in reasons(cells)]
    found += [f"Failed: {reason}" for reason in reasons(cells, "failed")]
    return list(dict.fromkeys(found))


def pairs_against(cells: Sequence[Cell], base: str, others: Sequence[str]) -> list[Row]:
    """Compare methods with a base method on the same test rows: points and standard errors."""
    correct: dict[tuple[str, str], list[np.ndarray]] = {}
    for cell in cells:
        if cell.record is not None and cell.record["correct"]:
            # Rows come in the test file's order whatever the order of classes.
            bits = unpack_bits(cell.record["correct"], cell.record["rows_predicted"])
            correct.setdefault((cell.dataset, cell.method), []).append(bits)
    rows = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        for method in others:
            a, b = correct.get((dataset, method)), correct.get((dataset, base))
            if method == base or not a or not b or len(a[0]) != len(b[0]):
                continue
            difference, error = paired_difference(np.stack(a), np.stack(b))
            row: Row = {"dataset": dataset, "method": method, "base": base}
            row |= {"difference": round(difference, 4), "standard_error": round(error, 4)}
            rows.append(row | {"seeds": len(a)})
    return rows
