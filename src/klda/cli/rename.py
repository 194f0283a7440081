"""``klda rename``."""

from __future__ import annotations

from typing import Annotated

import typer

from klda.cli import options
from klda.cli.classes import known_class
from klda.cli.console import report
from klda.cli.opening import changed
from klda.errors import KldaError


def rename(
    old: Annotated[str, typer.Argument(help="The class.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
    model: options.Model,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Give a class another name.

    No other class may have that name. What was learned does not change.

    **klda rename** refund "money back" **--model** bot/
    """
    from klda.data import as_label

    if not new.strip():
        raise KldaError("The new name is empty: a class needs a name.")
    with changed(model, wait, {}) as learner:
        known = learner.classes
        label, name = known_class(old, known), as_label(new, known)
        if name in known:
            raise KldaError(f"There is a class {name!r} already: choose another name.")
        learner.rename(label, name)
    done = {"model": str(model), "old": label, "new": name, "samples": known[label]}
    report(json, done, f"Renamed {label} to {name} in {model}.")
