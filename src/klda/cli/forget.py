"""``klda forget``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, reading
from klda.cli.classes import known_class
from klda.cli.console import counted, report
from klda.cli.opening import changed
from klda.cli.options import option
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.learner import Learner

EXACT = "The model now scores as if it had never seen what was forgotten."
TRACE = (
    "These classes are no longer predicted, but the covariance that all classes share keeps a "
    "trace of them. To leave none, give the rows that were learned with --rows, or make models "
    "with klda learn --keep features."
)
UNCHECKED = (
    "This assumes that the rows were learned: without a ledger, some rows of a class can't always "
    "be told from similar ones."
)


def forget(
    model: options.Model,
    *,
    labels: Annotated[list[str] | None, typer.Argument(help="Classes to forget.")] = None,
    rows: Annotated[
        Path | None, option("File with the rows that were learned, to undo them exactly.")
    ] = None,
    partly: Annotated[
        bool,
        option("Forget the rows in the file even if the class has more samples.", "--partly"),
    ] = False,
    ids: Annotated[
        list[str] | None,
        option(
            "Samples to forget instead of classes, such as 17,18; needs a model made with --keep "
            "features. May be repeated."
        ),
    ] = None,
    columns: options.Columns,
    encoding: options.Encoding,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Make a model forget classes, or single samples.

    A forgotten class is never an answer again. A model made with **klda learn --keep features**
    forgets exactly: it is as if it had never seen the class, or the samples named by --ids. So does
    one that holds its samples because they are few, and any model if --rows gives the rows that
    were learned. Of that file only the rows of the named classes are used; they must be all that
    was learned of them, unless --partly allows some to stay. Rows that were not learned are
    refused. Otherwise the covariance that all classes share keeps a trace, and the command says so.

    **klda forget --model** bot/ old_class "another class"

    **klda forget --model** bot/ old_class **--rows** tickets.csv

    **klda forget --model** bot/ **--ids** 17,18
    """
    if bool(labels) == bool(ids) or (ids and rows is not None):
        raise typer.BadParameter("Name classes to forget, or samples with --ids.")
    if partly and rows is None:
        raise typer.BadParameter("--partly goes with --rows.")
    from klda.learner import ForgetTraceWarning

    with changed(model, wait, encoding.given()) as learner:
        before, holding = learner.classes, learner.classifier.holds_samples
        names = [known_class(label, before) for label in labels or ()]
        traces = learner.traces_of(names)
        exact = bool(ids or rows) or not traces
        if ids:
            learner.forget(ids=_sample_ids(learner, ids))
        elif rows is not None:
            tables = reading.open_tables([rows], learner.modality, columns, before)
            _forget_rows(learner, tables, names, partly)
        else:
            with warnings.catch_warnings():  # it is said below
                warnings.simplefilter("ignore", ForgetTraceWarning)
                learner.forget(names)
        if not learner.classes:
            raise KldaError(
                "These are all classes of the model, and a model without classes can't be saved: "
                f"nothing was forgotten. To forget everything, delete the folder {model}."
            )
    after = learner.classes
    gone = [label for label in before if label not in after]
    left = {label: after[label] for label in before if 0 < after.get(label, 0) < before[label]}
    samples = sum(before.values()) - sum(after.values())
    # Rows of a whole class are compared with its mean. Without a ledger, the check of a part of it
    # can miss a few rows that resemble the learned ones.
    checked = learner.ledger is not None or holding or not left
    report(
        json,
        {
            "model": str(model),
            "forgotten_classes": gone,
            "forgotten": samples,
            "exact": exact,
            "left": left,
            "checked": checked,
            "classes": len(after),
        },
        f"Forgot {counted(len(gone), 'class')}, {counted(samples, 'sample')}. "
        f"{model} now knows {counted(len(after), 'class')}.",
        *(f"{label} is still known, from {counted(n, 'sample')}." for label, n in left.items()),
        EXACT if exact else TRACE,
        *([] if checked else [UNCHECKED]),
    )


def _sample_ids(learner: Learner, given: list[str]) -> list[str | int]:
    """Ids as written: texts that were given to samples, or running numbers."""
    known = learner.ledger.names if learner.ledger is not None else {}
    parts = [
        part for text in given for part in ([text] if text in known else text.split(",")) if part
    ]
    return [int(part) if part.isdecimal() and part not in known else part for part in parts]


def _forget_rows(learner: Learner, tables: list[Any], names: list[Any], partly: bool) -> None:
    """Forget the rows of a file that belong to some classes, completely or not at all."""
    import numpy as np

    from klda.engine.held_rows import NotLearnedError

    path, learned = tables[0].path, learner.classes
    rows, labels = [], []
    for batch in reading.batches(tables, "Forgetting", labels=True):
        chosen = [i for i, label in enumerate(batch.labels or ()) if label in names]
        if chosen:
            some = batch.inputs
            some = some[chosen] if hasattr(some, "shape") else [some[i] for i in chosen]
            rows.append(learner.encode(some))
            labels += [label for label in batch.labels or () if label in names]
    for name in names:
        given, all_of_it = labels.count(name), learned[name]
        if given == 0 or given > all_of_it or (given < all_of_it and not partly):
            raise KldaError(
                f"{path} has {given:,} rows of class {name!r}, and {all_of_it:,} were learned: "
                "nothing was forgotten. Give exactly the rows that were learned, or some of them "
                "with --partly."
            )
    try:
        learner.forget_rows(np.concatenate(rows), labels, source=path.name)
    except NotLearnedError as error:
        raise KldaError(f"{path}: {error}") from error
