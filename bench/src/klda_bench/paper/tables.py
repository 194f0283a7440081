"""The paper's tables and figures, and two of our own: each runs its grid and writes its files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from klda.errors import KldaError
from klda_bench import data, published
from klda_bench.engine import MissingDependencyError
from klda_bench.environment import describe_machine
from klda_bench.methods import MethodSpec, registry
from klda_bench.paper import memory
from klda_bench.report import plots
from klda_bench.report.table import Table, cell_of, notes_of, pairs_against
from klda_bench.results import Results, Row, meaning_of_auto
from klda_bench.runs.grid import Cell, Notify, Plan, walk
from klda_bench.runs.metrics import FINAL, METRICS


@dataclass
class Product:
    """What a command made: a frame with its title and notes to print, files, and the runs."""

    shown: pd.DataFrame
    title: str
    files: list[Path]
    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    table: Table | None = None

    @classmethod
    def of(cls, table: Table, output: Path, cells: list[Cell]) -> Product:
        """Write a table and say what is printed of it."""
        return cls(table.grid(), table.title, table.write(output), cells, table.notes, table)

    def count(self, status: str) -> int:
        """Count the runs of a status: done now, found in the results, unavailable or failed."""
        return sum(cell.status == status for cell in self.cells)


def _silent(message: str) -> None:
    pass


def _table(
    name: str,
    title: str,
    plan: Plan,
    cells: Sequence[Cell],
    rows: dict[str, str],
    row_of: Callable[[Cell], str],
    **how: Any,
) -> Table:
    """Make a table: `rows` have titles, `row_of` says where a run belongs, data sets are columns.

    `how` may hold ``paper``, the paper's figure for a row and column, and options of `cell_of`.
    """
    paper = how.pop("paper", lambda row, column: None)
    table = []
    for row, row_title in rows.items():
        for column in dict.fromkeys(cell.dataset for cell in cells):
            own = [cell for cell in cells if cell.dataset == column and row_of(cell) == row]
            theirs = paper(row, column) if _as_in_the_paper(plan, cells, column) else None
            place = {"row": row, "row_title": row_title, "column": column}
            place["column_title"] = data.title(column)
            table.append(place | cell_of(own, theirs, **how))
    metric = how.get("metric", FINAL)
    return Table(name, title, table, notes_of(table, cells), plan.command, metric)


def _as_in_the_paper(plan: Plan, cells: Sequence[Cell], column: str) -> bool:
    """Whether a column is of the paper's split and all its classes: else figures don't compare."""
    whole = plan.split == "paper" and plan.classes is None and plan.per_class is None
    used = [cell.settings for cell in cells if cell.dataset == column and cell.settings]
    return whole and all(own["split"] == "paper" and not own["subset"] for own in used)


def table1(plan: Plan, output: Path, notify: Notify = _silent, *, metric: str = FINAL) -> Product:
    """Methods x text sets, the curves behind them, and the paired comparison.

    The methods of the plan are run with its first foundation model. The table also shows the
    finished runs of other methods and seeds in the output folder, where they are of the same data,
    tasks and foundation model. `metric` is one of :data:`METRICS`.
    """
    if metric not in METRICS:
        raise KldaError(f"metric={metric!r} is not known: use {', '.join(METRICS)}.")
    backbone = plan.backbones[0]
    plan = dataclasses.replace(plan, backbones=[backbone])
    results = Results.of(output)
    cells = walk(plan, results, notify)
    shown = _with_stored(plan, cells, results)
    specs = [spec for spec in registry().values() if spec.name in {cell.method for cell in shown}]
    name, title = "table1", f"Table 1: methods x data sets, {backbone}"
    if metric != FINAL:
        name, title = f"table1-{metric.replace('_', '-')}", f"{title}: {METRICS[metric]}"
    how: dict[str, Any] = {"metric": metric}
    how["seeds"] = max(plan.seeds, len({cell.seed for cell in shown}))
    if metric == FINAL:
        how["paper"] = lambda row, column: published.figure(column, row, backbone)
    titles = {spec.name: spec.title for spec in specs}
    table = _table(name, title, plan, shown, titles, lambda cell: cell.method, **how)
    table.notes += [note for spec in specs if (note := _options_note(spec, plan, shown))]
    table.notes.insert(0, _stand_in(backbone))
    product = Product.of(table, output, cells)
    product.files.append(plots.draw_table(table, output / f"{name}.png"))
    product.files += _curves(specs, shown, output)
    base = next((m for m in ("lda", "ncm") if m in table.rows), specs[0].name)
    pairs = output / "pairs.json"
    found = pairs_against(shown, base, list(table.rows))
    pairs.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    product.files.append(pairs)
    return product


def _stand_in(backbone: str) -> str:
    model = published.MAIN_TEXT_MODEL
    if backbone == model:
        return f"The paper's figures and ours are both with {model}."
    return (
        f"{backbone} is a stand-in for the paper's models: its figures here are with {model}, so a "
        "difference is between models as much as between programs."
    )


# What may differ between two runs of one table: all else in their settings must agree.
_FREE = ("method", "options", "auto", "seed")


def _place_of(settings: Row) -> Row:
    return {name: value for name, value in settings.items() if name not in _FREE}


def _setting_of(settings: Row) -> tuple[Any, Any]:
    return settings["options"], settings.get("auto", {})


def _with_stored(plan: Plan, cells: Sequence[Cell], results: Results) -> list[Cell]:
    """Add to the runs of a plan the other finished ones that belong to the same table."""
    places = {cell.dataset: _place_of(cell.settings) for cell in cells if cell.settings}
    records = [
        record
        for record in results.latest().values()
        if places.get(record["settings"]["dataset"]) == _place_of(record["settings"])
    ]
    wanted = _settings_shown(plan, cells, records)
    shown = {(cell.dataset, cell.method, cell.seed): cell for cell in cells}
    for record in records:
        settings = record["settings"]
        method, dataset, seed = settings["method"], settings["dataset"], settings["seed"]
        asked = shown.get((dataset, method, seed))
        own = wanted.get((method, dataset)) == _setting_of(settings)
        if own and (asked is None or asked.record is None):
            cell = Cell(settings["backbone"], dataset, method, seed, "found", record)
            shown[dataset, method, seed] = dataclasses.replace(cell, settings=settings)
    return list(shown.values())


def _settings_shown(
    plan: Plan, cells: Sequence[Cell], records: Sequence[Row]
) -> dict[tuple[str, str], tuple[Any, Any]]:
    """Which settings of each method a table shows for each data set.

    Those asked for; of other methods the defaults, and of fine-tuned ones the latest run's: their
    number of epochs is a matter of what a machine can do.
    """
    wanted = {
        (cell.method, cell.dataset): _setting_of(cell.settings) for cell in cells if cell.settings
    }
    known = registry()
    for record in sorted(records, key=lambda record: record["finished"], reverse=True):
        settings = record["settings"]
        spec, where = known.get(settings["method"]), (settings["method"], settings["dataset"])
        if spec is None or where in wanted:
            continue
        if spec.needs == "features":
            usual = plan.usual_options(spec)
            if _setting_of(settings) != (usual, meaning_of_auto(usual)):
                continue
        wanted[where] = _setting_of(settings)
    return wanted


def _options_note(spec: MethodSpec, plan: Plan, cells: Sequence[Cell]) -> str:
    """Say which options of a row are not its method's defaults, and for which data sets."""
    try:
        usual = plan.usual_options(spec)
    except MissingDependencyError:
        usual = {}
    found: dict[str, dict[str, None]] = {}
    for cell in cells:
        if cell.method == spec.name and cell.settings:
            options = cell.settings["options"].items()
            own = ", ".join(f"{k}={v}" for k, v in options if k not in usual or usual[k] != v)
            found.setdefault(own or "defaults", {})[data.title(cell.dataset)] = None
    if list(found) in ([], ["defaults"]):
        return ""
    if len(found) == 1:
        return f"{spec.title}: {next(iter(found))}."
    listed = "; ".join(f"{own} ({', '.join(sets)})" for own, sets in found.items())
    return f"{spec.title}: {listed}."


# Methods of very different accuracy would flatten each other, so they share no plot.
_CURVE_PLOTS = {
    "curves": ("Accuracy while learning", ("paper", "ours", "peer", "own")),
    "curves-authors": ("The authors' form beside ours", ("reference",)),
    "curves-tuned": ("Fine-tuned methods beside ours", ("fine-tuned",)),
}
_ALWAYS = ("lda", "klda", "klda-default")


def _curves(specs: Sequence[MethodSpec], cells: Sequence[Cell], output: Path) -> list[Path]:
    """Accuracy after each task: a file with one line per run and task, and its plots."""
    rows = [
        {
            "dataset": cell.dataset,
            "method": cell.method,
            "seed": cell.seed,
            "task": range(1, len(cell.record["seen_accuracy"]) + 1),
            "samples_seen": cell.record["samples_seen"],
            "accuracy": cell.record["seen_accuracy"],
        }
        for cell in cells
        if cell.record is not None
        and len(cell.record["seen_accuracy"]) > 1
        and None not in cell.record["seen_accuracy"]
    ]
    if not rows:
        return []
    curves = pd.DataFrame(rows).explode(["task", "samples_seen", "accuracy"])
    files = [output / "curves.csv"]
    curves.to_csv(files[0], index=False)
    components = 5000 if any(spec.name.startswith("klda") for spec in specs) else None
    seeds, titles = len({cell.seed for cell in cells}), {s.name: s.title for s in specs}
    for name, (title, groups) in _CURVE_PLOTS.items():
        own = {spec.name for spec in specs if spec.group in groups}
        sets = curves.dataset[curves.method.isin(own)]
        part = curves[curves.method.isin(own | set(_ALWAYS)) & curves.dataset.isin(sets)]
        if len(part):
            file = output / f"{name}.png"
            files.append(plots.draw_curves(part, titles, seeds, file, components, title))
    return files


def models_table(
    name: str, title: str, plan: Plan, output: Path, notify: Notify = _silent
) -> Product:
    """Methods x foundation models x data sets: the paper's Tables 2 and 3."""
    cells = walk(plan, Results.of(output), notify)
    rows = {
        f"{backbone}/{spec.name}": f"{backbone}: {spec.title}"
        for backbone in plan.backbones
        for spec in plan.methods
    }

    def row_of(cell: Cell) -> str:
        return f"{cell.backbone}/{cell.method}"

    def paper(row: str, column: str) -> published.Figure | None:
        backbone, _, method = row.rpartition("/")
        return published.FIGURES.get((backbone, column, method))

    table = _table(name, title, plan, cells, rows, row_of, paper=paper, seeds=plan.seeds)
    table.notes[:0] = [
        f"{backbone} is a stand-in: the paper did not use it (its main models here: "
        f"{', '.join(published.MAIN_MODELS)})."
        for backbone in plan.backbones
        if backbone not in (*published.TEXT_MODELS, *published.IMAGE_MODELS)
    ]
    product = Product.of(table, output, cells)
    product.files.append(plots.draw_table(table, output / f"{name}.png"))
    return product


def sweep(
    plan: Plan, output: Path, parameter: str, values: Sequence[Any], notify: Notify = _silent
) -> Product:
    """Draw KLDA's final accuracy over ``gamma`` or ``n_components``: the paper's figures.

    The plan has one method, a KLDA variant.
    """
    if len(plan.methods) > 1:
        names = ", ".join(spec.name for spec in plan.methods)
        raise KldaError(f"method is {names}: give one; the next can go to another --output.")
    spec, cells = plan.methods[0], []
    try:
        values = [(float if parameter == "gamma" else int)(value) for value in values]
    except ValueError as error:
        raise KldaError(f"values: {error} (of {parameter}).") from error
    for value in values:
        options = {spec.name: plan.options.get(spec.name, {}) | {parameter: value}}
        step = dataclasses.replace(plan, methods=[spec], options=options, curve="end")
        cells += walk(step, Results.of(output), notify)
    measured = _frame(
        cells,
        lambda cell, record: {
            "dataset": data.title(cell.dataset),
            "value": record["settings"]["options"][parameter],
            "accuracy": record["metrics"][FINAL],
        },
    )

    def row_of(cell: Cell) -> str:
        return f"{cell.settings['options'][parameter]:g}" if cell.settings else ""

    name = f"figure-{'gamma' if parameter == 'gamma' else 'components'}"
    label = "gamma" if parameter == "gamma" else "number of random features D"
    title = f"{spec.title} on {plan.backbones[0]}: accuracy over {label}"
    rows = {f"{value:g}": f"{parameter} = {value:g}" for value in values}
    table = _table(name, title, plan, cells, rows, row_of)
    product = Product.of(table, output, cells)
    file = output / f"{name}.png"
    product.files.append(plots.draw_sweep(measured, file, label, title))
    return product


def _frame(cells: Sequence[Cell], row: Callable[[Cell, Row], Row]) -> pd.DataFrame:
    """Make a frame of the runs that have a record, of which there must be one."""
    rows = [row(cell, cell.record) for cell in cells if cell.record is not None]
    if not rows:
        raise KldaError("No run was possible: " + "; ".join({cell.reason for cell in cells}))
    return pd.DataFrame(rows)


def _write_frame(frame: pd.DataFrame, output: Path, name: str) -> list[Path]:
    """Write a frame as CSV and JSON; return their paths."""
    output.mkdir(parents=True, exist_ok=True)
    files = [output / f"{name}.csv", output / f"{name}.json"]
    frame.to_csv(files[0], index=False)
    frame.to_json(files[1], orient="records", indent=1)
    return files


def memory_counts(
    output: Path, dataset: str, dimension: int, classes: int, backbone: str = "minilm"
) -> Product:
    """Count what each method keeps, as the paper counts, and as measured in the output folder."""
    counts = memory.count(dimension, classes, memory.held(Results.of(output), dataset, backbone))
    title = f"Memory: d = {dimension}, M = {classes} classes ({dataset})"
    bars = counts.set_index("title")[["bytes", "held_bytes"]].astype(float) / 1e6
    bars.columns = pd.Index(["as the paper counts (float32)", "held by the fitted model, measured"])
    files = _write_frame(counts, output, "memory")
    files.append(plots.draw_bars(bars, output / "memory.png", "MB (logarithmic)", title))
    shown = counts[["title", "formula", "parameters"]].rename(columns={"title": "method"})
    shown[["MB (float32)", "MB held, measured"]] = bars.to_numpy()
    return Product(shown, title, files)


def runtime(plan: Plan, output: Path, notify: Notify = _silent) -> Product:
    """Seconds and memory of runs: mean over seeds, one line per method and data set.

    The plan measures at the end only, so that learning is not interrupted by solving.
    """
    cells = walk(plan, Results.of(output), notify)
    runs = _frame(
        cells,
        lambda cell, record: {
            "dataset": cell.dataset,
            "method": cell.method,
            "seeds": cell.seed,
            "learn_seconds": record["seconds"]["learn"],
            "solve_and_predict_seconds": record["seconds"]["predict_last"],
            "test_rows": record["rows_predicted"],
            "peak_memory_mb": record["peak_memory_bytes"] / 1e6,
            "machine": describe_machine(record["machine"]),
        },
    )
    means: dict[str, Any] = dict.fromkeys(("learn_seconds", "solve_and_predict_seconds"), "mean")
    ways = {"seeds": "size", **means, "test_rows": "first", "peak_memory_mb": "max"}
    ways["machine"] = lambda found: "; ".join(found.unique())
    frame = runs.groupby(["dataset", "method"], sort=False).agg(ways).reset_index()
    frame = frame.round(dict.fromkeys(means, 3) | {"peak_memory_mb": 0})
    files = _write_frame(frame, output, "runtime")
    titles = {name: spec.title for name, spec in registry().items()}
    bars = frame.groupby("method", sort=False)[list(means)].mean().clip(lower=1e-3)
    bars = bars.rename(index=titles)
    bars.columns = pd.Index(["learn all tasks", "solve once and predict the test set"])
    label = "seconds, mean over data sets and seeds (logarithmic)"
    files.append(plots.draw_bars(bars, output / "runtime.png", label, "Run time"))
    return Product(frame, f"Run time on {plan.backbones[0]} features", files, cells)
