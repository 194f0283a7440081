"""Finished runs that belong into a table: of each method, those at its usual settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from klda_bench.data import DATASETS
from klda_bench.engine import MissingDependencyError
from klda_bench.methods import Context, protocol_gamma, registry
from klda_bench.results import Row, meaning_of_auto
from klda_bench.runs.grid import Cell

_PLACE = ("split", "dataset", "tasks", "backbone", "layers", "method")


def setting_of(settings: Row) -> tuple[Any, Any]:
    """Return all options of a run, with what those that are ``"auto"`` mean."""
    return settings["options"], settings.get("auto", {})


def shown_runs(
    records: Iterable[Row], asked: Mapping[tuple[str, str], tuple[Any, Any]] | None = None
) -> list[Cell]:
    """Choose one setting of each method for each data set, model and choice of layers.

    That asked for, by data set and method, else the usual one. Of a method that has no run at its
    usual settings, and of fine-tuned methods, whose epochs are a matter of what a machine can do,
    the latest. All of the data goes before a part of it. Data sets come in their usual order.
    """

    def place(record: Row) -> tuple[str, ...]:
        return tuple(str(record["settings"][name]) for name in _PLACE)

    cells = []
    for _, group in itertools.groupby(sorted(records, key=place), place):
        runs = sorted(group, key=lambda record: record["finished"])
        chosen = _choose(runs[::-1], asked or {})
        own = [run for run in runs if chosen == (run["settings"]["subset"], *_setting(run))]
        cells += [_cell(run) for run in {run["settings"]["seed"]: run for run in own}.values()]
    order = list(DATASETS)
    return sorted(
        cells, key=lambda cell: order.index(cell.dataset) if cell.dataset in order else 99
    )


def _setting(run: Row) -> tuple[Any, Any]:
    return setting_of(run["settings"])


def _choose(runs: list[Row], asked: Mapping[tuple[str, str], Any]) -> tuple[Any, ...] | None:
    """Return the part of the data, the options and their meaning; None if all are outdated."""
    first = runs[0]["settings"]
    wanted = asked.get((first["dataset"], first["method"])) or _usual(first)
    current = [run for run in runs if not _is_outdated(run["settings"])]
    for run in sorted(current, key=lambda run: run["settings"]["subset"] != ""):
        if _setting(run) == wanted:
            return run["settings"]["subset"], *wanted
    whole = [run for run in current if not run["settings"]["subset"]]
    for run in (*whole, *current):
        return run["settings"]["subset"], *_setting(run)
    return None


def _usual(settings: Row) -> tuple[Any, Any] | None:
    spec = registry().get(settings["method"])
    if spec is None or spec.needs == "inputs":
        return None
    backbone, layers = settings["backbone"], settings["layers"]
    try:
        options = spec.options(Context(backbone, protocol_gamma(backbone, layers)))
    except MissingDependencyError:
        return None
    return options, meaning_of_auto(options)


def _is_outdated(settings: Row) -> bool:
    """Check whether defaults were others when a run was made: in number, or in what they mean."""
    options, spec = settings["options"], registry().get(settings["method"])
    usual = _usual(settings) if spec is not None and spec.own is None else None
    if usual is not None and set(usual[0]) != set(options):
        return True
    return bool(settings.get("auto", {}) != meaning_of_auto(options))


def _cell(run: Row) -> Cell:
    own = run["settings"]
    where = (own["backbone"], own["dataset"], own["method"], own["seed"])
    return Cell(*where, "found", run, settings=own)


def groups(cells: Iterable[Cell], *names: str) -> Iterator[tuple[tuple[str, ...], list[Cell]]]:
    """Group cells by settings, in the order in which these first appear."""
    found: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if cell.settings is not None:
            found.setdefault(tuple(cell.settings[name] for name in names), []).append(cell)
    yield from found.items()
