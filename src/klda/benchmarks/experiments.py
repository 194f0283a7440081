"""The paper's tables and figures, and two of our own: each runs its grid and writes its files."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from klda.benchmarks import datasets, figures, memory, paper
from klda.benchmarks.methods import MethodSpec, registry
from klda.benchmarks.results import ResultStore
from klda.benchmarks.suite import Cell, Notify, Plan, walk
from klda.benchmarks.tables import Entry, Table, entry_of, notes_of, pairs_against
from klda.errors import KldaError

GAMMAS = (0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 1.0, 3.0)
COMPONENTS = (250, 500, 1000, 2000, 5000)
RESULTS = "results.jsonl"


@dataclass
class Product:
    """What an experiment made.

    Parameters
    ----------
    tables : list of Table
        To be printed.
    files : list of Path
        Written.
    cells : list of Cell
        Runs behind them.
    """

    tables: list[Table] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)

    @property
    def n_run(self) -> int:
        """Runs made now."""
        return sum(cell.status == "done" for cell in self.cells)

    @property
    def n_found(self) -> int:
        """Runs found in the results."""
        return sum(cell.status == "found" for cell in self.cells)


def store_in(output: str | Path) -> ResultStore:
    """Return the results file of an output folder."""
    return ResultStore(Path(output) / RESULTS)


def _silent(message: str) -> None:
    pass


def table1(plan: Plan, output: Path, notify: Notify = _silent) -> Product:
    """Methods x text sets, the curves behind them, and the paired comparison.

    Parameters
    ----------
    plan : Plan
        Its first backbone is used.
    output : Path
        Folder of results and files.
    notify : callable
        Told about progress.
    """
    plan = dataclasses.replace(plan, backbones=plan.backbones[:1])
    cells = walk(plan, store_in(output), notify)
    backbone = plan.backbones[0]
    title = f"Table 1: methods x data sets, {backbone}"
    table = _methods_table("table1", title, plan, cells)
    table.notes.insert(0, _stand_in(backbone, paper.MAIN_TEXT_MODEL))
    product = Product([table], table.write(output), cells)
    product.files.append(figures.table_figure(table, output / "table1.png"))
    product.files += _curves(plan, cells, output)
    product.files.append(_write_pairs(plan.methods, cells, output))
    return product


def _stand_in(backbone: str, model: str) -> str:
    if backbone == model:
        return f"The paper's figures and ours are both with {model}."
    return (
        f"{backbone} is a stand-in for the paper's models: its figures here are with {model}, so a "
        "difference is between models as much as between programs."
    )


def _methods_table(name: str, title: str, plan: Plan, cells: Sequence[Cell]) -> Table:
    columns = list(dict.fromkeys(cell.dataset for cell in cells))
    entries: dict[tuple[str, str], Entry] = {}
    for spec in plan.methods:
        for column in columns:
            own = [cell for cell in cells if (cell.method, cell.dataset) == (spec.name, column)]
            published = paper.figure(column, spec.name, plan.backbones[0])
            entries[spec.name, column] = entry_of(own, published)
    titles = [_title(column) for column in columns]
    rows = [spec.title for spec in plan.methods]
    names = [spec.name for spec in plan.methods]
    notes = notes_of(entries, cells)
    return Table(name, title, names, rows, columns, titles, entries, notes, plan.command)


def _title(dataset: str) -> str:
    info = datasets.DATASETS.get(dataset)
    return info.title if info is not None else dataset


# Methods of very different accuracy would flatten each other, so they share no plot.
_CURVE_PLOTS = {
    "curves": ("Accuracy while learning", ("paper", "ours", "peer")),
    "curves-authors": ("The authors' form beside ours", ("reference",)),
    "curves-tuned": ("Fine-tuned methods beside ours", ("fine-tuned",)),
}
_ALWAYS = ("lda", "klda", "klda-default")
_Curve = tuple[list[int], list[float]]


def _curves(plan: Plan, cells: Sequence[Cell], output: Path) -> list[Path]:
    """Accuracy after each task: a table with one line a run and task, and its plots."""
    measured = [
        cell
        for cell in cells
        if cell.record is not None
        and len(cell.record["seen_accuracy"]) > 1
        and None not in cell.record["seen_accuracy"]
    ]
    if not measured:
        return []
    files = [output / "curves.csv"]
    with files[0].open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["dataset", "method", "seed", "task", "samples_seen", "accuracy"])
        for cell in measured:
            for task, point in enumerate(zip(*_curve(cell), strict=True), start=1):
                writer.writerow([cell.dataset, cell.method, cell.seed, task, *point])
    known = registry()
    kernel = any(spec.name.startswith("klda") for spec in plan.methods)
    for name, (title, groups) in _CURVE_PLOTS.items():
        own = {spec.name for spec in plan.methods if spec.group in groups}
        curves: dict[str, dict[str, list[_Curve]]] = {}
        for dataset in dict.fromkeys(cell.dataset for cell in measured if cell.method in own):
            methods = curves.setdefault(_title(dataset), {})
            here = [cell for cell in measured if cell.dataset == dataset]
            for cell in here:
                if cell.method in own | set(_ALWAYS):
                    seeds = sum(other.method == cell.method for other in here)
                    # Another order of classes is another curve: fewer seeds must be seen to be so.
                    few = f" ({seeds} of {plan.seeds} seeds)" if seeds < plan.seeds else ""
                    label = known[cell.method].title + few
                    methods.setdefault(label, []).append(_curve(cell))
        if curves:
            file = output / f"{name}.png"
            components = 5000 if kernel else None
            figures.curve_figure(curves, file, n_components=components, title=title)
            files.append(file)
    return files


def _curve(cell: Cell) -> _Curve:
    assert cell.record is not None
    return cell.record["samples_seen"], cell.record["seen_accuracy"]


def _write_pairs(methods: Sequence[MethodSpec], cells: Sequence[Cell], output: Path) -> Path:
    names = [spec.name for spec in methods]
    base = next((name for name in ("lda", "ncm") if name in names), names[0])
    pairs = pairs_against(cells, base, names)
    file = output / "pairs.json"
    file.write_text(json.dumps(pairs, indent=1) + "\n", encoding="utf-8")
    return file


def models_table(
    name: str, title: str, plan: Plan, output: Path, main_model: str, notify: Notify = _silent
) -> Product:
    """Methods x foundation models x data sets: the paper's Tables 2 and 3.

    Parameters
    ----------
    name, title : str
        Stem of the files and heading.
    plan : Plan
        Its backbones are the rows.
    output : Path
        Folder of results and files.
    main_model : str
        The paper's main model for these inputs.
    notify : callable
        Told about progress.
    """
    cells = walk(plan, store_in(output), notify)
    columns = list(dict.fromkeys(cell.dataset for cell in cells))
    entries: dict[tuple[str, str], Entry] = {}
    names, rows = [], []
    for backbone in plan.backbones:
        for spec in plan.methods:
            row = f"{backbone}/{spec.name}"
            names.append(row)
            rows.append(f"{backbone}: {spec.title}")
            for column in columns:
                own = [
                    cell
                    for cell in cells
                    if (cell.backbone, cell.method, cell.dataset) == (backbone, spec.name, column)
                ]
                published = paper.FIGURES.get((backbone, column, spec.name))
                entries[row, column] = entry_of(own, published)
    notes = [
        f"{backbone} is a stand-in: the paper did not use it (its main model here: {main_model})."
        for backbone in plan.backbones
        if backbone not in (*paper.TEXT_MODELS, *paper.IMAGE_MODELS)
    ]
    notes += notes_of(entries, cells)
    titles = [_title(column) for column in columns]
    table = Table(name, title, names, rows, columns, titles, entries, notes, plan.command)
    files = table.write(output)
    files.append(figures.table_figure(table, output / f"{name}.png"))
    return Product([table], files, cells)


def sweep(
    plan: Plan,
    output: Path,
    parameter: str,
    values: Sequence[float],
    notify: Notify = _silent,
) -> Product:
    """KLDA's final accuracy over one of its parameters: the paper's figures.

    Parameters
    ----------
    plan : Plan
        Its methods must be KLDA variants with this parameter; the first is swept.
    output : Path
        Folder of results and files.
    parameter : {"gamma", "n_components"}
        What varies.
    values : sequence of float
        Its values.
    notify : callable
        Told about progress.
    """
    spec = plan.methods[0]
    product = Product()
    sweeps: dict[str, dict[float, list[float]]] = {}
    for value in values:
        options = {spec.name: plan.options.get(spec.name, {}) | {parameter: value}}
        step = dataclasses.replace(plan, methods=[spec], options=options, curve="end")
        cells = walk(step, store_in(output), notify)
        product.cells += cells
        for cell in cells:
            if cell.record is not None:
                points = sweeps.setdefault(_title(cell.dataset), {})
                points.setdefault(value, []).append(cell.record["metrics"]["final_accuracy"])
    if not sweeps:
        raise KldaError("No run was possible: " + "; ".join({c.reason for c in product.cells}))
    name = f"figure-{'gamma' if parameter == 'gamma' else 'components'}"
    label = "gamma" if parameter == "gamma" else "number of random features D"
    title = f"{spec.title} on {plan.backbones[0]}: accuracy over {label}"
    product.tables.append(_sweep_table(name, title, plan, product.cells, parameter, values))
    product.files += product.tables[0].write(output)
    product.files.append(
        figures.sweep_figure(sweeps, output / f"{name}.png", xlabel=label, title=title)
    )
    return product


def _sweep_table(
    name: str,
    title: str,
    plan: Plan,
    cells: Sequence[Cell],
    parameter: str,
    values: Sequence[float],
) -> Table:
    columns = list(dict.fromkeys(cell.dataset for cell in cells))
    entries: dict[tuple[str, str], Entry] = {}
    for value in values:
        for column in columns:
            own = [
                cell
                for cell in cells
                if cell.dataset == column
                and cell.record is not None
                and cell.record["settings"]["options"][parameter] == value
            ]
            entries[f"{value:g}", column] = entry_of(own, None)
    names = [f"{value:g}" for value in values]
    rows = [f"{parameter} = {value:g}" for value in values]
    titles = [_title(column) for column in columns]
    notes = notes_of(entries, cells)
    return Table(name, title, names, rows, columns, titles, entries, notes, plan.command)


def memory_counts(
    output: Path, dataset: str, dimension: int, classes: int
) -> tuple[list[memory.Count], list[Path]]:
    """Numbers and bytes that each method keeps, as the paper counts and as measured.

    Parameters
    ----------
    output : Path
        Folder of results, from which measured bytes are taken, and of files.
    dataset : str
        Data set whose runs are looked up.
    dimension, classes : int
        Length of a feature row and number of classes.
    """
    held = {}
    for record in store_in(output).latest().values():
        settings = record["settings"]
        whole = settings["dataset"] == dataset and not settings["subset"]
        own = settings["options"].get("n_components") in (None, 5000, 10_000)
        if whole and own and settings["layers"] == "last":
            held[settings["method"]] = record["held_bytes"]
    counts = memory.count(dimension, classes, held=held)
    file = output / "memory.csv"
    output.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["method", "formula", "parameters", "bytes", "held_bytes"])
        for c in counts:
            writer.writerow([c.method, c.formula, c.parameters, c.bytes, c.held_bytes or ""])
    data = [dataclasses.asdict(c) | {"bytes": c.bytes} for c in counts]
    (output / "memory.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    plot = figures.bar_figure(
        [
            (c.title, c.bytes / 1e6, None if not c.held_bytes else c.held_bytes / 1e6)
            for c in counts
        ],
        output / "memory.png",
        labels=("as the paper counts (float32)", "held by the fitted model, measured"),
        xlabel="MB (logarithmic)",
        title=f"Memory: d = {dimension}, M = {classes} classes ({dataset})",
    )
    return counts, [file, output / "memory.json", plot]


def runtime_lines(cells: Sequence[Cell]) -> list[dict[str, Any]]:
    """Seconds and memory of runs: mean over seeds, one line a method and data set.

    Parameters
    ----------
    cells : sequence of Cell
        Runs measured at the end only, so that learning is not interrupted by solving.
    """
    lines = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        for method in dict.fromkeys(cell.method for cell in cells):
            records = [
                cell.record
                for cell in cells
                if (cell.dataset, cell.method) == (dataset, method) and cell.record is not None
            ]
            if not records:
                continue
            n = len(records)
            rows = records[0]["rows_predicted"]
            learn = sum(record["seconds"]["learn"] for record in records) / n
            predict = sum(record["seconds"]["predict_last"] for record in records) / n
            lines.append(
                {
                    "dataset": dataset,
                    "method": method,
                    "seeds": n,
                    "learn_seconds": round(learn, 3),
                    "solve_and_predict_seconds": round(predict, 3),
                    "test_rows": rows,
                    "peak_memory_mb": round(
                        max(record["peak_memory_bytes"] for record in records) / 1e6
                    ),
                }
            )
    return lines


def write_runtime(lines: Sequence[dict[str, Any]], output: Path) -> list[Path]:
    """Write ``runtime.csv``, ``runtime.json`` and ``runtime.png``; return their paths."""
    output.mkdir(parents=True, exist_ok=True)
    file = output / "runtime.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    (output / "runtime.json").write_text(json.dumps(list(lines), indent=1) + "\n", encoding="utf-8")
    titles = {name: spec.title for name, spec in registry().items()}
    methods = list(dict.fromkeys(line["method"] for line in lines))
    rows = []
    for method in methods:
        own = [line for line in lines if line["method"] == method]
        learn = sum(line["learn_seconds"] for line in own) / len(own)
        solve = sum(line["solve_and_predict_seconds"] for line in own) / len(own)
        rows.append((titles[method], max(learn, 1e-3), max(solve, 1e-3)))
    plot = figures.bar_figure(
        rows,
        output / "runtime.png",
        labels=("learn all tasks", "solve once and predict the test set"),
        xlabel="seconds, mean over data sets and seeds (logarithmic)",
        title="Run time",
    )
    return [file, output / "runtime.json", plot]
