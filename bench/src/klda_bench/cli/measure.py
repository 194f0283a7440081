"""Measurements as commands: each yields rows, which are printed as tables and kept in a file."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from klda_bench.cli.screen import errors, progress, results
from klda_bench.environment import machine, versions
from klda_bench.report.show import show_rows
from klda_bench.results import Results, Row

Output = Annotated[Path | None, typer.Option(help="JSON Lines file to append the rows to.")]


def measurement(function: Callable[..., Iterator[Row]]) -> Callable[..., None]:
    """Make a command of a function that yields rows; its parameters become the options.

    A row whose ``ok`` is false makes the exit status 1.
    """

    @functools.wraps(function)
    def command(output: Path | None, **options: Any) -> None:
        settings = {name: _plain(value) for name, value in options.items()}
        common = {"measure": function.__name__, "settings": settings}
        common |= {"machine": machine(), "versions": versions()}
        rows: list[Row] = []
        with errors(), progress() as notify:
            for row in function(**options):
                rows.append(row)
                notify(f"measured: {row['what']}")
                if output is not None:
                    Results(output).append(row | common)
        console = results()
        for part in show_rows(rows):
            console.print(part)
        if not all(row.get("ok", True) for row in rows):
            raise typer.Exit(1)

    hints = get_type_hints(function, include_extras=True) | {"output": Output, "return": None}
    own = inspect.signature(function).parameters.values()
    output = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=None)
    given = [one.replace(annotation=hints[one.name]) for one in (*own, output)]
    del command.__wrapped__
    command.__annotations__ = hints
    command.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    return command


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value
