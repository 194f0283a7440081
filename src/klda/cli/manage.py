"""``klda forget``, ``merge``, ``show`` and ``models``."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import health, options, reading
from klda.cli.console import print_json, results, say, undisturbed
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.learner import Learner


def forget(
    model: options.Model,
    labels: Annotated[list[str] | None, typer.Argument(help="Classes to forget.")] = None,
    rows: Annotated[
        Path | None,
        typer.Option(help="File with the rows that were learned: undoes them exactly."),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option(
            help="Samples to forget instead of classes, as 17,18; needs a model made with "
            "--keep features. May be repeated.",
            show_default=False,
        ),
    ] = None,
    input_column: options.InputColumn = None,
    label_column: options.LabelColumn = None,
    wait: options.Wait = 0.0,
    json: options.Json = False,
) -> None:
    """Make a model forget classes, or single samples.

    A forgotten class is never an answer again. A model made with **klda learn --keep features**
    forgets exactly: it is as if it had never seen the class, or the samples named by --ids. So does
    any model given the rows that were learned with --rows; of that file only the rows of the named
    classes are used. Otherwise the covariance that all classes share keeps a trace, and the command
    says so.

    **klda forget --model** bot/ old_class "another class"

    **klda forget --model** bot/ old_class **--rows** tickets.csv

    **klda forget --model** bot/ **--ids** 17,18
    """
    if bool(labels) == bool(ids) or (ids and rows is not None):
        raise typer.BadParameter("Name classes to forget, or samples with --ids.")
    from klda import storage
    from klda.learner import Learner

    with storage.writer_lock(_existing(model), timeout=wait):
        learner = Learner.load(model)
        before = learner.classes
        integers = reading.has_integer_classes(before)
        names = [reading.as_label(label, integers) for label in labels or ()]
        if ids:
            learner.forget(ids=_sample_ids(learner, ids))
            exact = True
        elif rows is not None:
            tables = reading.open_tables([rows], learner.modality, input_column, label_column)
            _forget_rows(learner, tables, names, integers)
            exact = True
        else:
            exact = _forget_classes(learner, names)
        with undisturbed():
            learner.save(model)
    _report_forgotten(learner, before, exact, model, json)


def _forget_classes(learner: Learner, names: list[Any]) -> bool:
    """Forget classes; say whether no trace is left."""
    from klda.learner import ForgetTraceWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ForgetTraceWarning)
        learner.forget(names)
    return not any(issubclass(one.category, ForgetTraceWarning) for one in caught)


def _sample_ids(learner: Learner, given: list[str]) -> list[str | int]:
    """Ids as written: texts that were given to samples, or running numbers."""
    known = learner.ledger.names if learner.ledger is not None else {}
    parts = [
        part for text in given for part in ([text] if text in known else text.split(",")) if part
    ]
    return [int(part) if part.isdecimal() and part not in known else part for part in parts]


def _report_forgotten(
    learner: Learner, before: dict[Any, int], exact: bool, model: Path, as_json: bool
) -> None:
    after = learner.classes
    gone = [label for label in before if label not in after]
    samples = sum(before.values()) - sum(after.values())
    if as_json:
        print_json(
            {
                "model": str(model),
                "forgotten_classes": gone,
                "forgotten": samples,
                "exact": exact,
                "classes": len(after),
            }
        )
        return
    say(
        f"Forgot {_count(len(gone), 'class', 'classes')}, {_count(samples, 'sample', 'samples')}. "
        f"{model} now knows {_count(len(after), 'class', 'classes')}."
    )
    say(
        "Its scores are as if it had never seen them."
        if exact
        else "They are gone from the answers only: the covariance that all classes share keeps a "
        "trace of them. To leave none, name the rows that were learned with --rows, or make "
        "models with klda learn --keep features."
    )


def _count(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _forget_rows(learner: Learner, tables: list[Any], names: list[Any], integers: bool) -> None:
    wanted = set(names)
    found = False
    for inputs, labels in reading.labelled(
        reading.batches(tables, "Forgetting", labels=True), integers
    ):
        keep = [i for i, label in enumerate(labels) if label in wanted]
        if keep:
            found = True
            chosen = inputs[keep] if hasattr(inputs, "shape") else [inputs[i] for i in keep]
            learner.forget([labels[i] for i in keep], chosen)
    if not found:
        raise KldaError(f"{tables[0].path} has no rows of the classes to forget.")


def merge(
    models: Annotated[list[Path], typer.Argument(help="Two or more model folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the merged model.")],
    json: options.Json = False,
) -> None:
    """Merge models that were taught apart, exactly.

    The result is the model that would have learned everything itself. The models must have the same
    foundation model and the same random features (the default for all of them, unless --seed,
    --gamma or --components differed).

    **klda merge** north/ south/ **--output** all/

    **klda merge** all/ west/ **--output** all/
    """
    if len(models) < 2:
        raise typer.BadParameter("Give at least two model folders to merge.")
    from klda import storage
    from klda.learner import Learner

    if storage.exists(output) and output.resolve() not in {path.resolve() for path in models}:
        raise KldaError(
            f"{output} holds a model already, which would be lost. Name a new folder, or merge "
            "that model, too."
        )
    replaced = storage.exists(output) and output.resolve() != models[0].resolve()
    merged = Learner.load(models[0])
    for path in models[1:]:
        merged.merge(Learner.load(path))
    with storage.writer_lock(output), undisturbed():
        merged.save(output, overwrite=replaced)
    classes = merged.classes
    if json:
        print_json({"model": str(output), "classes": len(classes), "samples": merged.samples})
        return
    say(
        f"Merged {len(models)} models into {output}: {len(classes):,} classes from "
        f"{merged.samples:,} samples."
    )


def show(
    model: options.Model,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also read every file and compare its checksum.")
    ] = False,
    confusable: Annotated[
        bool,
        typer.Option(
            "--confusable",
            help="Show which classes are easily confused, too small, or two in one.",
        ),
    ] = False,
    map_file: Annotated[
        Path | None,
        typer.Option("--map", help="Draw a map of the classes here (.html, .png, .svg, .pdf)."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what a model is, what it knows and how it came to be.

    **klda show --model** bot/

    --confusable looks at the label set instead: pairs of classes whose means are close, with the
    share of samples expected to be confused (no test data needed), classes of fewer than ten
    samples, and, for a model made with --keep features, classes that fall into two groups. --map
    draws the classes so that those near each other are easily confused.

    **klda show --model** bot/ **--confusable --map** classes.html
    """
    from klda import storage

    if confusable or map_file is not None:
        health.show(model, confusable=confusable, map_file=map_file, as_json=json)
        return
    document = storage.load(model, verify=verify).document
    if json:
        print_json(document)
        return
    console = results()
    console.print(_summary(model, document))
    console.print()
    table = RichTable(box=None, pad_edge=False)
    table.add_column("class")
    table.add_column("samples", justify="right")
    for label, count in document["classes"].items():
        table.add_row(Text(label), f"{count:,}")
    console.print(table)
    console.print()
    console.print(_history(document["history"]))
    if verify:
        say("All files agree with their checksums.")


def _summary(model: Path, document: dict[str, Any]) -> RichTable:
    foundation, classifier = document["foundation_model"], document["classifier"]
    size = sum(file["bytes"] for file in document["files"])
    parameters = ", ".join(f"{name}={value}" for name, value in classifier["parameters"].items())
    entries = {
        "model": str(model) + (" (compact: predicts, can't learn)" if document["compact"] else ""),
        "foundation model": f"{foundation['name']}, {foundation['modality']}, "
        f"{classifier['n_features']} features",
        "classifier": f"{classifier['kind']}({parameters})",
        "knows": f"{len(document['classes']):,} classes from {document['samples']:,} samples",
        "keeps": _kept(document),
        "size": f"{size / 1e6:.1f} MB",
        "saved": f"{document['saved']} by klda {document['klda_version']}",
    }
    table = RichTable(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in entries.items():
        table.add_row(name, Text(value))
    return table


def _kept(document: dict[str, Any]) -> str:
    if "ledger" not in document:
        return "nothing of a sample"
    return f"the features of {document['ledger']['samples']:,} samples"


def _history(entries: list[dict[str, Any]]) -> RichTable:
    table = RichTable(box=None, pad_edge=False)
    for name in ("when", "action", "samples", "classes", "source"):
        table.add_column(name, justify="right" if name in ("samples", "classes") else "left")
    shown = entries[-20:]
    if len(shown) < len(entries):
        table.add_row("...", f"{len(entries) - len(shown)} earlier", "", "", "")
    for entry in shown:
        change = len(entry.get("new_classes", ())) - len(entry.get("dropped_classes", ()))
        table.add_row(
            entry["when"],
            entry["action"],
            f"{entry['samples']:+,}",
            f"{change:+,}",
            Text(entry.get("source", "")),
        )
    return table


def models(json: options.Json = False) -> None:
    """List the foundation models that have a name, and which of them are here offline.

    Any other model works too, by its hub name or as a folder.
    """
    from klda.features import MODELS

    if json:
        print_json(
            [
                {
                    "name": info.name,
                    "modality": info.modality,
                    "hub_id": info.hub_id,
                    "dimension": info.dimension,
                    "parameters": info.n_parameters,
                    "offline": info.available_offline(),
                    "note": info.note,
                }
                for info in MODELS.values()
            ]
        )
        return
    table = RichTable(box=None, pad_edge=False)
    for name in ("name", "takes", "features", "parameters", "here", "note"):
        table.add_column(name, justify="right" if name in ("features", "parameters") else "left")
    for info in MODELS.values():
        here = Text("yes", style="green") if info.available_offline() else Text("no", style="dim")
        table.add_row(
            info.name,
            info.modality,
            str(info.dimension),
            info.n_parameters,
            here,
            f"{info.note} ({info.how_to_get})",
        )
    results().print(table)


def _existing(model: Path) -> Path:
    """Return the folder if it holds a model; a lock must not create one that isn't there."""
    from klda import storage

    if not storage.exists(model):
        storage.load(model)  # says what is wrong
    return model
