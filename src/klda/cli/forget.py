"""``klda forget``: whole classes, rows or single samples."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, reading
from klda.cli.console import report
from klda.cli.opening import known_class, saved_change
from klda.cli.options import option
from klda.errors import KldaError
from klda.messages import counted

if TYPE_CHECKING:
    from klda.data import Table
    from klda.labels import Label
    from klda.learner import Learner

MOST_SHOWN = 5  # classes of which only some samples were forgotten
EXACT = "The model now scores as if it had never seen what was forgotten."
TRACE = (
    "These classes are no longer predicted. A small statistical trace of them remains: erasing it "
    "needs the rows that were learned (--rows), or a model made with klda learn --keep features."
)
UNCHECKED = (
    "This assumes that the rows were learned: without a ledger, some rows of a class can't always "
    "be told from similar ones."
)


def forget(
    model: options.Model,
    text_column: options.TextColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    skip_bad: options.SkipBad = False,
    label_column: options.LabelColumn = None,
    ignore_case: options.IgnoreCase = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    runtime: options.Runtime = None,
    precision: options.Precision = None,
    labels: Annotated[list[str] | None, typer.Argument(help="Classes to forget.")] = None,
    rows: Annotated[
        Path | None,
        option("File with the rows that were learned, to undo them exactly.", metavar="FILE"),
    ] = None,
    partly: Annotated[
        bool, option("Forget the rows in the file even if the class has more samples.", "--partly")
    ] = False,
    ids: Annotated[
        list[str] | None,
        option(
            "Samples to forget instead of classes, such as 17,18; needs a model made with --keep "
            "features. May be repeated."
        ),
    ] = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Make a model forget classes, or single samples.

    A forgotten class is never an answer again. Forgetting is exact, as if the model had never seen
    the samples, if it was made with **klda learn --keep features**, if it still holds its samples
    because they are few, or if --rows gives the rows that were learned. Otherwise a small
    statistical trace remains, and the command says so.

    With --rows, the rows of the named classes are forgotten, or all rows if no class is named. They
    must be all that was learned of these classes, unless --partly allows some to stay. Rows that
    were not learned are refused.

    **klda forget --model** bot/ old_class "another class"

    **klda forget --model** bot/ old_class **--rows** tickets.csv

    **klda forget --model** bot/ **--rows** tickets.csv

    **klda forget --model** bot/ **--ids** 17,18
    """
    from klda.learner import ForgetTraceWarning

    if sum((bool(labels or rows), bool(ids))) != 1:
        raise typer.BadParameter("Name classes to forget, a file of --rows, or samples by --ids.")
    if partly and rows is None:
        raise typer.BadParameter("--partly goes with --rows.")
    layout = options.layout(text_column, header, encoding, label_column, ignore_case)
    where = options.encoder_options(device, batch_size, runtime, precision)
    with saved_change(model, wait, where) as learner:
        before, holding = learner.classes, not learner.leaves_trace
        names = [known_class(label, before) for label in labels or ()]
        exact = bool(ids or rows) or not learner.traces_of(names)
        if ids:
            learner.forget(ids=_sample_ids(learner, ids, model))
        elif rows is not None:
            tables = reading.open_tables([rows], layout, learner.modality, before)
            _forget_rows(learner, tables, names, partly or not names, skip_bad)
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
    left = {label: after[label] for label in before if 0 < after.get(label, 0) < before[label]}
    done = {
        "forgotten_classes": [label for label in before if label not in after],
        "forgotten": sum(before.values()) - sum(after.values()),
        "exact": exact,
        "left": left,
        # Rows of a whole class are compared with its mean. Without a ledger, the check of a part
        # of it can miss a few rows that resemble the learned ones.
        "checked": learner.ledger is not None or holding or not left,
        "classes": len(after),
    }
    report(json, {"model": str(model), **done}, *_told(done, model))


def _told(done: dict[str, Any], model: Path) -> Iterator[str]:
    """Yield what was forgotten, in sentences."""
    gone, left = counted(len(done["forgotten_classes"]), "class"), done["left"]
    yield (
        f"Forgot {gone}, {counted(done['forgotten'], 'sample')}. "
        f"{model} now knows {counted(done['classes'], 'class')}."
    )
    for label, samples in [*left.items()][:MOST_SHOWN]:
        yield f"{label} is still known, from {counted(samples, 'sample')}."
    if len(left) > MOST_SHOWN:
        yield f"So are {len(left) - MOST_SHOWN:,} other classes."
    yield EXACT if done["exact"] else TRACE
    if not done["checked"]:
        yield UNCHECKED


def _sample_ids(learner: Learner, given: list[str], model: Path) -> list[str | int]:
    """Return ids as written: texts that were given to samples, or running numbers."""
    if learner.ledger is None:
        raise KldaError(
            f"--ids: the model in {model} was not made with klda learn --keep features, so its "
            "samples have no numbers. Give their rows with --rows, or name classes."
        )
    known = learner.ledger.numbers_by_id
    parts = [
        part for text in given for part in ([text] if text in known else text.split(",")) if part
    ]
    return [int(part) if part.isdecimal() and part not in known else part for part in parts]


def _forget_rows(
    learner: Learner, tables: Sequence[Table], names: Sequence[Label], partly: bool, skip_bad: bool
) -> None:
    """Forget the rows of a file that belong to some classes, or all; completely or not at all."""
    import numpy as np

    from klda.engine.rows import NotLearnedError

    path, learned = tables[0].path, learner.classes
    rows, labels = [], []
    for batch in reading.batches(tables, "Forgetting", labels=True, skip_bad=skip_bad):
        pairs = zip(batch.inputs, batch.labels or (), strict=True)
        chosen = [(value, label) for value, label in pairs if not names or label in names]
        if chosen:
            rows.append(learner.encode([value for value, _ in chosen]))
            labels += [label for _, label in chosen]
    counts = Counter(labels)
    for name in names or counts:
        given, all_of_it = counts[name], learned.get(name, 0)
        if given == 0 or given > all_of_it or (given < all_of_it and not partly):
            raise KldaError(
                f"{path} has {counted(given, 'row')} of class {name!r}, and {all_of_it:,} were "
                "learned: nothing was forgotten. Give exactly the rows that were learned, or some "
                "of them with --partly."
            )
    try:
        learner.forget_rows(np.concatenate(rows), labels, source=path.name)
    except NotLearnedError as error:
        raise KldaError(f"{path}: {error}") from error
