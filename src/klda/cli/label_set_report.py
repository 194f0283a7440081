"""``klda show --confusable`` and ``--map``: problems of the label set, and a map of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import plots
from klda.cli.console import counted, print_json, print_parts, say, table

if TYPE_CHECKING:
    from klda.learner import Learner
    from klda.learner.label_set import ConfusablePair, SmallClass, TwoInOne

MOST = 20  # lines of a table; --json has all


def report(
    model: Path, *, confusable: bool, map_file: Path | None, verify: bool, as_json: bool
) -> None:
    """Print the problems of a model's label set, draw its map, or both."""
    from klda.learner import Learner

    if map_file is not None:
        plots.check_name("--map", map_file, plots.MAP_SUFFIXES)
    learner = Learner.load(model, verify=verify)
    if map_file is not None:
        plots.draw_map(learner, map_file)
        say(f"Drew the map of {counted(len(learner.classes), 'class')} in {map_file}.")
    problems = _find_problems(learner) if confusable else None
    if as_json:
        _print_json(model, map_file, problems)
    elif problems is not None:
        _print(problems)


class _Problems(NamedTuple):
    confusable: list[ConfusablePair]
    small_classes: list[SmallClass]
    two_in_one: list[TwoInOne] | None  # None: without a ledger nobody can tell


def _find_problems(learner: Learner) -> _Problems:
    from klda.learner import label_set

    return _Problems(
        label_set.confusable(learner.classifier, limit=None),
        label_set.small_classes(learner.classifier),
        label_set.two_in_one(learner.ledger) if learner.ledger is not None else None,
    )


def _print_json(model: Path, map_file: Path | None, problems: _Problems | None) -> None:
    found: dict[str, Any] = {"model": str(model)}
    if map_file is not None:
        found["map"] = str(map_file)
    for name, entries in (problems._asdict() if problems is not None else {}).items():
        found[name] = None if entries is None else [asdict(entry) for entry in entries]
    print_json(found)


def _print(problems: _Problems) -> None:
    pairs, small, double = problems
    parts: list[Any] = [
        _pairs(pairs) if pairs else "No classes are easily confused.",
        _small(small) if small else "No class is too small.",
    ]
    if double is None:
        parts.append(
            "Classes that are two in one can't be found: the model keeps no ledger "
            "(klda learn --keep features)."
        )
    else:
        parts.append(_double(double) if double else "No class looks like two in one.")
    print_parts(parts)


def _table(total: int, *columns: str) -> RichTable:
    more = f"the first {MOST} of {total:,}; --json has all" if total > MOST else None
    numbers = ("expected confusion", "samples", "groups", "gap")
    return table(*columns, numbers=numbers, caption=more, caption_justify="left")


def _pairs(pairs: list[ConfusablePair]) -> RichTable:
    shown = _table(len(pairs), "easily confused", "with", "expected confusion")
    for pair in pairs[:MOST]:
        shown.add_row(Text(str(pair.first)), Text(str(pair.second)), f"{pair.confusion:.1%}")
    return shown


def _small(classes: list[SmallClass]) -> RichTable:
    shown = _table(len(classes), "few samples", "samples")
    for one in classes[:MOST]:
        shown.add_row(Text(str(one.label)), str(one.samples))
    return shown


def _double(classes: list[TwoInOne]) -> RichTable:
    shown = _table(len(classes), "looks like two", "groups", "gap", "typical")
    for one in classes[:MOST]:
        typical = "samples " + " and ".join(map(str, one.ids))
        sizes = " + ".join(map(str, one.sizes))
        shown.add_row(Text(str(one.label)), sizes, f"{one.gap:.1f}", Text(typical))
    return shown
