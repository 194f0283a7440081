"""``klda declare``: classes by their names."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

from klda.cli import options
from klda.cli.console import knowledge, report
from klda.cli.opening import make_learner, note_similar, saved_change
from klda.errors import KldaError
from klda.messages import counted

if TYPE_CHECKING:
    from klda.labels import Label
    from klda.learner import Learner


def declare(
    classes: Annotated[
        list[str],
        typer.Argument(help="Names of classes, or NAME=DESCRIPTION in quotes.", show_default=False),
    ],
    model: options.Model,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    runtime: options.Runtime = None,
    precision: options.Precision = None,
    foundation: options.Foundation = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Add classes of texts by name, without examples.

    The model folder is created if it does not exist. A name is read as words, card_arrival as
    "card arrival"; a description says more. The model then answers with these classes, and is more
    often right once it has learned examples of them.

    **klda declare** card_arrival lost_card **--model** bot/

    **klda declare** "refund=customer wants money back" **--model** bot/
    """
    from klda.encoders import modality_of

    where = options.encoder_options(device, batch_size, runtime, precision)

    def make() -> Learner:
        modality = "text" if foundation is None else modality_of(foundation)
        return make_learner(options.given(foundation=foundation), modality, where)

    with saved_change(model, wait, where, foundation, make) as learner:
        before = learner.classes
        wanted = _described(classes, before)
        note_similar(wanted, before, model)
        learner.declare(wanted)
    new = [label for label in wanted if label not in before]
    n_classes, samples = len(learner.classes), learner.samples
    done = {"declared": wanted, "new_classes": new, "classes": n_classes, "samples": samples}
    report(
        json,
        {"model": str(model), **done},
        f"Declared {counted(len(wanted), 'class')}, {len(new):,} of them new. "
        f"{model} now knows {knowledge(n_classes, samples)}.",
    )


def _described(arguments: Collection[str], known: Collection[Label]) -> dict[Label, str | None]:
    """Return the classes that were named, each with its description or None."""
    from klda.data import as_label

    found: dict[Label, str | None] = {}
    for argument in arguments:
        name, equals, description = argument.partition("=")
        if argument in known:  # a name may contain the sign
            name, equals = argument, ""
        if not name.strip():
            raise KldaError(f"{argument!r} names no class: write NAME or NAME=DESCRIPTION.")
        if equals and not description.strip():
            raise KldaError(f"{argument!r} has no description: write one, or leave out the =.")
        label = as_label(name, known)
        if label in found:
            raise KldaError(f"{label!r} is declared twice: name each class once.")
        found[label] = description.strip() if equals else None
    return found
