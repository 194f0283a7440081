"""``klda bench``: rerun the paper with any foundation model, method and data set; measure klda."""

from __future__ import annotations

import functools

import pandas as pd
import typer

from klda.cli.app import Command, ReportingGroup
from klda_bench.cli import at_work, paper, shots
from klda_bench.cli.options import measurement
from klda_bench.data import listing
from klda_bench.display.show import show
from klda_bench.measure import forget, labels, load, speed, start
from klda_bench.methods import registry

app = typer.Typer(
    cls=ReportingGroup,
    help="Rerun the paper: data sets, tables and figures, with our figures beside the paper's.",
    no_args_is_help=True,
    add_completion=False,
)
command = functools.partial(app.command, cls=Command)


@command("datasets")
def list_datasets(data: paper.Data = None) -> None:
    """List the data sets: rows, classes, tasks, and where they were found."""
    show(listing(data=data))


@command("methods")
def list_methods() -> None:
    """List the methods that a table can have as rows."""
    names = ("name", "title", "group", "needs", "about")
    rows = [{name: getattr(spec, name) for name in names} for spec in registry().values()]
    show(pd.DataFrame(rows).rename(columns={"needs": "learns from"}))


for _function in paper.COMMANDS:
    command(_function.__name__)(_function)


command()(shots.shots)
command("peers-at-work")(at_work.peers_at_work)
command()(measurement(speed.speed))
command()(measurement(forget.forget))
command()(measurement(labels.quality))
command()(measurement(labels.suspects))
command()(measurement(labels.suggest))
command()(measurement(start.start))
command()(measurement(start.learn))
_group = typer.Typer(help=load.__doc__, no_args_is_help=True)
for _measure in (load.load, load.kill):
    _group.command(_measure.__name__, cls=Command)(measurement(_measure))
app.add_typer(_group, name="service")
