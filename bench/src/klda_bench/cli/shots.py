"""``klda bench shots``: how good answers are by the number of samples per class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klda_bench.display.show import progress, show, wrote
from klda_bench.measure.common import Data, Names, names
from klda_bench.results import Results
from klda_bench.shots import summary
from klda_bench.shots.contenders import CONTENDERS
from klda_bench.shots.draws import Plan, measure, parse_shots

SHOTS = "0,1,2,3,5,10,20,50,all"
RARE = "1,2,5,10"


def shots(
    datasets: Names = "clinc,banking,hwu,dbpedia",
    shots: Annotated[
        str, typer.Option(help=f"Samples per class: numbers and 'all'; with --rare {RARE}.")
    ] = "",
    draws: Annotated[int, typer.Option(help="Draws of the samples.", min=1)] = 5,
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated, out of {', '.join(CONTENDERS)}.")
    ] = ",".join(CONTENDERS),
    rare: Annotated[
        bool, typer.Option("--rare", help="Only a tenth of the classes has few samples.")
    ] = False,
    joined: Annotated[
        int, typer.Option(help="Join the classes at random to so many, hard to tell apart.", min=0)
    ] = 0,
    backbone: Annotated[str, typer.Option(help="Foundation model of texts.")] = "minilm",
    data: Data = None,
    output: Annotated[Path, typer.Option(help="Folder of rows, tables and plot.")] = Path(
        "out/shots"
    ),
) -> None:
    """Measure accuracy, doubt and unknown inputs from k samples of every class.

    k = 0 is the classes' names alone. A run that is in the output folder is not repeated, and
    those of other methods are shown beside the ones asked for.
    """
    plan = Plan(
        names(methods),
        names(datasets),
        parse_shots(shots or (RARE if rare else SHOTS)),
        draws,
        rare,
        backbone,
        data,
        joined,
    )
    with progress() as notify:
        rows = measure(plan, Results.of(output), notify)
    name = f"joined-{joined}" if joined else "rare" if rare else "shots"
    found = list(summary.tables(rows))
    for title, frame in found:
        show(frame, title)
    page = output / f"{name}.md"
    heading = "A tenth of the classes has k samples" if rare else "k samples of every class"
    heading += f"; all classes joined at random to {joined}" if joined else ""
    page.write_text(summary.markdown(found, heading), encoding="utf-8")
    wrote([page, summary.draw(rows, draws, output / f"{name}.png", heading)])
