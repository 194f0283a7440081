"""``klda show --confusable`` and ``--map``: problems of the label set, and a map of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from klda.cli import plots
from klda.cli.console import counted, print_json, print_parts, say, table

if TYPE_CHECKING:
    from klda.learner import Learner
    from klda.learner.label_set import ConfusablePair, SmallClass, TwoInOne

MOST = 20  # lines of a table; --json has all
NO_LEDGER = (
    "Classes that are two in one can't be found: the model keeps no ledger (klda learn --keep "
    "features)."
)


def report(
    model: Path, *, confusable: bool, map_file: Path | None, verify: bool, as_json: bool
) -> None:
    """Print the problems of a model's label set, draw its map, or both."""
    from klda.learner import Learner

    if map_file is not None:
        plots.check_file("--map", map_file, plots.MAP_SUFFIXES)
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
    print_parts(
        [
            _table(
                ("easily confused", "with", "expected confusion"),
                [(pair.first, pair.second, f"{pair.confusion:.1%}") for pair in pairs],
                "No classes are easily confused.",
            ),
            _table(
                ("few samples", "samples"),
                [(one.label, one.samples) for one in small],
                "No class is too small.",
            ),
            NO_LEDGER
            if double is None
            else _table(
                ("looks like two", "groups", "gap", "typical"),
                [_two_in_one(one) for one in double],
                "No class looks like two in one.",
            ),
        ]
    )


def _two_in_one(one: TwoInOne) -> tuple[Any, ...]:
    sizes, ids = " + ".join(map(str, one.sizes)), " and ".join(map(str, one.ids))
    return one.label, sizes, f"{one.gap:.1f}", f"samples {ids}"


def _table(columns: tuple[str, ...], rows: list[tuple[Any, ...]], none: str) -> Any:
    """Return the first rows as a table, or a sentence if there are none."""
    if not rows:
        return none
    more = f"the first {MOST} of {len(rows):,}; --json has all" if len(rows) > MOST else None
    numbers = ("expected confusion", "samples", "groups", "gap")
    return table(*columns, rows=rows[:MOST], numbers=numbers, caption=more, caption_justify="left")
