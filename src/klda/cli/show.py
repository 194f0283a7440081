"""``klda show``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import options, plots
from klda.cli.console import counted, knowledge, print_json, print_parts, printable, say, table
from klda.cli.options import option
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.learner.folder import StoredModel
    from klda.learner.label_set import TwoInOne

LATEST = 20  # entries of the history
MOST = 20  # lines of a table of the label set; --json has all
NO_LEDGER = (
    "Classes that are two in one can't be found: the model keeps no ledger (klda learn --keep "
    "features)."
)


def show(
    model: options.Model,
    verify: Annotated[
        bool, option("Also read every file and compare its checksum.", "--verify")
    ] = False,
    confusable: Annotated[
        bool,
        option("Show which classes are easily confused, too small, or two in one.", "--confusable"),
    ] = False,
    map_file: Annotated[
        Path | None, option("Draw a map of the classes here (.html, .png, .svg, .pdf).", "--map")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what a model is, what it knows and how it came to be.

    **klda show --model** bot/

    --confusable looks at the label set instead: pairs of classes whose means are close, with the
    fraction of samples expected to be confused (no test data needed), classes with fewer than ten
    samples, and, for a model made with --keep features, classes that fall into two groups. --map
    draws the classes so that those near each other are easily confused.

    **klda show --model** bot/ **--confusable --map** classes.html
    """
    from klda.learner import folder

    if confusable or map_file is not None:
        _show_label_set(model, confusable, map_file, verify, json)
    else:
        stored = folder.load(model, verify=verify)
        with folder.damage_named(model):
            parts = _summary(model, stored), _classes(stored), _history(stored)
        if json:
            print_json(stored.document)
        else:
            print_parts(parts)
    if verify:
        say("All files agree with their checksums.")


def _summary(model: Path, stored: StoredModel) -> RichTable:
    document = stored.document
    foundation, classifier = document["foundation_model"], document["classifier"]
    size = sum(file["bytes"] for file in document["files"])
    parameters = ", ".join(f"{name}={value}" for name, value in classifier["parameters"].items())
    entries = {
        "model": str(model) + (" (compact: predicts, can't learn)" if document["compact"] else ""),
        "foundation model": f"{foundation['name']}, {foundation['modality']}, "
        f"{classifier['n_features']} features{_engine(foundation)}",
        "classifier": f"{classifier['kind']}({parameters})",
        "knows": knowledge(len(document["classes"]), document["samples"]),
        "keeps": _kept(stored),
        "size": f"{size / 1e6:.1f} MB",
        "saved": f"{document['saved']} by klda {document['klda_version']}",
    }
    summary = RichTable(box=None, pad_edge=False, show_header=False)
    summary.add_column(style="bold")
    summary.add_column(overflow="fold")
    for name, value in entries.items():
        summary.add_row(name, Text(value))
    return summary


def _engine(foundation: dict) -> str:
    """Say what runs the foundation model on this computer, where that is known."""
    from klda.encoders import engine_of

    engine = None
    if foundation["modality"] != "features":
        with suppress(KldaError, OSError):
            engine = engine_of(foundation["name"])
    return f", runs on {engine}" if engine else ""


def _kept(stored: StoredModel) -> str:
    """Say what the folder holds of single samples; never a text or an image."""
    if "ledger" in stored.document:
        samples = counted(stored.document["ledger"]["samples"], "sample")
        return f"the features of {samples} (--keep features), no text, no image"
    keeps = stored.document["classifier"].get("keeps")
    if keeps is None:
        keeps = _kept_by_names_of_arrays(stored)
    if "rows" in keeps:
        few = "one row of numbers per sample, no text, no image"
        if "most_rows" not in keeps:
            return few
        return f"{few}; with more than {keeps['most_rows']:,} samples only statistics"
    if "waiting" in keeps:
        samples = counted(keeps["waiting"], "sample")
        return f"statistics, and the features of {samples} until probabilities are calibrated"
    return "statistics only: counts, means and what all classes share"


def _kept_by_names_of_arrays(stored: StoredModel) -> dict[str, int]:
    """Return what a folder holds of samples if, written by 0.1.0, it does not say so itself."""
    arrays = stored.arrays
    support = next((a for name, a in arrays.items() if name.endswith("/support")), None)
    if support is not None and stored.document["compact"]:
        return {"rows": len(support)}
    rows = next((a for name, a in arrays.items() if name.endswith("/rows")), None)
    if rows is not None:  # as long as there is no scatter of all samples
        return {"rows": len(rows), "most_rows": rows.shape[1] // 2}
    pending = arrays.get("learn/pending")
    return {} if pending is None else {"waiting": len(pending)}


def _classes(stored: StoredModel) -> RichTable:
    rows = ((label, f"{count:,}") for label, count in stored.document["classes"].items())
    return table("class", "samples", rows=rows, numbers=("samples",))


def _history(stored: StoredModel) -> RichTable:
    entries = stored.document["history"]
    rows: list[tuple[str, ...]] = (
        [("...", f"{len(entries) - LATEST} earlier")] if len(entries) > LATEST else []
    )
    for entry in entries[-LATEST:]:
        change = len(entry.get("new_classes", ())) - len(entry.get("dropped_classes", ()))
        source = printable(entry.get("source", ""))
        figures = f"{entry['samples']:+,}", f"{change:+,}"
        rows.append((entry["when"], entry["action"], *figures, source))
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
    if map_file is not None:
        plots.draw_map(learner, map_file)
        say(f"Drew the map of {counted(len(learner.classes), 'class')} in {map_file}.")
    found: dict[str, Any] = {}
    if confusable:
        ledger, classifier = learner.ledger, learner.classifier
        found["confusable"] = label_set.confusable(classifier, limit=None)
        found["small_classes"] = label_set.small_classes(classifier)
        # Without a ledger nobody can tell.
        found["two_in_one"] = None if ledger is None else label_set.two_in_one(ledger)
    if as_json:
        values: dict[str, Any] = {"model": str(model)} | options.given(
            map=map_file and str(map_file)
        )
        for name, entries in found.items():
            values[name] = None if entries is None else [asdict(entry) for entry in entries]
        print_json(values)
    elif found:
        print_parts(_problems(**found))


def _problems(
    confusable: list[Any], small_classes: list[Any], two_in_one: list[TwoInOne] | None
) -> Iterator[Any]:
    """Yield a table of each kind of problem, or a sentence where there is none."""
    yield _problem_table(
        ("easily confused", "with", "expected confusion"),
        [(pair.first, pair.second, f"{pair.confusion:.1%}") for pair in confusable],
        "No classes are easily confused.",
    )
    yield _problem_table(
        ("few samples", "samples"),
        [(one.label, one.samples) for one in small_classes],
        "No class is too small.",
    )
    yield (
        NO_LEDGER
        if two_in_one is None
        else _problem_table(
            ("looks like two", "groups", "gap", "typical"),
            [_two_in_one(one) for one in two_in_one],
            "No class looks like two in one.",
        )
    )


def _two_in_one(one: TwoInOne) -> tuple[Any, ...]:
    sizes, ids = " + ".join(map(str, one.sizes)), " and ".join(map(str, one.ids))
    return one.label, sizes, f"{one.gap:.1f}", f"samples {ids}"


def _problem_table(columns: tuple[str, ...], rows: list[tuple[Any, ...]], none: str) -> Any:
    """Return the first rows as a table, or a sentence if there are none."""
    if not rows:
        return none
    more = f"the first {MOST} of {len(rows):,}; --json has all" if len(rows) > MOST else None
    numbers = ("expected confusion", "samples", "groups", "gap")
    return table(*columns, rows=rows[:MOST], numbers=numbers, caption=more, caption_justify="left")
