"""Commands made of functions: what a function takes becomes the options of the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from klda_bench.display.show import progress, results, show_rows
from klda_bench.environment import machine, versions
from klda_bench.results import Results, Row

Command = Callable[..., None]
Output = Annotated[Path | None, typer.Option(help="JSON Lines file to append the rows to.")]


def command(
    name: str, about: str | None, body: Command, options: Mapping[str, tuple[Any, Any]]
) -> Command:
    """Give a function of any keywords the options of a command: their types and defaults."""
    kind = inspect.Parameter.KEYWORD_ONLY
    given = [
        inspect.Parameter(option, kind, annotation=annotation, default=default)
        for option, (annotation, default) in options.items()
    ]
    body.__name__, body.__doc__ = name, about
    body.__annotations__ = {option.name: option.annotation for option in given}
    body.__signature__ = inspect.Signature(given)  # type: ignore[attr-defined]
    return body


def measurement(function: Callable[..., Iterator[Row]]) -> Command:
    """Make a command of a function that yields rows; they are printed and kept in a file.

    A row whose ``ok`` is false makes the exit status 1.
    """

    def measure(output: Path | None, **options: Any) -> None:
        common = {"measure": function.__name__, "settings": options}
        common |= {"machine": machine(), "versions": versions()}
        rows: list[Row] = []
        with progress() as notify:
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

    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    options = {name: (hints[name], parameter.default) for name, parameter in own.items()}
    return command(
        function.__name__, function.__doc__, measure, options | {"output": (Output, None)}
    )
