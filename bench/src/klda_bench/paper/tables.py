"""The paper's tables and figures: each runs its grid and draws what belongs to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from klda.errors import KldaError, MissingDependencyError
from klda_bench import data, published
from klda_bench.display import plots
from klda_bench.methods import MethodSpec, registry
from klda_bench.paper.accuracy_table import Table, accuracy_table, make_table
from klda_bench.results import Results
from klda_bench.runs.grid import Notify, Plan, walk
from klda_bench.runs.metrics import FINAL


def _silent(message: str) -> None:
    pass


def table1(plan: Plan, output: Path, notify: Notify = _silent) -> Table:
    """Methods x text sets with the plan's first foundation model, and the curves behind them."""
    plan = dataclasses.replace(plan, backbones=plan.backbones[:1])
    runs = walk(plan, Results.of(output), notify)
    table = methods_table(runs, plan.backbones[0])
    table.notes += [note for spec in plan.methods if (note := _options_note(spec, plan, runs))]
    table.files += draw_curves(runs, output)
    return table


def methods_table(runs: pd.DataFrame, backbone: str, **how: Any) -> Table:
    """Methods x data sets with one foundation model, beside the paper's Table 1."""
    title = f"Table 1: methods x data sets, {published.title(backbone)}"
    (main,) = published.MAIN_MODEL
    return accuracy_table(title, runs, [backbone], main=main, **how)


def _options_note(spec: MethodSpec, plan: Plan, runs: pd.DataFrame) -> str:
    """Say which options of a row are not its method's defaults."""
    try:
        usual = dataclasses.replace(plan, options={}).options_of(spec, plan.backbones[0])
    except MissingDependencyError:
        return ""
    used = runs.options[(runs.method == spec.name) & runs.options.notna()]
    own = [f"{k}={v}" for k, v in dict(*used[:1]).items() if k not in usual or usual[k] != v]
    return f"{spec.title}: {', '.join(own)}." if own else ""


# Methods of very different accuracy would flatten each other, so they share no plot.
_CURVE_PLOTS = {
    "curves": ("Accuracy while learning", ("paper", "ours", "peer", "own")),
    "curves-authors": ("The authors' form beside ours", ("reference",)),
    "curves-tuned": ("Fine-tuned methods beside ours", ("fine-tuned",)),
}
_ALWAYS = ("lda", "klda", "klda-default")


def draw_curves(runs: pd.DataFrame, output: Path) -> list[Path]:
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
            files.append(plots.draw_curves(part, titles, seeds, file, title, components))
    return files


def models_table(title: str, plan: Plan, output: Path, notify: Notify = _silent) -> Table:
    """Methods x foundation models x data sets: the paper's Tables 2 and 3."""
    return accuracy_table(title, walk(plan, Results.of(output), notify), plan.backbones)


def sweep(
    plan: Plan, output: Path, parameter: str, values: Sequence[Any], notify: Notify = _silent
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
    sets = {name: data.title(name) for name in made.dataset}
    file = output / f"{name}.png"
    how: dict[str, Any] = {"ticks": values, "xlabel": label}
    table.files.append(plots.draw_curves(lines, sets, plan.seeds, file, title, **how))
    return table
