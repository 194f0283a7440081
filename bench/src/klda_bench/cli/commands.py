"""All commands of ``klda bench``."""

from __future__ import annotations

import functools

import pandas as pd
import typer

from klda.cli.app import Command, ReportingGroup
from klda_bench.cli import at_work, measurements, paper, shots
from klda_bench.data.datasets import listing
from klda_bench.display.show import show
from klda_bench.methods.registry import registry
from klda_bench.options import Data

app = typer.Typer(
    cls=ReportingGroup,
    help="Rerun the paper: data sets, tables and figures, with our figures beside the paper's.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
command = functools.partial(app.command, cls=Command)


@command("datasets")
def list_datasets(data: Data = None) -> None:
    """List the data sets: rows, classes, tasks, and where they were found."""
    show(listing(data=data))


@command("methods")
def list_methods() -> None:
    """List the methods that a table can have as rows."""
    names = ("name", "title", "group", "needs", "about")
    rows = [{name: getattr(spec, name) for name in names} for spec in registry().values()]
    show(pd.DataFrame(rows).rename(columns={"needs": "learns from"}))


for _name, _function in paper.COMMANDS.items():
    command(_name)(_function)


command()(shots.shots)
command("peers-at-work")(at_work.peers_at_work)
for _measure in measurements.COMMANDS:
    app.command(cls=measurements.Measurement)(_measure)
