"""``klda show`` and ``klda models``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import options, plots
from klda.cli.console import counted, knowledge, print_json, print_parts, say, table
from klda.cli.options import option
from klda.errors import KldaError

LATEST = 20  # entries of the history
MOST = 20  # lines of a table of the label set; --json has all


def show(
    folder: Annotated[
        Path | None, typer.Argument(help="The model folder; or give --model.")
    ] = None,
    model: options.OptionalModel = None,
    verify: Annotated[
        bool, option("Also read every file and compare its checksum.", "--verify")
    ] = False,
    confusable: Annotated[
        bool, option("Show which classes are easily confused or too small.", "--confusable")
    ] = False,
    map_file: Annotated[
        Path | None, option("Draw a map of the classes here (.html, .png, .svg, .pdf).", "--map")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what a model is, what it knows and how it came to be.

    **klda show** bot/

    --confusable looks at the label set instead: pairs of classes whose means are close, with the
    fraction of samples expected to be confused (no test data needed), and classes with fewer than
    ten samples. --map draws the classes so that those near each other are alike.

    **klda show** bot/ **--confusable --map** classes.html
    """
    from klda.learner.folder import damage_named, load

    at = folder or model
    if at is None or (folder and model):
        raise typer.BadParameter("Give one model folder: klda show DIR, or klda show --model DIR.")
    if confusable or map_file is not None:
        _show_label_set(at, confusable, map_file, verify, json)
    else:
        document = load(at, verify=verify).document
        with damage_named(at):
            parts = _summary(at, document), _classes(document), _history(document)
        if json:
            print_json(document)
        else:
            print_parts(parts)
    if verify:
        say("All files agree with their checksums.")


def _summary(model: Path, document: dict[str, Any]) -> RichTable:
    foundation = document["foundation_model"]
    size = sum(file["bytes"] for file in document["files"])
    parameters = ", ".join(f"{name}={value}" for name, value in document["parameters"].items())
    kind = "LDA" if document["parameters"]["n_components"] is None else "KLDA"
    entries = {
        "model": str(model) + (" (compact: predicts, can't learn)" if document["compact"] else ""),
        "foundation model": f"{foundation['name']}, {foundation['modality']}, "
        f"{_width(document)} features{_engine(foundation)}",
        "classifier": f"{kind}({parameters})",
        "knows": knowledge(len(document["classes"]), document["samples"]),
        "keeps": _kept(document),
        "size": f"{size / 1e6:.1f} MB",
        "saved": f"{document['saved']} by klda {document['klda_version']}",
    }
    summary = RichTable(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold")
    summary.add_column(overflow="fold")
    for name, value in entries.items():
        summary.add_row(name, Text(value))
    return summary


def _width(document: dict[str, Any]) -> int:
    engine = document["engine"]
    return int(engine.get("solution", engine.get("model"))["n_features"])


def _engine(foundation: dict[str, Any]) -> str:
    """Say what runs the foundation model on this computer, where that is known."""
    from klda.encoders import engine_of

    engine = None
    if foundation["modality"] != "features":
        with suppress(KldaError, OSError):
            engine = engine_of(foundation["name"])
    return f", runs on {engine}" if engine else ""


def _kept(document: dict[str, Any]) -> str:
    """Say what the folder holds of single samples; never a text or an image."""
    if document["keep"]:
        samples = counted(document["engine"]["model"]["rows"]["samples"], "sample")
        return f"the features of {samples} (--keep features), no text, no image"
    keeps = document["engine"].get("keeps")
    if keeps is None:
        return "not recorded by the version that wrote it; learn something to have it recorded"
    if "rows" in keeps:
        few = "one row of numbers per sample, no text, no image"
        most = keeps.get("most_rows")
        return f"{few}; with more than {most:,} samples only statistics" if most else few
    if "waiting" in keeps:
        samples = counted(keeps["waiting"], "sample")
        return f"statistics, and the features of {samples} until probabilities are calibrated"
    return "statistics only: counts, means and what all classes share"


def _classes(document: dict[str, Any]) -> RichTable:
    rows = [(label, f"{count:,}") for label, count in document["classes"].items()]
    return table("class", "samples", rows=rows, numbers=("samples",))


def _history(document: dict[str, Any]) -> RichTable:
    entries, rows = document["history"], list[tuple[Any, ...]]()
    if len(entries) > LATEST:
        rows.append(("...", f"{len(entries) - LATEST} earlier"))
    for entry in entries[-LATEST:]:
        change = len(entry.get("new_classes", ())) - len(entry.get("dropped_classes", ()))
        figures = f"{entry['samples']:+,}", f"{change:+,}"
        rows.append((entry["when"], entry["action"], *figures, entry.get("source", "")))
    columns = ("when", "action", "samples", "classes", "source")
    return table(*columns, rows=rows, numbers=("samples", "classes"))


def _show_label_set(
    model: Path, confusable: bool, map_file: Path | None, verify: bool, as_json: bool
) -> None:
    """Print the problems of a model's label set, draw its map, or both."""
    from klda.learner import Learner, label_set

    if map_file is not None:
        plots.check_file("--map", map_file, plots.MAP_SUFFIXES)
    learner = Learner.load(model, verify=verify)
    values: dict[str, Any] = {"model": str(model)}
    if map_file is not None:
        plots.draw_map(learner, map_file)
        say(f"Drew the map of {counted(len(learner.classes), 'class')} in {map_file}.")
        values["map"] = str(map_file)
    if confusable:
        pairs = label_set.confusable(learner.solution, limit=None)
        values["confusable"] = list(map(asdict, pairs))
        values["small_classes"] = list(map(asdict, label_set.small_classes(learner.classes)))
    if as_json:
        print_json(values)
    elif confusable:
        print_parts(_problems(values))


def _problems(found: dict[str, Any]) -> Iterator[Any]:
    """Yield a table of each kind of problem, or a sentence where there is none."""
    pairs = [(p["first"], p["second"], f"{p['confusion']:.1%}") for p in found["confusable"]]
    columns = ("easily confused", "with", "expected confusion")
    confused = table(*columns, rows=pairs, numbers=columns[2:], most=MOST)
    yield confused if pairs else "No classes are easily confused."
    small = [(one["label"], one["samples"]) for one in found["small_classes"]]
    few = table("few samples", "samples", rows=small, numbers=("samples",), most=MOST)
    yield few if small else "No class is too small."


def models(json: options.Json = False) -> None:
    """List the foundation models that have a name, and which of them are installed.

    A model is here if it can be used offline: its weights and the packages that run it are
    installed. The lines below the table say what is missing and how to get it. Any other model
    works, too, by its hub name or as a folder.
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
                    "engine": info.engine(),
                    "offline": info.available_offline(),
                    "missing": info.missing(),
                    "note": info.note,
                }
                for info in MODELS.values()
            ]
        )
        return
    rows, ways, told = [], defaultdict(list), []
    for info in MODELS.values():
        here = Text("yes", style="green") if info.available_offline() else Text("no", style="dim")
        rows.append((info.name, info.modality, info.n_parameters, info.engine(), here, info.note))
        if info.sources:
            ways[info.how_to_get].append(info.name)
        if info.is_here() and info.missing():
            told.append(Text(f"{info.name} is here, but not {', '.join(info.missing())}."))
    columns = ("name", "takes", "size", "runs on", "here", "note")
    told += [Text(f"To get {', '.join(names)}: {how}") for how, names in ways.items()]
    print_parts([table(*columns, rows=rows, numbers=("size",)), *told])
