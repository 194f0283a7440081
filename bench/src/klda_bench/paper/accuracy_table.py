"""Tables of runs: which finished runs belong into one, and figures beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from klda.errors import MissingDependencyError
from klda_bench import data, published
from klda_bench.data import DATASETS
from klda_bench.methods import registry
from klda_bench.results import Row, meaning_of_auto
from klda_bench.runs.grid import Cell, unpack_bits
from klda_bench.runs.metrics import FINAL, METRICS, Spread, paired_difference

_RUN = ("backbone", "dataset", "method", "seed")
_PLACE = ("split", "dataset", "tasks", "backbone", "layers", "method")


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


def write_csv(frame: pd.DataFrame, folder: Path, name: str, **how: Any) -> Path:
    """Write a frame as ``name.csv`` into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / f"{name}.csv", index=False, **how)
    return folder / f"{name}.csv"


def n_seeds(cells: Sequence[Cell]) -> int:
    """Count the seeds of some runs."""
    return len({cell.seed for cell in cells})


def accuracy_table(
    name: str,
    title: str,
    cells: Sequence[Cell],
    backbones: Sequence[str],
    *,
    main: str = "",
    metric: str = FINAL,
    whole: bool = True,
    columns: Sequence[str] = (),
) -> Table:
    """Methods x data sets with each of some foundation models, beside the paper's figures.

    These are of the same model, or of the model `main`: then a row is a method, whatever its model.
    They are shown for all of the paper's data alone, and only if all of them were asked for
    (`whole`).
    """

    def row_of(backbone: str, method: str) -> str:
        return method if main else f"{backbone}/{method}"

    sets = dict.fromkeys([*columns, *(cell.dataset for cell in cells)])
    compared = [n for n in sets if whole and metric == FINAL and _as_in_the_paper(cells, n)]
    used = {row_of(cell.backbone, cell.method) for cell in cells}
    rows: dict[str, str] = {}
    theirs: dict[tuple[str, str], Spread] = {}
    known = registry(cell.method for cell in cells)
    for backbone in backbones:
        for method, spec in known.items():
            row, model = row_of(backbone, method), main or backbone
            figures = {n: published.FIGURES.get((model, method, n)) for n in compared}
            theirs |= {(row, n): figure for n, figure in figures.items() if figure is not None}
            if row in used or any(figures.values()):
                alone = len(backbones) == 1
                rows[row] = spec.title if alone else f"{published.title(backbone)}: {spec.title}"
    how: dict[str, Any] = {"metric": metric, "seeds": n_seeds(cells)}
    how |= {"theirs": theirs, "columns": columns, "same_model": main in ("", backbones[0])}
    table = make_table(
        name, title, cells, rows, lambda cell: row_of(cell.backbone, cell.method), **how
    )
    if not main:
        notes = [b for b in backbones if published.is_stand_in(b)]
        table.notes[:0] = [
            f"{published.title(b)} is a stand-in: the paper did not use it." for b in notes
        ]
    elif theirs and not how["same_model"]:
        table.notes.insert(
            0,
            f"{published.title(backbones[0])} is a stand-in: the paper's figures are with "
            f"{published.title(main)}, so the two differ in the model as well as in the program.",
        )
    return table


def _as_in_the_paper(cells: Sequence[Cell], column: str) -> bool:
    """Whether a column is of the paper's split and all its classes: else figures don't compare."""
    used = [cell.settings for cell in cells if cell.dataset == column and cell.settings]
    whole = all(own["split"] == "paper" and not own["subset"] for own in used)
    return column in DATASETS and whole


def make_table(
    name: str,
    title: str,
    cells: Sequence[Cell],
    rows: Mapping[str, str],
    row_of: Callable[[Cell], str],
    *,
    theirs: Mapping[tuple[str, str], Spread] | None = None,
    columns: Sequence[str] = (),
    metric: str = FINAL,
    **how: Any,
) -> Table:
    """Make a table: `rows` have titles, `row_of` says where a run belongs, data sets are columns.

    `theirs` are the paper's figures by row and column; `columns` come first, with or without runs;
    `how` holds options of `cell_of`.
    """
    table = []
    for row, row_title in rows.items():
        for column in dict.fromkeys([*columns, *(cell.dataset for cell in cells)]):
            own = [cell for cell in cells if cell.dataset == column and row_of(cell) == row]
            place = {"row": row, "row_title": row_title, "column": column}
            place["column_title"] = data.title(column)
            figure = (theirs or {}).get((row, column))
            table.append(place | cell_of(own, figure, metric, **how))
    return Table(name, title, table, _notes(table, cells), metric)


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
    theirs: Spread | None = None,
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


def _notes(table: Sequence[Row], cells: Sequence[Cell]) -> list[str]:
    """Collect a table's notes: subsets, the source of the paper's figures, reasons for gaps."""
    found = [f"* {cell['column']}: {cell['note']}" for cell in table if cell["note"]]
    if any(cell["paper"] is not None for cell in table):
        found.append(f"Paper: {published.SOURCE}.")
    for status, word in (("unavailable", "Missing"), ("failed", "Failed")):
        reasons = [cell.reason for cell in cells if cell.reason and cell.status == status]
        found += [f"{word}: {reason.splitlines()[0]}" for reason in reasons]
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


def shown_runs(records: Iterable[Row]) -> list[Cell]:
    """Choose one setting of each method for each data set, model and choice of layers.

    The usual one; of a method that has no run at its usual settings, and of fine-tuned methods,
    whose epochs are a matter of what a machine can do, the latest. All of the data goes before a
    part of it. Data sets come in their usual order.
    """
    cells = [
        Cell(
            **{name: run["settings"][name] for name in _RUN},
            status="found",
            record=run,
            settings=run["settings"],
        )
        for run in sorted(records, key=lambda record: record["finished"])
        if not _is_outdated(run["settings"])
    ]
    found: list[Cell] = []
    for _, runs in sorted(groups(cells, *_PLACE), key=lambda group: list(map(str, group[0]))):
        wanted = _usual(runs[0].settings or {})

        def rank(cell: Cell, wanted: Any = wanted) -> tuple[bool, bool]:
            part, setting = _variant(cell)
            return setting != wanted, part != ""

        best = _variant(min(reversed(runs), key=rank))
        found += {cell.seed: cell for cell in runs if _variant(cell) == best}.values()
    order = list(DATASETS)
    return sorted(
        found, key=lambda cell: order.index(cell.dataset) if cell.dataset in order else 99
    )


def _variant(cell: Cell) -> tuple[str, tuple[Any, Any]]:
    """Return the part of the data that a run was made on, and its options."""
    own = cell.settings or {}
    return own["subset"], (own["options"], own.get("auto", {}))


def _usual(settings: Row) -> tuple[Any, Any] | None:
    spec = registry().get(settings["method"])
    if spec is None or spec.needs == "inputs":
        return None
    try:
        options = spec.usual(settings["backbone"], settings["layers"])
    except MissingDependencyError:
        return None
    return options, meaning_of_auto(options)


def _is_outdated(settings: Row) -> bool:
    """Check whether defaults were others when a run was made: in number, or in what they mean."""
    options, spec = settings["options"], registry().get(settings["method"])
    usual = _usual(settings) if spec is not None and spec.own is None else None
    if usual is not None and set(usual[0]) != set(options):
        return True
    return bool(settings.get("auto", {}) != meaning_of_auto(options))


def groups(cells: Iterable[Cell], *names: str) -> Iterator[tuple[tuple[str, ...], list[Cell]]]:
    """Group cells by settings, in the order in which these first appear."""
    found: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if cell.settings is not None:
            found.setdefault(tuple(cell.settings[name] for name in names), []).append(cell)
    yield from found.items()


def used_models(cells: Iterable[Cell]) -> list[str]:
    """Return the foundation models of some runs."""
    return list(dict.fromkeys(cell.backbone for cell in cells))


def usual_layers(cells: Sequence[Cell], backbones: Sequence[str]) -> list[Cell]:
    """Pick each method of some models on its own choice of layers, else on the last layer."""
    known, found = registry(cell.method for cell in cells), []
    for backbone in backbones:
        for (method,), runs in groups((c for c in cells if c.backbone == backbone), "method"):
            by_layers = dict(groups(runs, "layers"))
            found += by_layers.get((known[method].layers,)) or by_layers.get(("last",), [])
    return found
