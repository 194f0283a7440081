"""``klda bench shots``: how good answers are by the number of samples per class."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from klda.cli.options import option
from klda.errors import KldaError
from klda_bench.display.show import progress, show, write_page
from klda_bench.options import Backbone, Data, Shots, names
from klda_bench.results import Results
from klda_bench.shots.contenders import CONTENDERS
from klda_bench.shots.draws import ShotsPlan
from klda_bench.shots.summary import sections
from klda_bench.shots.tasks import ALL, KINDS, MADE, parse_shots

_LISTED = " ".join(f"{name}: {kind.heading}." for name, kind in KINDS.items())


def shots(
    kind: Annotated[
        str, option(f"What is drawn (shots). {_LISTED} all: one page of all.")
    ] = "shots",
    datasets: Annotated[
        str | None, option(f"Data sets, comma-separated; also {', '.join(MADE)}.")
    ] = None,
    shots: Shots = None,
    draws: Annotated[int, option("Draws of the samples.", min=1, show_default=True)] = 3,
    methods: Annotated[
        str | None, option(f"Methods, comma-separated, out of {', '.join(CONTENDERS)}.")
    ] = None,
    backbone: Backbone = "minilm",
    data: Data = None,
    output: Annotated[Path, option("Folder of rows and tables (out/shots).")] = Path("out/shots"),
) -> None:
    """Measure accuracy, calibration and rejections from k samples of every class, beside peers.

    By default the paper's four sets of texts and eleven of other kinds; --kind all makes one page
    of all kinds, with the targets first. A run that is in the output folder is not repeated, unless
    the program has changed; runs of peers stay.
    """
    (kind,) = names(kind, "kind", [*KINDS, ALL])
    runs = {}
    for name in KINDS if kind == ALL else [kind]:
        usual = KINDS[name]
        plan = ShotsPlan(
            name,
            names(usual.methods if methods is None else methods, "methods", CONTENDERS),
            names(usual.datasets if datasets is None else datasets, "datasets"),
            parse_shots(usual.shots if shots is None else shots, usual.least),
            *(draws, backbone, data),
        )
        runs[name] = plan.runs()
    if not any(runs.values()):
        raise KldaError(
            f"kind={kind!r} has nothing to measure with these options: 0 samples and declared "
            "classes need --methods names, and the latter a data set of six classes or more."
        )
    results = Results.of(output)
    with progress() as notify:
        found = {
            name: [results.once(run, notify)[0] for run in own] for name, own in runs.items() if own
        }
    parts = list(sections(found))
    for title, frame in parts:
        show(frame, title)
    write_page(output / f"{kind}.md", "Answers by the number of samples per class", parts)
