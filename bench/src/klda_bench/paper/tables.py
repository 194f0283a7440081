"""The paper's tables and figures, and two of our own: each runs its grid and writes its files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from klda.errors import KldaError, MissingDependencyError
from klda_bench import data, published
from klda_bench.display import plots
from klda_bench.environment import describe_machine
from klda_bench.methods import MethodSpec, registry
from klda_bench.paper import memory
from klda_bench.paper.accuracy_table import (
    Table,
    accuracy_table,
    make_table,
    n_seeds,
    pairs_against,
    write_csv,
)
from klda_bench.results import Results, Row
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
        file = write_csv(pd.DataFrame(table.cells), output, table.name, float_format="%.4f")
        return cls(table.grid(), table.title, [file], cells, table.notes, table)

    def count(self, status: str) -> int:
        """Count the runs of a status: done now, found in the results, unavailable or failed."""
        return sum(cell.status == status for cell in self.cells)


def _silent(message: str) -> None:
    pass


def table1(plan: Plan, output: Path, notify: Notify = _silent, *, metric: str = FINAL) -> Product:
    """Methods x text sets, the curves behind them, and the paired comparison.

    The methods of the plan are run with its first foundation model. `metric` is one of
    :data:`METRICS`.
    """
    if metric not in METRICS:
        raise KldaError(f"metric={metric!r} is not known: use {', '.join(METRICS)}.")
    plan = dataclasses.replace(plan, backbones=plan.backbones[:1])
    cells = walk(plan, Results.of(output), notify)
    table = methods_table(cells, plan.backbones[0], metric=metric, whole=_whole(plan))
    table.notes += [note for spec in plan.methods if (note := _options_note(spec, plan, cells))]
    product = Product.of(table, output, cells)
    product.files += [*draw_curves(cells, output), write_pairs(cells, output)]
    return product


def write_pairs(cells: Sequence[Cell], output: Path) -> Path:
    """Compare all methods of a table with LDA, else with the first one, in ``pairs.json``."""
    used = [name for name in registry() if name in {cell.method for cell in cells}]
    base = next((name for name in ("lda", "ncm") if name in used), used[0])
    file = output / "pairs.json"
    text = json.dumps(pairs_against(cells, base, used), indent=1)
    file.write_text(f"{text}\n", encoding="utf-8")
    return file


def methods_table(cells: Sequence[Cell], backbone: str, metric: str = FINAL, **how: Any) -> Table:
    """Methods x data sets with one foundation model, beside the paper's Table 1."""
    name, title = "table1", f"Table 1: methods x data sets, {published.title(backbone)}"
    if metric != FINAL:
        name, title = f"table1-{metric.replace('_', '-')}", f"{title}: {METRICS[metric]}"
    (main,) = published.MAIN_MODEL
    return accuracy_table(name, title, cells, [backbone], main=main, metric=metric, **how)


def _whole(plan: Plan) -> bool:
    return plan.classes is None and plan.per_class is None


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


def draw_curves(cells: Sequence[Cell], output: Path) -> list[Path]:
    """Accuracy after each task: a file with one line per run and task, and its plots."""
    specs = [spec for spec in registry().values() if spec.name in {cell.method for cell in cells}]
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
    files = [write_csv(curves, output, "curves")]
    components = 5000 if any(spec.name.startswith("klda") for spec in specs) else None
    titles = {spec.name: spec.title for spec in specs}
    for name, (title, groups) in _CURVE_PLOTS.items():
        own = {spec.name for spec in specs if spec.group in groups}
        sets = curves.dataset[curves.method.isin(own)]
        part = curves[curves.method.isin(own | set(_ALWAYS)) & curves.dataset.isin(sets)]
        if len(part):
            file = output / f"{name}.png"
            files.append(plots.draw_curves(part, titles, n_seeds(cells), file, components, title))
    return files


def models_table(
    name: str, title: str, plan: Plan, output: Path, notify: Notify = _silent
) -> Product:
    """Methods x foundation models x data sets: the paper's Tables 2 and 3."""
    cells = walk(plan, Results.of(output), notify)
    table = accuracy_table(name, title, cells, plan.backbones, whole=_whole(plan))
    return Product.of(table, output, cells)


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
    table = make_table(name, title, cells, rows, row_of)
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


def memory_counts(
    output: Path, dataset: str, dimension: int, classes: int, backbone: str = "minilm"
) -> Product:
    """Count what each method keeps, as the paper counts, and as measured in the output folder."""
    counts = memory.count(dimension, classes, memory.held(Results.of(output), dataset, backbone))
    title = f"Memory: d = {dimension}, M = {classes} classes ({dataset})"
    files = [write_csv(counts, output, "memory")]
    shown = counts[["title", "formula", "parameters"]].rename(columns={"title": "method"})
    megabytes = counts[["bytes", "held_bytes"]].astype(float) / 1e6
    shown[["MB (float32)", "MB held, measured"]] = megabytes
    return Product(shown, title, files)


def runtime(plan: Plan, output: Path, notify: Notify = _silent) -> Product:
    """Seconds and memory of runs: mean over seeds, one line per method, data set and machine.

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
    frame = runs.groupby(["dataset", "method", "machine"], sort=False).agg(ways).reset_index()
    frame = frame.round(dict.fromkeys(means, 3) | {"peak_memory_mb": 0})
    files = [write_csv(frame, output, "runtime")]
    return Product(frame, f"Run time on {plan.backbones[0]} features", files, cells)
