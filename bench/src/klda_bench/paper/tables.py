"""The paper's tables and figures, and two of our own: each runs its grid and writes its files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
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
    pairs_against,
    write_csv,
)
from klda_bench.results import Results
from klda_bench.runs.grid import Notify, Plan, walk
from klda_bench.runs.metrics import FINAL, METRICS


def _silent(message: str) -> None:
    pass


def _written(table: Table, output: Path, name: str) -> Table:
    table.files.append(write_csv(table.cells, output, name, float_format="%.4f"))
    return table


def table1(plan: Plan, output: Path, notify: Notify = _silent, *, metric: str = FINAL) -> Table:
    """Methods x text sets, the curves behind them, and the paired comparison.

    The methods of the plan are run with its first foundation model. `metric` is one of
    :data:`METRICS`.
    """
    if metric not in METRICS:
        raise KldaError(f"metric={metric!r} is not known: use {', '.join(METRICS)}.")
    plan = dataclasses.replace(plan, backbones=plan.backbones[:1])
    runs = walk(plan, Results.of(output), notify)
    table = methods_table(runs, plan.backbones[0], metric=metric, whole=_whole(plan))
    table.notes += [note for spec in plan.methods if (note := _options_note(spec, plan, runs))]
    name = "table1" if metric == FINAL else f"table1-{metric.replace('_', '-')}"
    table = _written(table, output, name)
    table.files += [*draw_curves(runs, output), write_pairs(runs, output)]
    return table


def write_pairs(runs: pd.DataFrame, output: Path) -> Path:
    """Compare all methods of a table with LDA, else with the first one, in ``pairs.json``."""
    used = [name for name in registry(runs.method) if name in set(runs.method)]
    base = next((name for name in ("lda", "ncm") if name in used), used[0])
    file = output / "pairs.json"
    text = json.dumps(pairs_against(runs, base, used), indent=1)
    file.write_text(f"{text}\n", encoding="utf-8")
    return file


def methods_table(runs: pd.DataFrame, backbone: str, metric: str = FINAL, **how: Any) -> Table:
    """Methods x data sets with one foundation model, beside the paper's Table 1."""
    title = f"Table 1: methods x data sets, {published.title(backbone)}"
    title += "" if metric == FINAL else f": {METRICS[metric]}"
    (main,) = published.MAIN_MODEL
    return accuracy_table(title, runs, [backbone], main=main, metric=metric, **how)


def _whole(plan: Plan) -> bool:
    return plan.classes is None and plan.per_class is None


def _options_note(spec: MethodSpec, plan: Plan, runs: pd.DataFrame) -> str:
    """Say which options of a row are not its method's defaults, and for which data sets."""
    try:
        usual = dataclasses.replace(plan, options={}).options_of(spec, "", plan.backbones[0])
    except MissingDependencyError:
        usual = {}
    found: dict[str, dict[str, None]] = {}
    for run in runs[(runs.method == spec.name) & runs.options.notna()].itertuples():
        options = run.options.items()
        own = ", ".join(f"{k}={v}" for k, v in options if k not in usual or usual[k] != v)
        found.setdefault(own or "defaults", {})[data.title(run.dataset)] = None
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


def draw_curves(runs: pd.DataFrame, output: Path) -> list[Path]:
    """Accuracy after each task: a file with one line per run and task, and its plots."""
    known = registry(runs.method)
    specs = [spec for name, spec in known.items() if name in set(runs.method)]
    curves = runs[["dataset", "method", "seed"]].copy()
    curves["accuracy"] = [record["seen_accuracy"] if record else [] for record in runs.record]
    curves = curves[[len(found) > 1 and None not in found for found in curves.accuracy]]
    if curves.empty:
        return []
    curves.insert(3, "task", [range(1, len(found) + 1) for found in curves.accuracy])
    curves.insert(4, "samples_seen", [r["samples_seen"] for r in runs.record[curves.index]])
    curves = curves.explode(["task", "samples_seen", "accuracy"])
    files = [write_csv(curves, output, "curves")]
    components = 5000 if any(spec.name.startswith("klda") for spec in specs) else None
    titles = {spec.name: spec.title for spec in specs}
    for name, (title, groups) in _CURVE_PLOTS.items():
        own = {spec.name for spec in specs if spec.group in groups}
        sets = curves.dataset[curves.method.isin(own)]
        part = curves[curves.method.isin(own | set(_ALWAYS)) & curves.dataset.isin(sets)]
        if len(part):
            file, seeds = output / f"{name}.png", runs.seed.nunique()
            files.append(plots.draw_curves(part, titles, seeds, file, title, components))
    return files


def models_table(
    name: str, title: str, plan: Plan, output: Path, notify: Notify = _silent
) -> Table:
    """Methods x foundation models x data sets: the paper's Tables 2 and 3."""
    runs = walk(plan, Results.of(output), notify)
    table = accuracy_table(title, runs, plan.backbones, whole=_whole(plan))
    return _written(table, output, name)


def sweep(
    plan: Plan, output: Path, parameter: str, values: Sequence[Any], notify: Notify = _silent
) -> Table:
    """Draw KLDA's final accuracy over ``gamma`` or ``n_components``: the paper's figures.

    The plan has one method, a KLDA variant.
    """
    if len(plan.methods) > 1:
        names = ", ".join(spec.name for spec in plan.methods)
        raise KldaError(f"method is {names}: give one; the next can go to another --output.")
    spec, steps = plan.methods[0], []
    try:
        values = [(float if parameter == "gamma" else int)(value) for value in values]
    except ValueError as error:
        raise KldaError(f"values: {error} (of {parameter}).") from error
    for value in values:
        options = {spec.name: plan.options.get(spec.name, {}) | {parameter: value}}
        step = dataclasses.replace(plan, methods=[spec], options=options, curve="end")
        steps.append(walk(step, Results.of(output), notify).assign(value=value, row=f"{value:g}"))
    runs = pd.concat(steps, ignore_index=True)
    name = f"figure-{'gamma' if parameter == 'gamma' else 'components'}"
    label = "gamma" if parameter == "gamma" else "number of random features D"
    title = f"{spec.title} on {plan.backbones[0]}: accuracy over {label}"
    rows = {f"{value:g}": f"{parameter} = {value:g}" for value in values}
    table = _written(make_table(title, runs, rows), output, name)
    lines = _made(runs).assign(method=runs.dataset, dataset=spec.title, accuracy=runs[FINAL])
    sets = {name: data.title(name) for name in runs.dataset}
    file = output / f"{name}.png"
    how: dict[str, Any] = {"ticks": values, "xlabel": label}
    table.files.append(plots.draw_curves(lines, sets, plan.seeds, file, title, **how))
    return table


def _made(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that have a record, of which there must be one."""
    if runs.record.isna().all():
        raise KldaError("No run was possible: " + "; ".join(runs.reason.unique()))
    return runs[runs.record.notna()]


def memory_counts(
    output: Path, dataset: str, dimension: int, classes: int, backbone: str = "minilm"
) -> Table:
    """Count what each method keeps, as the paper counts, and as measured in the output folder."""
    counts = memory.count(dimension, classes, memory.held(Results.of(output), dataset, backbone))
    title = f"Memory: d = {dimension}, M = {classes} classes ({dataset})"
    files = [write_csv(counts, output, "memory")]
    shown = counts[["title", "formula", "parameters"]].rename(columns={"title": "method"})
    megabytes = counts[["bytes", "held_bytes"]].astype(float) / 1e6
    shown[["MB (float32)", "MB held, measured"]] = megabytes
    return Table(title, shown, files=files)


def runtime(plan: Plan, output: Path, notify: Notify = _silent) -> Table:
    """Seconds and memory of runs: mean over seeds, one line per method, data set and machine.

    The plan measures at the end only, so that learning is not interrupted by solving.
    """
    runs = walk(plan, Results.of(output), notify)
    lines = [
        {
            "dataset": run.dataset,
            "method": run.method,
            "machine": describe_machine(run.record["machine"]),
            "seeds": run.seed,
            "learn_seconds": run.record["seconds"]["learn"],
            "solve_and_predict_seconds": run.record["seconds"]["predict_last"],
            "test_rows": run.record["rows_predicted"],
            "peak_memory_mb": run.record["peak_memory_bytes"] / 1e6,
        }
        for run in _made(runs).itertuples()
    ]
    means: dict[str, Any] = dict.fromkeys(("learn_seconds", "solve_and_predict_seconds"), "mean")
    ways = {"seeds": "size", **means, "test_rows": "first", "peak_memory_mb": "max"}
    by_machine = pd.DataFrame(lines).groupby(["dataset", "method", "machine"], sort=False)
    frame = by_machine.agg(ways).reset_index()
    frame = frame.round(dict.fromkeys(means, 3) | {"peak_memory_mb": 0})
    files = [write_csv(frame, output, "runtime")]
    return Table(f"Run time on {plan.backbones[0]} features", frame, runs, files=files)
