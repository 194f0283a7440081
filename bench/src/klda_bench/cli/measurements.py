"""Commands of functions that yield rows: speed, start, and what klda says about labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from klda.cli.app import Command
from klda_bench.display.show import progress, show_rows
from klda_bench.environment import machine, versions
from klda_bench.measure import learner, speed, start
from klda_bench.results import Results, Row


class Measurement(Command):
    """A command of a function that yields rows; they are printed, and kept where --output says.

    A row whose ``ok`` is false makes the exit status 1.
    """

    def run(self, ctx: Any) -> None:
        """Measure, print, and keep the rows."""
        settings = {name: value for name, value in ctx.params.items() if name != "output"}
        output, common = ctx.params["output"], {"measure": ctx.info_name, "settings": settings}
        common |= {"machine": machine(), "versions": versions()}
        rows: list[Row] = []
        with progress() as notify:
            for row in super().run(ctx):
                rows.append(row)
                notify(f"measured: {row['what']}")
                if output is not None:
                    Results(Path(output)).append(row | common)
        show_rows(rows)
        if not all(row.get("ok", True) for row in rows):
            raise typer.Exit(1)


COMMANDS = (
    *(speed.speed, start.start, learner.forget),
    *(learner.quality, learner.suspects, learner.suggest),
)
