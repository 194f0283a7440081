"""``klda bench shots``: how good answers are by the number of samples per class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klda.errors import KldaError
from klda_bench.data import MORE_SETS, TEXT_SETS
from klda_bench.display.show import progress, show, wrote
from klda_bench.measure.common import Data, Names, names
from klda_bench.results import Results
from klda_bench.shots import summary
from klda_bench.shots.contenders import CONTENDERS, PEERS
from klda_bench.shots.draws import Plan, measure, parse_shots

# By the kind of task: its heading, data sets, samples per class, methods.
KINDS = {
    "shots": (
        "k samples of every class",
        ",".join((*TEXT_SETS, *MORE_SETS)),
        "1,2,3,5,8,16,32,64,all",
        ",".join(("ours", *PEERS)),
    ),
    "rare": (
        "A tenth of the classes has k samples, the others have all of theirs",
        ",".join(TEXT_SETS),
        "1,2,5,10",
        "ours",
    ),
    "noisy": (
        "k samples of every class, a fifth of them with a label drawn at random",
        "banking,hwu,emotion,agnews",
        "16,all",
        "ours,lr-last,lr",
    ),
    "made": (
        "k samples of every class, features that no network made",
        "gaussian,digits",
        "5,10,all",
        "ours,ncm,lr",
    ),
    "declared": (
        "Five classes are known by name alone, among 20 with k samples each",
        "banking",
        "80",
        "names",
    ),
}


def shots(
    datasets: Names = "",
    shots: Annotated[str, typer.Option(help="Samples per class: numbers and 'all'.")] = "",
    draws: Annotated[int, typer.Option(help="Draws of the samples.", min=1)] = 3,
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated, out of {', '.join(CONTENDERS)}.")
    ] = "",
    rare: Annotated[
        bool, typer.Option("--rare", help="Only a tenth of the classes has k samples.")
    ] = False,
    noisy: Annotated[
        bool, typer.Option("--noisy", help="A fifth of the labels is drawn at random.")
    ] = False,
    made: Annotated[bool, typer.Option("--made", help="Features that no network made.")] = False,
    declared: Annotated[
        bool, typer.Option("--declared", help="Five of 25 classes are known by name alone.")
    ] = False,
    backbone: Annotated[str, typer.Option(help="Foundation model of texts.")] = "minilm",
    data: Data = None,
    output: Annotated[Path, typer.Option(help="Folder of rows and tables.")] = Path("out/shots"),
) -> None:
    """Measure accuracy, doubt and refusals from k samples of every class, beside peers.

    By default the paper's four sets of texts and eleven of other kinds. k = 0 is the names of the
    classes alone (--methods names). A run that is in the output folder is not repeated, unless the
    program has changed.
    """
    kinds = {"rare": rare, "noisy": noisy, "made": made, "declared": declared}
    chosen = [name for name, is_chosen in kinds.items() if is_chosen]
    if len(chosen) > 1:
        raise KldaError(f"--{' and --'.join(chosen)} can't be measured together; give one of them.")
    kind = (chosen or ["shots"])[0]
    heading, *usual = KINDS[kind]
    sets, ks, compared = (
        given or default for given, default in zip((datasets, shots, methods), usual, strict=True)
    )
    plan = Plan(names(compared), names(sets), parse_shots(ks), draws, kind, backbone, data)
    with progress() as notify:
        rows = measure(plan, Results.of(output), notify)
    found = list(summary.tables(rows, kind))
    for title, frame in found:
        show(frame, title)
    page = output / f"{kind}.md"
    page.write_text(summary.markdown(found, heading), encoding="utf-8")
    wrote([page])
