"""``klda rename``: another name, or one class of two."""

from __future__ import annotations

from typing import Annotated

import typer

from klda.cli import options
from klda.cli.console import report
from klda.cli.opening import known_class, saved_change
from klda.cli.options import option
from klda.errors import KldaError
from klda.labels import closest
from klda.messages import counted


def rename(
    old: Annotated[str, typer.Argument(help="The class.", show_default=False)],
    new: Annotated[str, typer.Argument(help="Its new name.", show_default=False)],
    model: options.Model,
    merge: Annotated[
        bool, option("Make one class of two, if there is one of that name.", "--merge")
    ] = False,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Give a class another name, or make one class of two.

    With --merge the new name may be that of another class. The two then are one, exactly as if all
    their samples had been learned as one class.

    **klda rename** refund "money back" **--model** bot/

    **klda rename** Refund refund **--merge --model** bot/
    """
    from klda.data import as_label

    if not new.strip():
        raise KldaError("The new name is empty: a class needs a name.")
    with saved_change(model, wait, {}) as learner:
        known = learner.classes
        label, name = known_class(old, known), as_label(new, known)
        others = [one for one in known if one != label]
        if name == label:
            raise KldaError(f"The class is called {name!r} already: give another name.")
        if name in known and not merge:
            raise KldaError(
                f"There is a class {name!r} already: choose another name, or make one class of the "
                "two with --merge."
            )
        if merge and name not in others:
            close = closest(name, others)
            meant = f" Did you mean {close!r}?" if close is not None else " Leave out --merge."
            raise KldaError(f"--merge: there is no other class {name!r} in this model.{meant}")
        learner.rename(label, name, merge=merge)
    samples = learner.classes[name]
    done = {"model": str(model), "old": label, "new": name, "samples": samples, "merged": merge}
    said = f"Renamed {label} to {name} in {model}."
    if merge:
        said = f"{label} is now part of {name} in {model}, with {counted(samples, 'sample')}."
    elif (close := closest(name, others)) is not None:
        said += f" There is also a class {close!r}: if both are one, use --merge."
    report(json, done, said)
