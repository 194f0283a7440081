"""Tables of runs: which finished runs belong into one, and figures beside the paper's.

Runs are a data frame, as :func:`klda_bench.runs.grid.as_frame` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from klda_bench.data import catalog
from klda_bench.data.catalog import DATASETS
from klda_bench.methods.registry import registry
from klda_bench.paper import published
from klda_bench.paper.published import FIGURES
from klda_bench.results import Row
from klda_bench.runs.grid import as_frame, unpack_bits, with_record
from klda_bench.runs.metrics import FINAL, paired_difference, spread

_AT_ONCE = ("joint", "lr")
_PLACE = ["split", "dataset", "tasks", "backbone", "layers", "method"]


@dataclass
class Table:
    """What a command shows: a frame with its title and notes, files, and the runs behind it.

    `cells` of a table of accuracies has one line per cell: where it stands (``row``, ``column`` and
    their titles), the ``mean`` of what was measured here, the ``paper``'s figure, and their
    ``difference`` where both are of one foundation model.
    """

    title: str
    shown: pd.DataFrame
    runs: pd.DataFrame = field(default_factory=lambda: as_frame([]))
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    cells: pd.DataFrame = field(default_factory=pd.DataFrame)

    def count(self, status: str) -> int:
        """Count the runs of a status: done now, found in the results, unavailable or failed."""
        return int((self.runs.status == status).sum())


def lay_out(cells: pd.DataFrame, best: str = "{}") -> pd.DataFrame:
    """Return what is shown of cells, as text; `best` marks the best figure of each column.

    Methods that learn all tasks at once are not among those compared.
    """
    names, columns = [""], [cells.drop_duplicates("row").row_title.tolist()]
    for title, own in cells.groupby("column_title", sort=False):
        compared = own["mean"].where(~own.row.str.split("/").str[-1].isin(_AT_ONCE))
        if (own.text != "-").any():
            is_best = compared.eq(compared.max())
            names.append(title)
            columns.append(
                [best.format(t) if b else t for t, b in zip(own.text, is_best, strict=True)]
            )
        if own.paper.notna().any():
            names.append("paper" if title in names else f"{title}, paper")
            columns.append(own.paper_text.tolist())
        if own.difference.notna().any():
            names.append("diff.")
            columns.append(["" if np.isnan(d) else f"{d:+.2f}" for d in own.difference])
    return pd.DataFrame(dict(enumerate(columns))).set_axis(names, axis="columns")


def accuracy_table(
    title: str,
    runs: pd.DataFrame,
    backbones: Sequence[str],
    *,
    by_model: bool = True,
    with_paper: bool = True,
    columns: Sequence[str] = (),
) -> Table:
    """Methods x data sets with each of some foundation models, beside the paper's figures.

    These are of the same model. Without `by_model` a row is a method, whatever its model, and the
    paper's figures are those of its Table 1. `columns` come first, with or without runs.
    """
    main = "" if by_model else published.MAIN_MODEL
    runs = runs.assign(row=runs.method if main else runs.backbone + "/" + runs.method)
    rows: dict[str, str] = {}
    theirs: dict[tuple[str, str], Row] = {}
    compared = [
        name
        for name in dict.fromkeys([*columns, *runs.dataset])
        # The paper's data, and not a user's under the same name.
        if with_paper and name in DATASETS and not (runs.split[runs.dataset == name] == "own").any()
    ]
    for backbone in backbones:
        for method, spec in registry(runs.method).items():
            row = method if main else f"{backbone}/{method}"
            places = {(row, name): (main or backbone, method, name) for name in compared}
            found = {k: FIGURES[place] for k, place in places.items() if place in FIGURES}
            theirs |= found
            if found or row in set(runs.row):
                alone = len(backbones) == 1
                rows[row] = spec.title if alone else f"{published.title(backbone)}: {spec.title}"
    same_model = main in ("", backbones[0])
    table = make_table(title, runs, rows, theirs, columns, same_model=same_model)
    stand_ins = [published.title(name) for name in backbones if published.is_stand_in(name)]
    if not main:
        notes = [f"{name} is a stand-in: the paper did not use it." for name in stand_ins]
        table.notes[:0] = notes
    elif theirs and not same_model:
        table.notes[:0] = [
            f"{published.title(backbones[0])} is a stand-in: the paper's figures are with "
            f"{published.title(main)}, so the two differ in the model as well as in the program."
        ]
    return table


def make_table(
    title: str,
    runs: pd.DataFrame,
    rows: Mapping[str, str],
    theirs: Mapping[tuple[str, str], Row] | None = None,
    columns: Sequence[str] = (),
    *,
    same_model: bool = True,
) -> Table:
    """Make a table of runs that have a ``row``; `rows` have titles, data sets are columns.

    `theirs` are the paper's figures by row and column; with another foundation model there is no
    difference to them.
    """
    by_cell = dict(iter(runs.groupby(["row", "dataset"])))
    lines = [
        {
            "row": row,
            "row_title": row_title,
            "column": column,
            "column_title": catalog.title(column),
            **cell_of(by_cell.get((row, column), runs[:0]), runs.seed.nunique()),
            **(theirs or {}).get((row, column), {}),
        }
        for row, row_title in rows.items()
        for column in dict.fromkeys([*columns, *runs.dataset])
    ]
    cells = pd.DataFrame(lines)
    cells["difference"] = cells["mean"] - cells.paper if same_model else np.nan
    return Table(title, lay_out(cells), runs, _notes(cells, runs), cells=cells)


def cell_of(runs: pd.DataFrame, seeds: int = 0) -> Row:
    """Reduce the runs of one cell, one per seed; `seeds` were asked for."""
    mean, std, n = runs[FINAL].agg(["mean", "std", "count"])
    status = next(iter(runs.status), "-")  # what can't be run here, or failed, says so
    text = spread(mean, std, int(n), seeds) if n else status
    return {"mean": mean, "text": text, "paper": np.nan, "paper_text": ""}


def _notes(cells: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Collect a table's notes: the source of the paper's figures, reasons for gaps."""
    found = [f"Paper: {published.SOURCE}."] if cells.paper.notna().any() else []
    for status, word in (("unavailable", "Missing"), ("failed", "Failed")):
        reasons = runs.reason[runs.status == status]
        found += [f"{word}: {reason.splitlines()[0]}" for reason in reasons]
    return list(dict.fromkeys(found))


def paired(runs: pd.DataFrame, method: str, base: str) -> Iterator[tuple[str, str, float, float]]:
    """Compare a method with another one on the same test rows.

    Yields the foundation model, the data set, the difference in points and its standard error.
    """
    kept = runs[runs.record.map(lambda record: bool(record and record["correct"])).astype(bool)]
    # Rows come in the test file's order whatever the order of classes. Another copy of a data set
    # can have them in another order.
    digest = [record["settings"]["data_sha256"] for record in kept.record]
    for (backbone, dataset, _), own in kept.groupby(["backbone", "dataset", digest], sort=False):
        correct = [
            [unpack_bits(r["correct"], r["rows_predicted"]) for r in own.record[own.method == name]]
            for name in (method, base)
        ]
        if all(correct):
            yield backbone, dataset, *paired_difference(*map(np.stack, correct))


def shown_runs(records: Iterable[Row]) -> pd.DataFrame:
    """Choose one setting of each method for each data set, model and choice of layers.

    The usual one; of a method that has no run at its usual settings, and of fine-tuned methods,
    whose epochs are a matter of what a machine can do, the latest. Data sets come in their usual
    order.
    """
    latest = sorted(records, key=lambda record: record["finished"], reverse=True)
    runs = as_frame(with_record(record["settings"], record) for record in latest)
    runs["variant"] = [json.dumps(options, sort_keys=True) for options in runs.options]
    runs["unusual"] = [not _is_usual(record["settings"]) for record in latest]
    ranked = runs.sort_values("unusual", kind="stable")
    best = ranked.groupby(_PLACE).variant.transform("first")
    runs = ranked[ranked.variant == best].drop_duplicates([*_PLACE, "seed"])
    order = {name: i for i, name in enumerate(DATASETS)}
    runs["order"] = [order.get(name, len(order)) for name in runs.dataset]
    return runs.sort_values(["order", *_PLACE, "seed"], ignore_index=True)


def _is_usual(settings: Row) -> bool:
    spec = registry().get(settings["method"])
    if spec is None or spec.needs == "inputs":
        return False
    return settings["options"] == spec.options(settings["backbone"], settings["layers"])


def usual_layers(runs: pd.DataFrame, backbones: Sequence[str]) -> pd.DataFrame:
    """Pick each method of some models on its own choice of layers, else on the last layer."""
    known = registry(runs.method)
    own = runs[runs.backbone.isin(backbones)]
    wanted = own.layers == [known[name].layers for name in own.method]
    has_wanted = wanted.groupby([own.backbone, own.method]).transform("any")
    return own[wanted | (~has_wanted & (own.layers == "last"))]
