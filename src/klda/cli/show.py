"""``klda show``: what a model is, what it knows and how it came to be."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import options
from klda.cli.console import knowledge, print_json, print_parts, say, table
from klda.cli.options import option
from klda.messages import counted

LATEST = 5  # entries of the history
MOST = 20  # lines of a table
# Parameters that follow from the foundation model or the machine.
NOT_CHOSEN = ("n_components", "gamma", "blocks", "device", "rule")


def show(
    folder: options.Folder = None,
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
    from klda.storage.folder import folder_damage_named, load

    at = options.one_folder(folder, model, "show")
    if confusable or quality or map_file is not None:
        _look(at, confusable, quality, all_classes, map_file, verify, json)
    else:
        document = load(at, verify=verify).document
        with folder_damage_named(at):
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
    saved = document["saved"][:16].replace("T", " ")
    entries = {
        "model": str(model) + (" (compact: predicts, can't learn)" if document["compact"] else ""),
        "foundation model": f"{foundation['name']}, {foundation['modality']}{_width(document)}",
        "classifier": _classifier(document),
        "knows": knowledge(len(document["classes"]), document["samples"]),
        "expected accuracy": _expected(document.get("quality")),
        "few samples": _few(document["classes"]),
        "keeps": _kept(document),
        "for undo": _kept_for_undo(document.get("undo")),
        "size": f"{size / 1e6:.1f} MB",
        "saved": f"{saved} UTC by klda {document['klda_version']}",
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

    small = [label for label, _ in small_classes(classes)]
    more = f" and {len(small) - 3:,} more" if len(small) > 3 else ""
    return f"{', '.join(map(str, small[:3]))}{more}" if small else ""


def _expected(quality: dict[str, Any] | None) -> str:
    """Say how accurate the model is expected to be, if that is known."""
    if quality is None or quality["accuracy"] is None:
        return ""
    likely = f"likely {quality['low']:.0%} to {quality['high']:.0%}"
    return f"{quality['accuracy']:.0%} ({likely}); by class with --quality"


def _width(document: dict[str, Any]) -> str:
    engine = document["engine"]
    solved = engine.get("solution", engine.get("model"))
    return f", {solved['n_features']} features" if solved else ""  # unknown if it is new


def _kept(document: dict[str, Any]) -> str:
    """Say what the folder holds of single samples; never a text or an image."""
    if not {"model", "solution"} & document["engine"].keys():
        return "nothing yet"
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
    return table("class", "samples", rows=rows, most=most, all_by="--all")


def _history(document: dict[str, Any]) -> RichTable:
    rows = []
    for entry in document["history"][::-1]:
        classes = len(entry.get("new_classes", ())) - len(entry.get("dropped_classes", ()))
        figures = (f"{change:+,}" if change else "" for change in (entry["samples"], classes))
        when = entry["when"][:16].replace("T", " ")
        number, source = entry.get("number", ""), entry.get("source", "")
        rows.append((number, when, _action(entry), *figures, source))
    columns = ("change", "when (UTC)", "action", "samples", "classes", "source")
    return table(*columns, rows=rows, most=LATEST)


def _action(entry: dict[str, Any]) -> str:
    undoes, by = entry.get("undoes"), entry.get("undone_by")
    return entry["action"] + (f" of {undoes}" if undoes else "") + (" (undone)" if by else "")


def _look(
    model: Path,
    confusable: bool,
    quality: bool,
    all_classes: bool,
    map_file: Path | None,
    verify: bool,
    as_json: bool,
) -> None:
    """Print what is asked for: the expected accuracy, problems of the label set; draw its map."""
    from klda.inspection import label_set, plots
    from klda.learner import Learner

    if map_file is not None:
        plots.check_file("--map", map_file, plots.MAP_SUFFIXES)
    learner, parts = Learner.load(model, verify=verify), list[Any]()
    values: dict[str, Any] = {"model": str(model)}
    most: Any = {"most": None if all_classes else MOST, "all_by": "--all"}
    if map_file is not None:
        plots.draw_map(learner.solution, map_file)
        say(f"Drew the map of {counted(len(learner.classes), 'class')} in {map_file}.")
        values["map"] = str(map_file)
    if quality:
        found = learner.quality()
        values |= found.to_dict()
        head = ("class", "samples", "expected accuracy", "likely")
        rows = [
            (q.label, f"{q.samples:,}", f"{q.accuracy:.0%}", f"{q.low:.0%} to {q.high:.0%}")
            for q in found.worst
        ]
        parts += [Text(str(found)), *([table(*head, rows=rows, **most)] if rows else [])]
    if confusable:
        pairs = label_set.confusable(learner.solution, limit=None)
        small = label_set.small_classes(learner.classes)
        values["confusable"] = list(map(asdict, pairs))
        values["small_classes"] = [{"label": label, "samples": n} for label, n in small]
        close = [(one.first, one.second, f"{one.confusion:.1%}") for one in pairs]
        confused = table("easily confused", "with", "expected confusion", rows=close, **most)
        few = table("few samples", "samples", rows=small, **most)
        parts.append(confused if pairs else "No classes are easily confused.")
        parts.append(few if small else "No class is too small.")
    if as_json:
        print_json(values)
    else:
        print_parts(parts)
