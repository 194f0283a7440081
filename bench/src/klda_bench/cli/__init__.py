"""``klda bench``: rerun the paper with any foundation model, method and data set; measure klda."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from klda_bench.cli import paper
from klda_bench.cli.options import measurement
from klda_bench.cli.screen import errors, show, wrote
from klda_bench.data import listing
from klda_bench.measure import agreement, beyond, cluster, scale, service, speed
from klda_bench.methods import registry
from klda_bench.report.page import write_report
from klda_bench.results import Row

app = typer.Typer(
    help="Rerun the paper: data sets, tables and figures, with our figures beside the paper's.",
    no_args_is_help=True,
)


@app.command("datasets")
def list_datasets(data: paper.Data = None, split: paper.Split = "paper") -> None:
    """List the data sets: rows, classes, tasks, and where they were found."""
    with errors():
        show(listing(data=data, split=split))


@app.command("methods")
def list_methods() -> None:
    """List the methods that a table can have as rows."""
    names = ("name", "title", "group", "needs", "about")
    rows = [{name: getattr(spec, name) for name in names} for spec in registry().values()]
    show(pd.DataFrame(rows).rename(columns={"needs": "learns from"}))


for command in paper.COMMANDS:
    app.command(command.__name__)(command)


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Output folder of the other commands.")],
) -> None:
    """Write one self-contained HTML page with all tables, plots, settings and commands."""
    with errors():
        wrote([write_report(folder)])


app.command()(measurement(speed.speed))
app.command()(measurement(agreement.agreement))
app.command()(measurement(cluster.cluster))
_GROUPS = {
    "scale": "Measure how cost grows with rows and classes, out of core and on a GPU.",
    "beyond": "Measure what the default settings do beyond the paper: few-shot, unknown, ...",
    "service": "Measure a running service: load, kills, micro-batching, overhead.",
}
_MEASURES: dict[str, tuple[Callable[..., Iterator[Row]], ...]] = {
    "scale": (scale.rows, scale.classes, scale.many, scale.file, scale.device, scale.generate),
    "beyond": (
        *(beyond.accuracy, beyond.few_shot, beyond.gamma),
        *(beyond.stream, beyond.ensemble, beyond.forget),
    ),
    "service": (service.load, service.kill, service.batching, service.overhead),
}
for _name, _functions in _MEASURES.items():
    _group = typer.Typer(help=_GROUPS[_name], no_args_is_help=True)
    for _function in _functions:
        _group.command(_function.__name__.replace("_", "-"))(measurement(_function))
    app.add_typer(_group, name=_name)
