"""``klda merge``, ``show`` and ``models``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import health, options
from klda.cli.console import counted, interrupts_ignored, print_json, printable, results, say
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.learner.folder import StoredModel


def merge(
    models: Annotated[list[Path], typer.Argument(help="Two or more model folders.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the merged model.")],
    wait: options.Wait = 0.0,
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
    from klda.learner import Learner, folder

    if folder.exists(output) and output.resolve() not in {path.resolve() for path in models}:
        raise KldaError(
            f"{output} holds a model already, which would be lost. Name a new folder, or merge "
            "that model, too."
        )
    replaced = folder.exists(output) and output.resolve() != models[0].resolve()
    with folder.writer_lock(output, timeout=wait):
        merged = Learner.load(models[0])
        for path in models[1:]:
            merged.merge(Learner.load(path))
        with interrupts_ignored():
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
    from klda.learner import folder

    if confusable or map_file is not None:
        health.show(model, confusable=confusable, map_file=map_file, verify=verify, as_json=json)
    else:
        stored = folder.load(model, verify=verify)
        if json:
            print_json(stored.document)
        else:
            _print(model, stored)
    if verify:
        say("All files agree with their checksums.")


def _print(model: Path, stored: StoredModel) -> None:
    document = stored.document
    console = results()
    parts = _summary(model, stored), _classes(document), _history(document["history"])
    for i, part in enumerate(parts):
        if i:
            console.print()
        console.print(part)


def _classes(document: dict[str, Any]) -> RichTable:
    table = RichTable(box=None, pad_edge=False)
    table.add_column("class")
    table.add_column("samples", justify="right")
    for label, count in document["classes"].items():
        table.add_row(Text(label), f"{count:,}")
    return table


def _summary(model: Path, stored: StoredModel) -> RichTable:
    document = stored.document
    foundation, classifier = document["foundation_model"], document["classifier"]
    size = sum(file["bytes"] for file in document["files"])
    parameters = ", ".join(f"{name}={value}" for name, value in classifier["parameters"].items())
    entries = {
        "model": str(model) + (" (compact: predicts, can't learn)" if document["compact"] else ""),
        "foundation model": f"{foundation['name']}, {foundation['modality']}, "
        f"{classifier['n_features']} features",
        "classifier": f"{classifier['kind']}({parameters})",
        "knows": f"{counted(len(document['classes']), 'class', 'classes')} from "
        f"{counted(document['samples'], 'sample', 'samples')}",
        "keeps": _kept(stored),
        "size": f"{size / 1e6:.1f} MB",
        "saved": f"{document['saved']} by klda {document['klda_version']}",
    }
    table = RichTable(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in entries.items():
        table.add_row(name, Text(value))
    return table


def _kept(stored: StoredModel) -> str:
    """Say what the folder holds of single samples; never a text or an image."""
    if "ledger" in stored.document:
        return f"the features of {stored.document['ledger']['samples']:,} samples"
    rows = [name for name in stored.arrays if name.startswith("learn/") and name.endswith("/rows")]
    if not rows:
        return "sums alone: counts, means and what all classes share"
    width = stored.arrays[rows[0]].shape[1]
    return f"a row of features of each sample, until there are more than {width // 2:,}"


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
            Text(entry["when"]),
            Text(entry["action"]),
            f"{entry['samples']:+,}",
            f"{change:+,}",
            Text(printable(entry.get("source", ""))),
        )
    return table


def models(json: options.Json = False) -> None:
    """List the foundation models that have a name, and which of them are here offline.

    Any other model works too, by its hub name or as a folder.
    """
    from klda.encoders import MODELS

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
            Text(f"{info.note} ({info.how_to_get})"),
        )
    results().print(table)
