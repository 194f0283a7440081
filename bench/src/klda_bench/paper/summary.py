"""What the runs say about the paper, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from klda_bench import data, published
from klda_bench.methods import registry
from klda_bench.runs.grid import Cell
from klda_bench.runs.metrics import FINAL, Spread

CLOSE = 1.0
"""Points within which a figure counts as reproduced: the standard error of 750 to 1,076 test rows
is 0.6 to 1.0."""


_DEFAULT = "klda-default"


class Finding(NamedTuple):
    """A statement and the figures behind it."""

    kind: str  # Reproduced, Ahead, Behind, or Not run
    text: str


def summarise(cells: Sequence[Cell]) -> list[Finding]:
    """Say what is reproduced, what is ahead, and what could not be run."""
    means = _means(cells)
    return [*_reproduced(means), *_beside_joint(means), *_not_run(cells)] if cells else []


Means = dict[tuple[str, str, str], float]


def _means(cells: Iterable[Cell]) -> Means:
    """Mean over seeds by model, method and data set, on the layers that a method uses itself."""
    known = registry()
    found: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for cell in cells:
        if cell.record is not None and cell.settings and not cell.settings["subset"]:
            place = (cell.backbone, cell.method, cell.dataset)
            runs = found.setdefault(place, {}).setdefault(cell.settings["layers"], [])
            runs.append(cell.record["metrics"][FINAL])
    return {
        place: Spread.of(runs.get(known[place[1]].layers) or next(iter(runs.values()))).mean
        for place, runs in found.items()
    }


def _listed(differences: dict[str, float]) -> str:
    return ", ".join(f"{data.title(name)} {points:+.2f}" for name, points in differences.items())


def _reproduced(means: Means) -> Iterable[Finding]:
    known = registry()
    places = {place[:2] for place in means if place in published.FIGURES and place[1] != "joint"}
    for backbone, method in sorted(places):
        differences = {
            place[2]: mean - published.FIGURES[place].mean
            for place, mean in means.items()
            if place[:2] == (backbone, method) and place in published.FIGURES
        }
        close = sum(abs(points) <= CLOSE for points in differences.values())
        yield Finding(
            "Reproduced" if close == len(differences) else "Reproduced in part",
            f"{known[method].title} with {published.title(backbone)}, the paper's own model: "
            f"{close} of {len(differences)} figures within {CLOSE:g} point of the paper's "
            f"({_listed(differences)}).",
        )


def _beside_joint(means: Means) -> Iterable[Finding]:
    """Our default beside joint fine-tuning: the paper's and ours."""
    backbones = dict.fromkeys(b for b, method, _ in means if method == _DEFAULT)
    for backbone in sorted(backbones, key=published.is_stand_in):
        own = {d: m for (b, method, d), m in means.items() if (b, method) == (backbone, _DEFAULT)}
        theirs = {
            name: mean - published.FIGURES[backbone, "joint", name].mean
            for name, mean in own.items()
            if (backbone, "joint", name) in published.FIGURES
        }
        ours = {
            name: mean - means[backbone, "joint", name]
            for name, mean in own.items()
            if (backbone, "joint", name) in means
        }
        for whose, differences in (("the paper's", theirs), ("our own", ours)):
            if differences:
                above = sum(points > 0 for points in differences.values())
                ahead = 2 * above > len(differences)
                count = above if ahead else len(differences) - above
                yield Finding(
                    "Ahead" if ahead else "Behind",
                    f"Our default on {published.title(backbone)}, without training, is "
                    f"{'above' if ahead else 'below'} {whose} joint fine-tuning of it on {count} "
                    f"of {len(differences)} ({_listed(differences)}).",
                )


def _not_run(cells: Sequence[Cell]) -> Iterable[Finding]:
    used = {cell.backbone for cell in cells}
    theirs = dict.fromkeys(backbone for backbone, _, _ in published.FIGURES)
    models = [published.title(name) for name in theirs if name not in used]
    sets = [info.title for name, info in data.DATASETS.items() if not _has(cells, name)]
    if models:
        stand_ins = sorted(published.title(name) for name in used if published.is_stand_in(name))
        text = f"{', '.join(models)}: the weights are not on this machine."
        if stand_ins:
            text += f" Stand-ins: {', '.join(stand_ins)}."
        yield Finding("Not run", text)
    if sets:
        yield Finding("Not run", f"{', '.join(sets)}: the data are not on this machine.")


def _has(cells: Sequence[Cell], dataset: str) -> bool:
    return any(cell.dataset == dataset for cell in cells)
