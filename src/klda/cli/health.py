"""``klda show --confusable`` and ``--map``: the label set, and what is wrong with it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table as RichTable
from rich.text import Text

from klda.cli import pictures
from klda.cli.console import print_json, results, say

if TYPE_CHECKING:
    from klda.learner import Learner
    from klda.learner.label_set import ConfusablePair, SmallClass, TwoInOne

MOST = 20  # lines of a table; --json has all


def show(
    model: Path, *, confusable: bool, map_file: Path | None, verify: bool, as_json: bool
) -> None:
    """Print what is wrong with a model's label set, and draw its map.

    Parameters
    ----------
    model : Path
        Model folder.
    confusable : bool
        Whether to print.
    map_file : Path or None
        Where to draw, if at all.
    verify : bool
        Read every file and compare its checksum.
    as_json : bool
        Print one JSON object.
    """
    from klda.learner import Learner

    if map_file is not None:
        pictures.check_name("--map", map_file, pictures.MAP_SUFFIXES)
    learner = Learner.load(model, verify=verify)
    if map_file is not None:
        pictures.draw_map(learner, map_file)
        say(f"The map of {len(learner.classes):,} classes is drawn in {map_file}.")
    faults = _find_faults(learner) if confusable else None
    if as_json:
        _print_json(model, map_file, faults)
    elif faults is not None:
        _print(faults)


class _Faults(NamedTuple):
    confusable: list[ConfusablePair]
    small_classes: list[SmallClass]
    two_in_one: list[TwoInOne] | None  # None: there is no ledger to tell by


def _find_faults(learner: Learner) -> _Faults:
    from klda.learner import label_set

    return _Faults(
        label_set.confusable(learner.classifier, limit=None),
        label_set.small_classes(learner.classifier),
        label_set.two_in_one(learner.ledger) if learner.ledger is not None else None,
    )


def _print_json(model: Path, map_file: Path | None, faults: _Faults | None) -> None:
    found: dict[str, Any] = {"model": str(model)}
    if map_file is not None:
        found["map"] = str(map_file)
    for name, entries in (faults._asdict() if faults is not None else {}).items():
        found[name] = None if entries is None else [asdict(entry) for entry in entries]
    print_json(found)


def _print(faults: _Faults) -> None:
    pairs, small, double = faults
    console = results()
    console.print(_pairs(pairs) if pairs else "No classes are easily confused.")
    console.print()
    console.print(_small(small) if small else "No class is too small.")
    console.print()
    if double is None:
        console.print(
            "Whether a class is two in one can't be seen: the model keeps no ledger "
            "(klda learn --keep features)."
        )
    else:
        console.print(_double(double) if double else "No class looks like two.")


def _table(total: int, columns: dict[str, str]) -> RichTable:
    more = f"the first {MOST} of {total:,}; --json has all" if total > MOST else None
    table = RichTable(box=None, pad_edge=False, caption=more, caption_justify="left")
    for name, justify in columns.items():
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    return table


def _pairs(pairs: list[ConfusablePair]) -> RichTable:
    columns = {"easily confused": "left", "with": "left", "expected confusion": "right"}
    table = _table(len(pairs), columns)
    for pair in pairs[:MOST]:
        table.add_row(Text(str(pair.first)), Text(str(pair.second)), f"{pair.confusion:.1%}")
    return table


def _small(classes: list[SmallClass]) -> RichTable:
    table = _table(len(classes), {"few samples": "left", "samples": "right"})
    for one in classes[:MOST]:
        table.add_row(Text(str(one.label)), str(one.samples))
    return table


def _double(classes: list[TwoInOne]) -> RichTable:
    columns = {"looks like two": "left", "groups": "right", "gap": "right", "typical": "left"}
    table = _table(len(classes), columns)
    for one in classes[:MOST]:
        sizes: Any = " + ".join(map(str, one.sizes))
        typical = "samples " + " and ".join(map(str, one.ids))
        table.add_row(Text(str(one.label)), sizes, f"{one.gap:.1f}", Text(typical))
    return table
