"""Tables of runs: which finished runs belong into one, and figures beside the paper's.

Runs are a data frame, as :func:`klda_bench.runs.grid.as_frame` makes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from klda.errors import MissingDependencyError
from klda_bench import data, published
from klda_bench.data import DATASETS
from klda_bench.methods import registry
from klda_bench.published import FIGURES
from klda_bench.results import Row, meaning_of_auto
from klda_bench.runs.grid import as_frame, unpack_bits, with_record
from klda_bench.runs.metrics import FINAL, METRICS, paired_difference, spread

_PLACE = ["split", "dataset", "tasks", "backbone", "layers", "method"]


@dataclass
class Table:
    """What a command shows: a frame with its title and notes, files, and the runs behind it.

    `cells` of a table of accuracies has one line per cell: where it stands (``row``, ``column`` and
    their titles), what was measured here (``mean``, ``std``, ``n`` of so many ``seeds``), the
    ``paper``'s figure, their ``difference`` where both are of one foundation model, why there is no
    figure (``gap``), a ``note`` such as the part of the data that was used, and all other metrics.
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


def write_csv(frame: pd.DataFrame, folder: Path, name: str, **how: Any) -> Path:
    """Write a frame as ``name.csv`` into a folder; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / f"{name}.csv", index=False, **how)
    return folder / f"{name}.csv"


def lay_out(cells: pd.DataFrame, metric: str = FINAL, best: str = "{}") -> pd.DataFrame:
    """Return what is shown of cells, as text; `best` marks the best figure of each column.

    Joint training is the upper bound and not among those compared.
    """
    names, columns = [""], [cells.drop_duplicates("row").row_title.tolist()]
    for title, own in cells.groupby("column_title", sort=False):
        compared = own["mean"][~own.row.str.endswith("joint")]
        top = compared.min() if metric == "forgetting" else compared.max()
        if (own["mean"].notna() | (own.gap != "")).any():
            is_best = own["mean"].eq(top) & own.index.isin(compared.index)
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
    main: str = "",
    metric: str = FINAL,
    whole: bool = True,
    columns: Sequence[str] = (),
) -> Table:
    """Methods x data sets with each of some foundation models, beside the paper's figures.

    These are of the same model, or of the model `main`: then a row is a method, whatever its model.
    They are shown for all of the paper's data alone, and only if all of them were asked for
    (`whole`). `columns` come first, with or without runs.
    """
    runs = runs.assign(row=runs.method if main else runs.backbone + "/" + runs.method)
    rows: dict[str, str] = {}
    theirs: dict[tuple[str, str], Row] = {}
    compared = [
        name
        for name in dict.fromkeys([*columns, *runs.dataset])
        if whole and metric == FINAL and _as_in_the_paper(runs[runs.dataset == name], name)
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
    table = make_table(title, runs, rows, theirs, columns, metric, same_model=same_model)
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


def _as_in_the_paper(runs: pd.DataFrame, column: str) -> bool:
    """Whether runs are of the paper's split and all its classes: else figures don't compare."""
    used = runs.dropna(subset="split")
    return column in DATASETS and bool(((used.split == "paper") & (used.subset == "")).all())


def make_table(
    title: str,
    runs: pd.DataFrame,
    rows: Mapping[str, str],
    theirs: Mapping[tuple[str, str], Row] | None = None,
    columns: Sequence[str] = (),
    metric: str = FINAL,
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
            "column_title": data.title(column),
            **cell_of(by_cell.get((row, column), runs[:0]), metric, runs.seed.nunique()),
            **(theirs or {}).get((row, column), {}),
        }
        for row, row_title in rows.items()
        for column in dict.fromkeys([*columns, *runs.dataset])
    ]
    cells = pd.DataFrame(lines)
    cells["difference"] = cells["mean"] - cells.paper if same_model else np.nan
    return Table(title, lay_out(cells, metric), runs, _notes(cells, runs), cells=cells)


def cell_of(runs: pd.DataFrame, metric: str = FINAL, seeds: int = 0) -> Row:
    """Reduce the runs of one cell, one per seed; `seeds` were asked for."""
    found = runs[list(METRICS)].agg(["mean", "std", "count"])
    mean, std, n = found[metric]
    measured = runs[runs.record.notna()]
    gap = next((gap for gap in runs.gap if gap), "not measured" if len(measured) else "")
    note = measured.subset.iloc[0] if n else ""
    text = spread(mean, std, int(n), seeds) + ("*" if note else "") if n else gap or "-"
    cell: Row = {"mean": mean, "std": std, "n": int(n), "seeds": seeds, "text": text}
    cell |= {"gap": "" if n else gap, "note": note, "paper": np.nan, "paper_text": ""}
    return cell | {
        f"{name}{end}": found[name][how]
        for name in METRICS
        for end, how in (("", "mean"), ("_std", "std"), ("_n", "count"))
    }


def _notes(cells: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Collect a table's notes: subsets, the source of the paper's figures, reasons for gaps."""
    found = [f"* {cell.column}: {cell.note}" for cell in cells.itertuples() if cell.note]
    if cells.paper.notna().any():
        found.append(f"Paper: {published.SOURCE}.")
    for status, word in (("unavailable", "Missing"), ("failed", "Failed")):
        reasons = runs.reason[runs.status == status]
        found += [f"{word}: {reason.splitlines()[0]}" for reason in reasons]
    return list(dict.fromkeys(found))


def pairs_against(runs: pd.DataFrame, base: str, others: Sequence[str]) -> list[Row]:
    """Compare methods with a base method on the same test rows: points and standard errors."""
    kept = [bool(record and record["correct"]) for record in runs.record]
    measured = runs[np.array(kept, dtype=bool)]
    # Rows come in the test file's order whatever the order of classes. Another copy of a data set
    # can have them in another order.
    digests = [record["settings"]["data_sha256"] for record in measured.record]
    measured = measured.assign(data_sha256=digests)
    places = ["backbone", "dataset", "data_sha256"]
    correct = {
        place: np.stack([unpack_bits(r["correct"], r["rows_predicted"]) for r in records])
        for place, records in measured.groupby([*places, "method"]).record
    }
    rows = []
    for backbone, dataset, digest in measured[places].drop_duplicates().to_numpy():
        for method in others:
            a, b = (correct.get((backbone, dataset, digest, name)) for name in (method, base))
            if method == base or a is None or b is None:
                continue
            difference, error = paired_difference(a, b)
            row: Row = {"backbone": backbone, "dataset": dataset, "method": method, "base": base}
            row |= {"difference": round(difference, 4), "standard_error": round(error, 4)}
            rows.append(row | {"seeds": len(a)})
    return rows


def shown_runs(records: Iterable[Row]) -> pd.DataFrame:
    """Choose one setting of each method for each data set, model and choice of layers.

    The usual one; of a method that has no run at its usual settings, and of fine-tuned methods,
    whose epochs are a matter of what a machine can do, the latest. All of the data goes before a
    part of it. Data sets come in their usual order.
    """
    kept = [record for record in records if not _is_outdated(record["settings"])]
    kept.sort(key=lambda record: record["finished"], reverse=True)
    runs = as_frame(with_record(record["settings"], record) for record in kept)
    settings = [record["settings"] for record in kept]
    runs["variant"] = [json.dumps([*_variant(own), own["subset"]]) for own in settings]
    runs["unusual"] = [_variant(own) != _usual(own) for own in settings]
    runs["partial"] = runs.subset != ""
    ranked = runs.sort_values(["unusual", "partial"], kind="stable")
    best = ranked.groupby(_PLACE).variant.transform("first")
    runs = ranked[ranked.variant == best].drop_duplicates([*_PLACE, "seed"])
    order = {name: i for i, name in enumerate(DATASETS)}
    runs["order"] = [order.get(name, len(order)) for name in runs.dataset]
    return runs.sort_values(["order", *_PLACE, "seed"], ignore_index=True)


def _variant(settings: Row) -> tuple[Any, Any]:
    return settings["options"], settings.get("auto", {})


def _usual(settings: Row) -> tuple[Any, Any] | None:
    spec = registry().get(settings["method"])
    if spec is None or spec.needs == "inputs":
        return None
    try:
        options = spec.options(settings["backbone"], settings["layers"])
    except MissingDependencyError:
        return None
    return options, meaning_of_auto(options)


def _is_outdated(settings: Row) -> bool:
    """Check whether defaults were others when a run was made: in number, or in what they mean."""
    options, auto = _variant(settings)
    spec = registry().get(settings["method"])
    usual = _usual(settings) if spec is not None and spec.own is None else None
    changed = usual is not None and set(usual[0]) != set(options)
    return changed or bool(auto != meaning_of_auto(options))


def usual_layers(runs: pd.DataFrame, backbones: Sequence[str]) -> pd.DataFrame:
    """Pick each method of some models on its own choice of layers, else on the last layer."""
    known = registry(runs.method)
    own = runs[runs.backbone.isin(backbones)]
    wanted = own.layers == [known[name].layers for name in own.method]
    has_wanted = wanted.groupby([own.backbone, own.method]).transform("any")
    return own[wanted | (~has_wanted & (own.layers == "last"))]
