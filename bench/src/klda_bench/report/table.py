"""Tables: figures measured here beside the paper's, one row of data per cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from klda_bench import published
from klda_bench.results import Row
from klda_bench.runs.grid import Cell, unpack_bits
from klda_bench.runs.metrics import FINAL, METRICS, Spread, paired_difference


@dataclass
class Table:
    """A table of accuracies.

    `cells` holds one row per cell: where it stands (``row``, ``column`` and their titles), what was
    measured here (``mean``, ``std``, ``n`` of so many ``seeds``), the ``paper``'s figure, their
    ``difference`` where both are of one foundation model, why there is no figure (``gap``), a
    ``note`` such as the part of the data that was used, and all other metrics.
    """

    name: str
    title: str
    cells: list[Row]
    notes: list[str] = field(default_factory=list)
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
        """Return what is shown, as text; `best` marks the best figure of each column.

        Joint training is the upper bound and not among those compared.
        """
        names, columns = [""], [list(self.rows.values())]
        for column, title in self.columns.items():
            cells = [self.cell(row, column) for row in self.rows]
            own = [c for c in cells if c["mean"] is not None and not c["row"].endswith("joint")]
            means = [cell["mean"] for cell in own]
            top = (min if self.metric == "forgetting" else max)(means, default=None)
            if any(cell["mean"] is not None or cell["gap"] for cell in cells):
                names.append(title)
                columns.append(
                    [(best if c in own and c["mean"] == top else str)(shown(c)) for c in cells]
                )
            if any(cell["paper"] is not None for cell in cells):
                names.append("paper" if title in names else f"{title}, paper")
                columns.append([c["paper_text"] or "" for c in cells])
            if any(cell["difference"] is not None for cell in cells):
                names.append("diff.")
                columns.append([_number(cell["difference"], "+.2f") for cell in cells])
        return pd.DataFrame(dict(enumerate(columns))).set_axis(names, axis="columns")

    def write(self, folder: Path) -> list[Path]:
        """Write ``name.csv`` into a folder; return its path."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{self.name}.csv"
        pd.DataFrame(self.cells).to_csv(file, index=False, float_format="%.4f")
        return [file]


def shown(cell: Row) -> str:
    """Our figure of a cell as text: mean and spread, the number of seeds where it is small."""
    if cell["mean"] is None:
        return cell["gap"] or "-"
    spread = Spread(cell["mean"], cell["std"], cell["n"])
    return spread.text(cell["seeds"]) + ("*" if cell["note"] else "")


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def cell_of(
    cells: Sequence[Cell],
    theirs: published.Figure | None = None,
    metric: str = FINAL,
    seeds: int | None = None,
    *,
    same_model: bool = True,
) -> Row:
    """Reduce the runs of one cell, one per seed; `seeds` were asked for.

    `theirs` is the paper's figure; with another foundation model there is no difference to it.
    """
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
    gap = gaps[0] if gaps else ("not measured" if records else "")
    here = own["mean"] is not None
    comparable = here and theirs is not None and same_model
    return {
        **own,
        "seeds": len(cells) if seeds is None else seeds,
        "paper": None if theirs is None else theirs.mean,
        "paper_text": None if theirs is None else theirs.text(),
        "difference": own["mean"] - theirs.mean if comparable and theirs else None,
        "gap": "" if here else gap,
        "note": records[0]["settings"]["subset"] if here else "",
        **found,
    }


def reasons(cells: Sequence[Cell], status: str = "unavailable") -> list[str]:
    """Why cells of a status have no figure, the first line of each reason once."""
    own = [cell.reason for cell in cells if cell.reason and cell.status == status]
    return list(dict.fromkeys(reason.splitlines()[0] for reason in own))


def notes_of(table: Sequence[Row], cells: Sequence[Cell]) -> list[str]:
    """Collect a table's notes: subsets, the source of the paper's figures, reasons for gaps."""
    found = [f"* {cell['column']}: {cell['note']}" for cell in table if cell["note"]]
    if any(cell["paper"] is not None for cell in table):
        found.append(f"Paper: {published.SOURCE}.")
    found += [f"Missing: {reason}" for reason in reasons(cells)]
    found += [f"Failed: {reason}" for reason in reasons(cells, "failed")]
    return list(dict.fromkeys(found))


def pairs_against(cells: Sequence[Cell], base: str, others: Sequence[str]) -> list[Row]:
    """Compare methods with a base method on the same test rows: points and standard errors."""
    correct: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for cell in cells:
        if cell.record is not None and cell.record["correct"]:
            # Rows come in the test file's order whatever the order of classes.
            bits = unpack_bits(cell.record["correct"], cell.record["rows_predicted"])
            correct.setdefault((cell.backbone, cell.dataset, cell.method), []).append(bits)
    rows = []
    for backbone, dataset in dict.fromkeys((cell.backbone, cell.dataset) for cell in cells):
        for method in others:
            a, b = (correct.get((backbone, dataset, name)) for name in (method, base))
            if method == base or not a or not b or len(a[0]) != len(b[0]):
                continue
            difference, error = paired_difference(np.stack(a), np.stack(b))
            row: Row = {"backbone": backbone, "dataset": dataset, "method": method, "base": base}
            row |= {"difference": round(difference, 4), "standard_error": round(error, 4)}
            rows.append(row | {"seeds": len(a)})
    return rows
