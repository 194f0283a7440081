"""The paper's tables and figures, and two of our own: each runs its grid and writes its files."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from klda.errors import KldaError, MissingDependencyError
from klda_bench import datasets, figures, memory, paper
from klda_bench.identity import meaning_of_auto
from klda_bench.methods import Context, MethodSpec, protocol_gamma, registry
from klda_bench.metrics import FINAL, METRICS
from klda_bench.resources import describe_machine
from klda_bench.results import ResultStore
from klda_bench.suite import Cell, Notify, Plan, walk
from klda_bench.tables import Entry, Table, entry_of, notes_of, pairs_against

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
    def failures(self) -> list[Cell]:
        """Runs that an error ended."""
        return [cell for cell in self.cells if cell.status == "failed"]

    @property
    def n_found(self) -> int:
        """Runs found in the results."""
        return sum(cell.status == "found" for cell in self.cells)


def store_in(output: str | Path) -> ResultStore:
    """Return the results file of an output folder."""
    return ResultStore(Path(output) / RESULTS)


def _silent(message: str) -> None:
    pass


def table1(plan: Plan, output: Path, notify: Notify = _silent, *, metric: str = FINAL) -> Product:
    """Methods x text sets, the curves behind them, and the paired comparison.

    The methods of the plan are run. The table also shows the finished runs of other methods and
    seeds in the output folder, where they are of the same data, tasks and foundation model.

    Parameters
    ----------
    plan : Plan
        Its first backbone is used.
    output : Path
        Folder of results and files.
    notify : callable
        Told about progress.
    metric : str
        What the table shows, one of :data:`klda_bench.metrics.METRICS`.
    """
    if metric not in METRICS:
        raise KldaError(f"metric={metric!r} is not known: use {', '.join(METRICS)}.")
    plan = dataclasses.replace(plan, backbones=plan.backbones[:1])
    store = store_in(output)
    cells = walk(plan, store, notify)
    shown = _with_stored(plan, cells, store)
    specs = [spec for spec in registry().values() if spec.name in {cell.method for cell in shown}]
    backbone = plan.backbones[0]
    title = f"Table 1: methods x data sets, {backbone}"
    name = "table1"
    if metric != FINAL:
        title, name = f"{title}: {METRICS[metric]}", f"table1-{metric.replace('_', '-')}"
    table = _methods_table(name, title, plan, specs, shown, metric)
    table.notes.insert(0, _stand_in(backbone, paper.MAIN_TEXT_MODEL))
    product = Product([table], table.write(output), cells)
    product.files.append(figures.table_figure(table, output / f"{name}.png"))
    product.files += _curves(specs, shown, output)
    product.files.append(_write_pairs(specs, shown, output))
    return product


# What may differ between two runs of one table: all else in their settings must agree.
_FREE = ("method", "options", "auto", "seed")


def _place_of(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _FREE}


def _setting_of(settings: dict[str, Any]) -> tuple[Any, Any]:
    return settings["options"], settings["auto"]


def _with_stored(plan: Plan, cells: Sequence[Cell], store: ResultStore) -> list[Cell]:
    """Add to the runs of a plan the other finished ones that belong into the same table."""
    places = {cell.dataset: _place_of(cell.settings) for cell in cells if cell.settings}
    records = [
        record
        for record in store.latest().values()
        if places.get(record["settings"]["dataset"]) == _place_of(record["settings"])
    ]
    wanted = _settings_shown(plan, cells, records)
    stored: dict[tuple[str, str, int], Cell] = {}
    for record in records:
        settings = record["settings"]
        method, dataset, seed = settings["method"], settings["dataset"], settings["seed"]
        if wanted.get((method, dataset)) == _setting_of(settings):
            cell = Cell(settings["backbone"], dataset, method, seed, "found", record)
            stored[dataset, method, seed] = dataclasses.replace(cell, settings=settings)
    own = {(cell.dataset, cell.method, cell.seed) for cell in cells if cell.record is not None}
    gaps = [
        cell
        for cell in cells
        if cell.record is not None or (cell.dataset, cell.method, cell.seed) not in stored
    ]
    return gaps + [cell for where, cell in stored.items() if where not in own]


def _settings_shown(
    plan: Plan, cells: Sequence[Cell], records: Sequence[dict[str, Any]]
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
        if spec.needs == "inputs" or _is_default(spec, plan, settings):
            wanted[where] = _setting_of(settings)
    return wanted


def _is_default(spec: MethodSpec, plan: Plan, settings: dict[str, Any]) -> bool:
    options = _default_options(spec, plan)
    return _setting_of(settings) == (options, meaning_of_auto(options))


def _default_options(spec: MethodSpec, plan: Plan) -> dict[str, Any]:
    gamma = plan.gamma
    if gamma is None:
        gamma = protocol_gamma(plan.backbones[0], plan.layers)
    return spec.options(Context(plan.backbones[0], gamma))


def _options_note(spec: MethodSpec, plan: Plan, cells: Sequence[Cell]) -> str:
    """Say which options of a row are not its method's defaults, and for which data sets."""
    try:
        usual = _default_options(spec, plan)
    except MissingDependencyError:
        usual = {}
    found: dict[str, list[str]] = {}
    for cell in cells:
        if cell.method == spec.name and cell.settings:
            options = cell.settings["options"].items()
            own = ", ".join(f"{k}={v}" for k, v in options if k not in usual or usual[k] != v)
            sets = found.setdefault(own or "defaults", [])
            if _title(cell.dataset) not in sets:
                sets.append(_title(cell.dataset))
    if list(found) in ([], ["defaults"]):
        return ""
    if len(found) == 1:
        return f"{spec.title}: {next(iter(found))}."
    listed = "; ".join(f"{own} ({', '.join(sets)})" for own, sets in found.items())
    return f"{spec.title}: {listed}."


def _stand_in(backbone: str, model: str) -> str:
    if backbone == model:
        return f"The paper's figures and ours are both with {model}."
    return (
        f"{backbone} is a stand-in for the paper's models: its figures here are with {model}, so a "
        "difference is between models as much as between programs."
    )


def _methods_table(
    name: str,
    title: str,
    plan: Plan,
    specs: Sequence[MethodSpec],
    cells: Sequence[Cell],
    metric: str,
) -> Table:
    columns = list(dict.fromkeys(cell.dataset for cell in cells))
    seeds = max(plan.seeds, len({cell.seed for cell in cells}))
    entries: dict[tuple[str, str], Entry] = {}
    for spec in specs:
        for column in columns:
            own = [cell for cell in cells if (cell.method, cell.dataset) == (spec.name, column)]
            published = None
            if metric == FINAL and _as_in_the_paper(plan, cells, column):
                published = paper.figure(column, spec.name, plan.backbones[0])
            entries[spec.name, column] = entry_of(own, published, metric, seeds)
    notes = notes_of(entries, cells)
    notes += [note for spec in specs if (note := _options_note(spec, plan, cells))]
    return Table(
        name,
        title,
        [spec.name for spec in specs],
        [spec.title for spec in specs],
        columns,
        [_title(column) for column in columns],
        entries,
        notes,
        plan.command,
        metric,
    )


def _as_in_the_paper(plan: Plan, cells: Sequence[Cell], column: str) -> bool:
    """Whether a column is of the paper's split and all its classes: else figures don't compare."""
    whole = plan.split == "paper" and plan.classes is None and plan.per_class is None
    used = [cell.settings for cell in cells if cell.dataset == column and cell.settings]
    return whole and all(own["split"] == "paper" and not own["subset"] for own in used)


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


def _curves(specs: Sequence[MethodSpec], cells: Sequence[Cell], output: Path) -> list[Path]:
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
    kernel = any(spec.name.startswith("klda") for spec in specs)
    most = len({cell.seed for cell in cells})
    for name, (title, groups) in _CURVE_PLOTS.items():
        own = {spec.name for spec in specs if spec.group in groups}
        curves: dict[str, dict[str, list[_Curve]]] = {}
        for dataset in dict.fromkeys(cell.dataset for cell in measured if cell.method in own):
            methods = curves.setdefault(_title(dataset), {})
            here = [cell for cell in measured if cell.dataset == dataset]
            for cell in here:
                if cell.method in own | set(_ALWAYS):
                    seeds = sum(other.method == cell.method for other in here)
                    # Another order of classes is another curve: fewer seeds must be seen to be so.
                    few = f" ({seeds} of {most} seeds)" if seeds < most else ""
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
                published = None
                if _as_in_the_paper(plan, cells, column):
                    published = paper.FIGURES.get((backbone, column, spec.name))
                entries[row, column] = entry_of(own, published, seeds=plan.seeds)
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
        Its one method must be a KLDA variant with this parameter.
    output : Path
        Folder of results and files.
    parameter : {"gamma", "n_components"}
        What varies.
    values : sequence of float
        Its values.
    notify : callable
        Told about progress.
    """
    if len(plan.methods) > 1:
        names = ", ".join(spec.name for spec in plan.methods)
        raise KldaError(f"method is {names}: give one; the next can go to another --output.")
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
    output: Path, dataset: str, dimension: int, classes: int, backbone: str = "minilm"
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
    backbone : str
        Foundation model of these rows.
    """
    held = _held(store_in(output), dataset, backbone)
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


def _held(store: ResultStore, dataset: str, backbone: str) -> dict[str, int]:
    """Measured bytes of each method at its default settings, on the whole data set."""
    known = registry()
    gamma = protocol_gamma(backbone)
    held = {}
    for record in store.latest().values():
        settings = record["settings"]
        spec = known.get(settings["method"])
        if spec is None or spec.needs != "features" or settings["split"] == "official":
            continue
        place = (settings["dataset"], settings["backbone"], settings["layers"], settings["subset"])
        usual = settings["options"] == spec.options(Context(backbone, gamma))
        if usual and place == (dataset, backbone, "last", ""):
            held[spec.name] = record["held_bytes"]
    return held


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
                    "machine": "; ".join(
                        dict.fromkeys(describe_machine(record["machine"]) for record in records)
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
