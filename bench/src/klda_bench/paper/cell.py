"""One cell of the paper's tables, run again from nothing and put beside the recorded runs."""

from __future__ import annotations

import dataclasses
import tempfile

import pandas as pd

from klda.errors import KldaError
from klda_bench import published
from klda_bench.data import DATASETS
from klda_bench.methods import select
from klda_bench.paper.accuracy_table import Table, shown_runs, usual_layers
from klda_bench.results import Results
from klda_bench.runs.grid import Notify, Plan, walk
from klda_bench.runs.metrics import FINAL, spread

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
    (spec,) = select(method)
    return spec.name, dataset, backbone or _USUAL[DATASETS[dataset].modality]


def run_again(cell: str, recorded: Results, plan: Plan, notify: Notify) -> Table:
    """Run a cell with the settings of its recorded runs, in a folder that holds none.

    `plan` says where: its seeds, device, data and cache count.
    """
    method, dataset, backbone = parse(cell)
    known = shown_runs(recorded.latest().values())
    known = known[(known.method == method) & (known.dataset == dataset)]
    known = usual_layers(known, [backbone])
    options = dict(known.options.iloc[0]) if len(known) else {}
    plan = dataclasses.replace(
        plan,
        methods=select(method),
        datasets=[dataset],
        backbones=[backbone],
        curve=False,
        options={method: options} if options else {},
    )
    with tempfile.TemporaryDirectory() as folder:
        runs = walk(plan, Results.of(folder), notify)
    before = known.set_index("seed")[FINAL]
    frame = pd.DataFrame(
        {
            "seed": runs.seed,
            "recorded": before.reindex(runs.seed).to_numpy(),
            "again": runs[FINAL].to_numpy(),
        }
    )
    frame["difference"] = frame.again - frame.recorded
    title = f"{plan.methods[0].title}, {DATASETS[dataset].title}, {published.title(backbone)}"
    notes = [f"Options: {options}"] if options else []
    place = (backbone, method, dataset)
    if place in published.FIGURES:
        notes.append(f"The paper: {published.FIGURES[place]['paper_text']}")
    if len(known):
        mean, std, n = before.agg(["mean", "std", "count"])
        notes.append(f"Recorded: {spread(mean, std, int(n))}")
    reasons = [reason for reason in runs.reason.unique() if reason]
    return Table(title, frame, runs, notes + reasons)
