"""The paper's tables and figures, and one cell again: each runs its grid and draws it."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from klda.errors import KldaError
from klda_bench.data import catalog
from klda_bench.data.catalog import DATASETS
from klda_bench.display import plots
from klda_bench.methods.registry import registry, select
from klda_bench.paper import published
from klda_bench.paper.accuracy_table import (
    Table,
    accuracy_table,
    make_table,
    shown_runs,
    usual_layers,
)
from klda_bench.results import Notify, Results, silent
from klda_bench.runs.grid import GridPlan, walk
from klda_bench.runs.metrics import FINAL, spread


def table1(plan: GridPlan, output: Path, notify: Notify = silent) -> Table:
    """Methods x text sets with the plan's first foundation model, and the curves behind them."""
    plan = dataclasses.replace(plan, backbones=plan.backbones[:1])
    runs = walk(plan, Results.of(output), notify)
    title = f"Table 1: methods x data sets, {published.title(plan.backbones[0])}"
    table = accuracy_table(title, runs, plan.backbones, by_model=False)
    for spec in plan.methods:
        if given := plan.options.get(spec.name):
            table.notes.append(f"{spec.title}: {', '.join(f'{k}={v}' for k, v in given.items())}.")
    table.files += curve_plots(runs, output)
    return table


# Methods of very different accuracy would flatten each other, so they share no plot.
_CURVE_PLOTS = {
    "curves": ("Accuracy while learning", ("paper", "ours", "peer", "own")),
    "curves-authors": ("The authors' form beside ours", ("reference",)),
    "curves-tuned": ("Fine-tuned methods beside ours", ("fine-tuned",)),
}
_ALWAYS = ("lda", "klda", "klda-default")


def curve_plots(runs: pd.DataFrame, output: Path) -> list[Path]:
    """Draw accuracy after each task, of runs that were measured then."""
    known = registry(runs.method)
    specs = [spec for name, spec in known.items() if name in set(runs.method)]
    curves = runs[["dataset", "method", "seed"]].copy()
    curves["accuracy"] = [record["seen_accuracy"] if record else [] for record in runs.record]
    curves = curves[[len(found) > 1 and None not in found for found in curves.accuracy]]
    curves["task"] = [range(1, len(found) + 1) for found in curves.accuracy]
    curves["samples_seen"] = [record["samples_seen"] for record in runs.record[curves.index]]
    curves = curves.explode(["task", "samples_seen", "accuracy"])
    components = 5000 if any(spec.name.startswith("klda") for spec in specs) else None
    titles = {spec.name: spec.title for spec in specs}
    files = []
    for name, (title, groups) in _CURVE_PLOTS.items():
        own = {spec.name for spec in specs if spec.group in groups}
        sets = curves.dataset[curves.method.isin(own)]
        part = curves[curves.method.isin(own | set(_ALWAYS)) & curves.dataset.isin(sets)]
        if len(part):
            file, seeds = output / f"{name}.png", runs.seed.nunique()
            files.append(plots.lines(part, titles, seeds, file, title, components))
    return files


def models_table(plan: GridPlan, output: Path, title: str, notify: Notify = silent) -> Table:
    """Methods x foundation models x data sets: the paper's Tables 2 and 3."""
    return accuracy_table(title, walk(plan, Results.of(output), notify), plan.backbones)


def sweep(
    plan: GridPlan, output: Path, parameter: str, values: Sequence[Any], notify: Notify = silent
) -> Table:
    """Draw KLDA's final accuracy over ``gamma`` or ``n_components``: the paper's figures.

    The plan has one method, a KLDA variant.
    """
    if len(plan.methods) > 1:
        names = ", ".join(spec.name for spec in plan.methods)
        raise KldaError(f"methods={names!r}: give one; the next can go to another --output.")
    spec, steps = plan.methods[0], []
    try:
        values = [(float if parameter == "gamma" else int)(value) for value in values]
    except ValueError as error:
        raise KldaError(f"values: {error} (of {parameter}).") from error
    for value in values:
        options = {spec.name: plan.options.get(spec.name, {}) | {parameter: value}}
        step = dataclasses.replace(plan, methods=[spec], options=options)
        steps.append(walk(step, Results.of(output), notify).assign(value=value, row=f"{value:g}"))
    runs = pd.concat(steps, ignore_index=True)
    if runs.record.isna().all():
        raise KldaError("No run was possible: " + "; ".join(runs.reason.unique()))
    name = f"figure-{'gamma' if parameter == 'gamma' else 'components'}"
    label = "gamma" if parameter == "gamma" else "number of random features D"
    title = f"{spec.title} on {plan.backbones[0]}: accuracy over {label}"
    table = make_table(title, runs, {f"{value:g}": f"{parameter} = {value:g}" for value in values})
    made = runs[runs.record.notna()]
    lines = made.assign(method=made.dataset, dataset=spec.title, accuracy=made[FINAL])
    sets = {name: catalog.title(name) for name in made.dataset}
    file = output / f"{name}.png"
    how: dict[str, Any] = {"ticks": values, "xlabel": label}
    table.files.append(plots.lines(lines, sets, plan.seeds, file, title, **how))
    return table


_USUAL = {"text": "minilm", "image": "efficientnet-lite0"}


def parse(cell: str) -> tuple[str, str, str]:
    """``klda-e/clinc`` or ``klda-e/clinc/minilm`` as method, data set and foundation model."""
    method, _, rest = cell.partition("/")
    dataset, _, backbone = rest.partition("/")
    if dataset not in DATASETS:
        raise KldaError(
            f"cell={cell!r} must be METHOD/DATASET or METHOD/DATASET/MODEL, with a data set out "
            f"of {', '.join(DATASETS)}."
        )
    if ":" not in method and method not in registry():
        raise KldaError(f"cell={cell!r}: {method!r} is not one of {', '.join(registry())}.")
    (spec,) = select(method)
    return spec.name, dataset, backbone or _USUAL[DATASETS[dataset].modality]


def run_again(cell: str, recorded: Results, notify: Notify, **place: Any) -> Table:
    """Run a cell with the settings of its recorded runs, in a folder that holds none.

    `place` says where: the seeds, device and data of a :class:`GridPlan`.
    """
    method, dataset, backbone = parse(cell)
    known = shown_runs(recorded.latest().values())
    known = known[(known.method == method) & (known.dataset == dataset)]
    known = usual_layers(known, [backbone])
    options = dict(known.options.iloc[0]) if len(known) else {}
    given = {method: options} if options else {}
    plan = GridPlan(select(method), [dataset], [backbone], options=given, **place)
    with tempfile.TemporaryDirectory() as folder:
        runs = walk(plan, Results.of(folder), notify)
    before = known.set_index("seed")[FINAL]
    frame = pd.DataFrame({"seed": runs.seed, "again": runs[FINAL]})
    frame.insert(1, "recorded", before.reindex(runs.seed).to_numpy())
    frame["difference"] = frame.again - frame.recorded
    title = f"{plan.methods[0].title}, {DATASETS[dataset].title}, {published.title(backbone)}"
    notes = [f"Options: {options}"] if options else []
    if theirs := published.FIGURES.get((backbone, method, dataset)):
        notes.append(f"The paper: {theirs['paper_text']}")
    if len(known):
        mean, std, n = before.agg(["mean", "std", "count"])
        notes.append(f"Recorded: {spread(mean, std, int(n))}")
    reasons = [reason for reason in runs.reason.unique() if reason]
    return Table(title, frame, runs, notes + reasons)
