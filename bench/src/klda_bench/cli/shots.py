"""``klda bench shots``: how good answers are by the number of samples per class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klda.errors import KldaError
from klda_bench.display.show import progress, show, wrote
from klda_bench.measure.common import Data, Names, names
from klda_bench.results import Results
from klda_bench.shots import summary
from klda_bench.shots.contenders import CONTENDERS
from klda_bench.shots.draws import Plan, measure, parse_shots
from klda_bench.shots.tasks import KINDS


def _flag(kind: str) -> typer.models.OptionInfo:
    info: typer.models.OptionInfo = typer.Option(f"--{kind}", help=f"{KINDS[kind].heading}.")
    return info


def shots(
    datasets: Names = "",
    shots: Annotated[str, typer.Option(help="Samples per class: numbers and 'all'.")] = "",
    draws: Annotated[int, typer.Option(help="Draws of the samples.", min=1)] = 3,
    methods: Annotated[
        str, typer.Option(help=f"Comma-separated, out of {', '.join(CONTENDERS)}.")
    ] = "",
    rare: Annotated[bool, _flag("rare")] = False,
    noisy: Annotated[bool, _flag("noisy")] = False,
    made: Annotated[bool, _flag("made")] = False,
    names_: Annotated[bool, _flag("names")] = False,
    declared: Annotated[bool, _flag("declared")] = False,
    all_: Annotated[bool, typer.Option("--all", help="All of these, and one summary.")] = False,
    backbone: Annotated[str, typer.Option(help="Foundation model of texts.")] = "minilm",
    data: Data = None,
    output: Annotated[Path, typer.Option(help="Folder of rows and tables.")] = Path("out/shots"),
) -> None:
    """Measure accuracy, doubt and refusals from k samples of every class, beside peers.

    By default the paper's four sets of texts and eleven of other kinds. A run that is in the
    output folder is not repeated, unless the program has changed; runs of peers stay.
    """
    given = {"rare": rare, "noisy": noisy, "made": made, "names": names_, "declared": declared}
    chosen = [name for name, is_chosen in given.items() if is_chosen] or ["shots"]
    if len(chosen) > 1:
        raise KldaError(f"--{' and --'.join(chosen)} can't be measured together; give --all.")
    found = {}
    with progress() as notify:
        for kind in KINDS if all_ else chosen:
            usual = KINDS[kind]
            plan = Plan(
                names(methods or usual.methods),
                names(datasets or usual.datasets),
                parse_shots(shots or usual.shots),
                *(draws, kind, backbone, data),
            )
            found[kind] = measure(plan, Results.of(output), notify)
    page, *parts = summary.sections("all" if all_ else chosen[0], found)
    for title, frame in parts:
        show(frame, title)
    file = output / page
    file.write_text(summary.markdown(parts), encoding="utf-8")
    wrote([file])
