"""``klda undo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from klda.cli import options
from klda.cli.console import knowledge, report
from klda.cli.opening import saved_change
from klda.cli.options import option
from klda.errors import KldaError


def undo(
    which: Annotated[
        list[str] | None,
        typer.Argument(
            help="The model folder, unless --model names it; the number of the change, as klda "
            "show lists it, unless it is the last.",
            metavar="[FOLDER] [NUMBER]",
        ),
    ] = None,
    model: options.OptionalModel = None,
    expire: Annotated[
        bool, option("Erase undo data instead: nothing can be undone any more.", "--expire")
    ] = False,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Undo a change: the model becomes what it would be had the change never been made.

    That is exact, also after other changes. Learning, declaring, renaming, merging, forgetting and
    tuning can be undone for 24 hours. An undo is a change, too: undo it to do again what it undid.

    For that time the model folder has features of what was learned and forgotten; --expire erases
    them.

    **klda undo** bot/

    **klda undo** bot/ 12

    **klda undo** bot/ **--expire**
    """
    at, number = _which_change(which or [], model)
    if expire:
        if number is not None:
            raise typer.BadParameter("--expire erases all undo data: leave out the number.")
        with saved_change(at, wait, {}) as learner:
            erased = learner.expire_undo()
        said = "Erased the undo data of" if erased else "There was no undo data in"
        report(json, {"model": str(at), "erased": erased}, f"{said} {at}.")
        return
    with saved_change(at, wait, {}) as learner:
        undone = learner.undo(number)
        if not learner.classes:
            raise KldaError(
                "That was the model's first change, and a model without classes can't be saved: "
                f"nothing was undone. To start again, delete the folder {at}."
            )
    classes, samples = len(learner.classes), learner.samples
    what = undone["action"] + (f" {undone['source']}" if undone.get("source") else "")
    report(
        json,
        {"model": str(at), "undone": undone, "classes": classes, "samples": samples},
        f"Undid change {undone['number']}: {what}.",
        f"{at} now knows {knowledge(classes, samples)}.",
    )


def _which_change(given: list[str], model: Path | None) -> tuple[Path, int | None]:
    """Return the model folder, and the number of a change if there is one."""
    folder, numbers = (model, given) if model is not None else (None, given[1:])
    if folder is None and given:
        folder = Path(given[0])
    if folder is None or len(numbers) > 1:
        raise typer.BadParameter("Give one model folder, and at most one number: klda undo DIR 12.")
    if numbers and (not numbers[0].isdecimal() or not int(numbers[0])):
        raise typer.BadParameter(f"{numbers[0]!r} is not the number of a change; see klda show.")
    return folder, int(numbers[0]) if numbers else None
