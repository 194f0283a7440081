"""``klda declare``, ``forget``, ``rename``, ``merge`` and ``undo``: changes without new samples."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from klda.cli import options, reading
from klda.cli.console import counted, interrupts_ignored, knowledge, report
from klda.cli.opening import changed, known_class, make_learner, note_similar
from klda.cli.options import option
from klda.errors import KldaError
from klda.labels import closest

if TYPE_CHECKING:
    from klda.labels import Label
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


def declare(
    classes: Annotated[
        list[str],
        typer.Argument(help="Names of classes, or NAME=DESCRIPTION in quotes.", show_default=False),
    ],
    model: options.Model,
    foundation: options.Foundation = None,
    device: options.Device = "auto",
    engine: options.Engine = None,
    precision: options.Precision = None,
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

    encoder = options.given(device=device, engine=engine, precision=precision)

    def make() -> Learner:
        modality = "text" if foundation is None else modality_of(foundation)
        return make_learner(options.given(foundation=foundation), modality, encoder)

    with changed(model, wait, encoder, foundation, make) as learner:
        before = learner.classes
        wanted = _described(classes, before)
        learner.declare(wanted)
    new = [label for label in wanted if label not in before]
    note_similar(new, before, model)
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


def forget(
    context: typer.Context,
    model: options.Model,
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
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    ignore_case: options.IgnoreCase = False,
    skip_bad: options.SkipBad = False,
    device: options.Device = "auto",
    batch_size: options.BatchSize = None,
    engine: options.Engine = None,
    precision: options.Precision = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Make a model forget classes, or single samples.

    A forgotten class is never an answer again. A model made with **klda learn --keep features**
    forgets exactly: it is as if it had never seen the class, or the samples named by --ids. So does
    one that holds its samples because they are few, and any model if --rows gives the rows that
    were learned. If classes are named, only their rows are used, and they must be all that was
    learned of them, unless --partly allows some to stay; otherwise all rows of the file are
    forgotten. Rows that were not learned are refused. Without any of this the covariance that all
    classes share keeps a trace, and the command says so.

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
    layout = options.layout(text_column, label_column, header, encoding, ignore_case)
    with changed(model, wait, options.of(context, options.ENCODER)) as learner:
        before, holding = learner.classes, not learner.leaves_trace
        names = [known_class(label, before) for label in labels or ()]
        exact = bool(ids or rows) or not learner.traces_of(names)
        if ids:
            learner.forget(ids=_sample_ids(learner, ids))
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


def _forget_rows(
    learner: Learner, tables: list[Any], names: list[Any], partly: bool, skip_bad: bool
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
                f"{path} has {given:,} rows of class {name!r}, and {all_of_it:,} were learned: "
                "nothing was forgotten. Give exactly the rows that were learned, or some of them "
                "with --partly."
            )
    try:
        learner.forget_rows(np.concatenate(rows), labels, source=path.name)
    except NotLearnedError as error:
        raise KldaError(f"{path}: {error}") from error


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
    with changed(model, wait, {}) as learner:
        known = learner.classes
        label, name = known_class(old, known), as_label(new, known)
        others = [one for one in known if one != label]
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


def undo(
    model: options.Model,
    number: Annotated[
        int | None,
        typer.Argument(help="Number of the change, as klda show lists it; the last one.", min=1),
    ] = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Undo a change: the model becomes what it would be had the change never been made.

    That is exact, also after other changes. Learning, declaring, renaming, merging and forgetting
    can be undone for 24 hours. An undo is a change, too: undo it to do again what it undid.

    **klda undo --model** bot/

    **klda undo** 12 **--model** bot/
    """
    with changed(model, wait, {}) as learner:
        undone = learner.undo(number)
        if not learner.classes:
            raise KldaError(
                "That was the model's first change, and a model without classes can't be saved: "
                f"nothing was undone. To start again, delete the folder {model}."
            )
    classes, samples = len(learner.classes), learner.samples
    what = undone["action"] + (f" {undone['source']}" if undone.get("source") else "")
    report(
        json,
        {"model": str(model), "undone": undone, "classes": classes, "samples": samples},
        f"Undid change {undone['number']}: {what}.",
        f"{model} now knows {knowledge(classes, samples)}.",
    )


def merge(
    models: Annotated[list[Path], typer.Argument(help="Two or more model folders.")],
    output: Annotated[
        Path, option("Folder for the merged model.", "--output", "-o", metavar="FOLDER")
    ],
    allow_same: Annotated[
        bool,
        option("Merge even if models share samples, which then count twice.", "--allow-same"),
    ] = False,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Merge models that were trained separately, exactly.

    The result is the model that would have learned everything itself. The models must have the same
    foundation model and the same random features, which they have by default, unless --seed,
    --gamma or --components differed. Models that have learned the same file, or that are copies of
    each other, are refused: what they share would count twice.

    **klda merge** north/ south/ **--output** all/

    **klda merge** all/ west/ **--output** all/
    """
    from klda.learner import Learner
    from klda.storage import folder

    if len(models) < 2:
        raise typer.BadParameter("Give at least two model folders to merge.")
    if folder.exists(output) and output.resolve() not in {path.resolve() for path in models}:
        raise KldaError(
            f"{output} already holds a model, which would be lost. Name a new folder, or merge "
            "that model, too."
        )
    replaced = folder.exists(output) and output.resolve() != models[0].resolve()
    with folder.writer_lock(output, timeout=wait):
        merged = Learner.load(models[0])
        for path in models[1:]:
            merged.merge(Learner.load(path), allow_same=allow_same)
        with interrupts_ignored():
            merged.save(output, overwrite=replaced)
    classes, samples = len(merged.classes), merged.samples
    report(
        json,
        {"model": str(output), "classes": classes, "samples": samples},
        f"Merged {len(models)} models into {output}: {knowledge(classes, samples)}.",
    )
