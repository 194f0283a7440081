"""``klda show`` and ``klda models``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import options
from klda.cli.console import counted, knowledge, print_json, print_parts, say, table
from klda.cli.options import option

LATEST = 5  # entries of the history
MOST = 20  # lines of a table
# Parameters that follow from the foundation model or the machine.
NOT_CHOSEN = ("n_components", "gamma", "blocks", "device", "rule")


def show(
    folder: Annotated[
        Path | None, typer.Argument(help="The model folder; or give --model.")
    ] = None,
    model: options.OptionalModel = None,
    verify: Annotated[
        bool, option("Also read every file and compare its checksum.", "--verify")
    ] = False,
    all_classes: Annotated[
        bool, option(f"List every class, not only the {MOST} smallest.", "--all")
    ] = False,
    confusable: Annotated[
        bool, option("Show which classes are easily confused or too small.", "--confusable")
    ] = False,
    quality: Annotated[
        bool, option("Show how accurate each class is expected to be.", "--quality")
    ] = False,
    map_file: Annotated[
        Path | None,
        option(
            "Draw a map of the classes here (.html, .png, .svg, .pdf).", "--map", metavar="FILE"
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what a model is, what it knows and how it came to be.

    **klda show** bot/

    --confusable looks at the label set instead: pairs of classes whose means are close, with the
    fraction of samples expected to be confused (no test data needed), and classes with fewer than
    ten samples. --map draws the classes so that those near each other are alike. --quality shows
    how accurate the answers are expected to be, by class, the worst first: samples that were
    learned are answered as if they had not been (no test data needed).

    **klda show** bot/ **--confusable --map** classes.html
    """
    from klda.storage.folder import damage_named, load

    at = folder or model
    if at is None or (folder and model):
        raise typer.BadParameter("Give one model folder: klda show DIR, or klda show --model DIR.")
    if confusable or map_file is not None:
        _show_label_set(at, confusable, map_file, verify, json)
    elif quality:
        _show_quality(at, all_classes, verify, json)
    else:
        document = load(at, verify=verify).document
        with damage_named(at):
            parts = _summary(at, document), _classes(document, all_classes), _history(document)
        if json:
            print_json(document)
        else:
            print_parts(parts)
    if verify:
        say("All files agree with their checksums.")


def _summary(model: Path, document: dict[str, Any]) -> RichTable:
    foundation = document["foundation_model"]
    size = sum(file["bytes"] for file in document["files"])
    entries = {
        "model": str(model) + (" (compact: predicts, can't learn)" if document["compact"] else ""),
        "foundation model": f"{foundation['name']}, {foundation['modality']}, "
        f"{_width(document)} features",
        "classifier": _classifier(document),
        "knows": knowledge(len(document["classes"]), document["samples"]),
        "expected accuracy": _expected(document.get("quality")),
        "few samples": _few(document["classes"]),
        "keeps": _kept(document),
        "for undo": _kept_for_undo(document.get("undo")),
        "size": f"{size / 1e6:.1f} MB",
        "saved": f"{_time(document['saved'])} by klda {document['klda_version']}",
    }
    summary = RichTable(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold", no_wrap=True)
    summary.add_column(overflow="fold")
    for name, value in entries.items():
        if value:
            summary.add_row(name, Text(value))
    return summary


def _classifier(document: dict[str, Any]) -> str:
    """Name the classifier, and those of its parameters that are not the default."""
    from klda.engine.parameters import Parameters

    chosen, usual = document["parameters"], Parameters().stored()
    size = chosen["n_components"]
    kind = "LDA" if size is None else f"KLDA with {size:,} random features"
    other = [
        f"{name} {value}"
        for name, value in chosen.items()
        if name not in NOT_CHOSEN and value != usual.get(name)
    ]
    return ", ".join([kind, *other])


def _few(classes: dict[Any, int]) -> str:
    """Name the classes that have fewer samples than they should have."""
    from klda.inspection.label_set import small_classes

    small = [one.label for one in small_classes(classes)]
    more = f" and {len(small) - 3:,} more" if len(small) > 3 else ""
    return f"{', '.join(map(str, small[:3]))}{more}" if small else ""


def _expected(quality: dict[str, Any] | None) -> str:
    """Say how accurate the model is expected to be, if that is known."""
    if quality is None or quality["accuracy"] is None:
        return ""
    likely = f"likely {quality['low']:.0%} to {quality['high']:.0%}"
    return f"{quality['accuracy']:.0%} ({likely}); by class with --quality"


def _time(when: str) -> str:
    return f"{when[:16].replace('T', ' ')} UTC"


def _width(document: dict[str, Any]) -> int:
    engine = document["engine"]
    return int(engine.get("solution", engine.get("model"))["n_features"])


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
    if "pending" in keeps:
        samples = counted(keeps["pending"], "sample")
        return f"statistics, and the features of {samples} until probabilities are calibrated"
    return "statistics only: counts, means and what all classes share"


def _kept_for_undo(undo: dict[str, Any] | None) -> str:
    """Say what the folder holds so that changes can be undone; "" if nothing."""
    if undo is None:
        return ""
    changes = counted(len(undo["changes"]), "change")
    return f"the features of {changes}, for {undo['seconds'] / 3600:g} hours"


def _classes(document: dict[str, Any], all_classes: bool) -> RichTable:
    counts: dict[str, int] = document["classes"]
    names = list(counts)
    if len(names) > MOST and not all_classes:
        names.sort(key=counts.__getitem__)
    rows = [(name, f"{counts[name]:,}") for name in names]
    most = None if all_classes else MOST
    return table("class", "samples", rows=rows, numbers=("samples",), most=most, all_by="--all")


def _history(document: dict[str, Any]) -> RichTable:
    rows = []
    for entry in document["history"][::-1]:
        change = len(entry.get("new_classes", ())) - len(entry.get("dropped_classes", ()))
        figures = f"{entry['samples']:+,}", f"{change:+,}"
        number = entry.get("number", "")
        rows.append((number, _time(entry["when"]), _action(entry), *figures, _source(entry)))
    columns = ("change", "when", "action", "samples", "classes", "source")
    return table(*columns, rows=rows, numbers=("change", "samples", "classes"), most=LATEST)


def _action(entry: dict[str, Any]) -> str:
    undoes, by = entry.get("undoes"), entry.get("undone_by")
    return entry["action"] + (f" of {undoes}" if undoes else "") + (" (undone)" if by else "")


def _source(entry: dict[str, Any]) -> str:
    return str(entry.get("source") or "")


def _show_quality(model: Path, all_classes: bool, verify: bool, as_json: bool) -> None:
    """Print the expected accuracy, overall and by class."""
    from klda.learner import Learner

    found = Learner.load(model, verify=verify).quality()
    if as_json:
        print_json({"model": str(model)} | found.to_dict())
        return
    rows = [
        (one.label, f"{one.samples:,}", f"{one.accuracy:.0%}", f"{one.low:.0%} to {one.high:.0%}")
        for one in found.worst
    ]
    columns, most = (
        ("class", "samples", "expected accuracy", "likely"),
        None if all_classes else MOST,
    )
    shown = table(*columns, rows=rows, numbers=columns[1:], most=most, all_by="--all")
    print_parts([Text(str(found)), *([shown] if rows else [])])


def _show_label_set(
    model: Path, confusable: bool, map_file: Path | None, verify: bool, as_json: bool
) -> None:
    """Print the problems of a model's label set, draw its map, or both."""
    from klda.inspection import label_set, plots
    from klda.learner import Learner

    if map_file is not None:
        plots.check_file("--map", map_file, plots.MAP_SUFFIXES)
    learner = Learner.load(model, verify=verify)
    values: dict[str, Any] = {"model": str(model)}
    if map_file is not None:
        plots.draw_map(learner.solution, map_file)
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
    installed. The lines below the table say how to get the others. Any other model works, too, by
    its hub name or as a folder. Size is that of the weights, speed is in texts per second on one
    core, and accuracy is the mean of the paper's four data sets.
    """
    from klda.encoders import MODELS

    facts = [_facts(info) for info in MODELS.values()]
    if json:
        print_json(facts)
        return
    rows, ways, told = [], defaultdict(list), []
    for info, fact in zip(MODELS.values(), facts, strict=True):
        here = Text("yes", style="green") if fact["offline"] else Text("no", style="dim")
        speed, accuracy = fact["speed"], fact["accuracy"]
        rows.append(
            (
                info.name,
                info.modality,
                _languages(fact["languages"]) if info.modality == "text" else "-",
                f"{info.size:,} MB" if info.size else "-",
                "-" if speed is None else f"{speed:,.0f}",
                "-" if accuracy is None else f"{accuracy:.1%}",
                here,
            )
        )
        if info.sources and not fact["offline"]:
            ways[info.how_to_get].append(info.name)
        if info.is_here() and fact["missing"]:
            told.append(Text(f"{info.name} is here, but not {', '.join(fact['missing'])}."))
    columns = ("name", "takes", "languages", "size", "texts/s", "accuracy", "here")
    told += [Text(f"To get {', '.join(names)}: {how}") for how, names in ways.items()]
    print_parts([table(*columns, rows=rows, numbers=columns[3:6]), *told])


def _facts(info: Any) -> dict[str, Any]:
    return {
        "name": info.name,
        "modality": info.modality,
        "hub_id": info.hub_id,
        "dimension": info.dimension,
        "parameters": info.n_parameters,
        "size": info.size,
        "languages": list(info.languages),
        "speed": info.speed,
        "accuracy": info.accuracy,
        "engine": info.engine(),
        "offline": info.available_offline(),
        "missing": info.missing(),
        "note": info.note,
    }


def _languages(codes: list[str]) -> str:
    from klda.data.languages import NAMES

    if not codes:
        return "any"
    return NAMES.get(codes[0], codes[0]) if len(codes) == 1 else f"{len(codes)}"
