"""What the runs say about the paper, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from klda_bench import data, published
from klda_bench.methods import registry
from klda_bench.paper.accuracy_table import used_models, usual_layers
from klda_bench.runs.grid import Cell
from klda_bench.runs.metrics import FINAL

CLOSE = 1.0
"""Points within which a figure counts as reproduced: the standard error of 750 to 1,076 test rows
is 0.6 to 1.0."""

_DEFAULT = "klda-default"
_PLACE = ["backbone", "method", "dataset"]
Finding = tuple[str, str]
"""What kind of statement (Reproduced, Ahead, Behind, Not run), and the statement."""


def summarise(cells: Sequence[Cell]) -> list[Finding]:
    """Say what is reproduced, what is ahead, and what could not be run."""
    if not cells:
        return []
    means = _means(cells)
    return [*_reproduced(means), *_beside_joint(means), *_not_run(cells)]


def _means(cells: Sequence[Cell]) -> pd.Series:
    """Mean over seeds by model, method and data set, on the layers that a method uses itself."""
    runs = [
        {name: getattr(cell, name) for name in _PLACE} | {"accuracy": cell.record["metrics"][FINAL]}
        for cell in usual_layers(cells, used_models(cells))
        if cell.record is not None and cell.settings and not cell.settings["subset"]
    ]
    frame = pd.DataFrame(runs, columns=[*_PLACE, "accuracy"])
    return frame.groupby(_PLACE, sort=False).accuracy.mean()


def _listed(differences: pd.Series) -> str:
    points = zip(differences.index.get_level_values("dataset"), differences, strict=True)
    return ", ".join(f"{data.title(name)} {value:+.2f}" for name, value in points)


def _reproduced(means: pd.Series) -> Iterator[Finding]:
    known = registry()
    found = (means - published.MEANS.reindex(means.index)).dropna()
    for (backbone, method), differences in found.groupby(level=["backbone", "method"]):
        if method != "joint":
            close = int((differences.abs() <= CLOSE).sum())
            yield (
                "Reproduced" if close == len(differences) else "Reproduced in part",
                f"{known[method].title} with {published.title(backbone)}, the paper's own model: "
                f"{close} of {len(differences)} figures within {CLOSE:g} point of the paper's "
                f"({_listed(differences)}).",
            )


def _beside_joint(means: pd.Series) -> Iterator[Finding]:
    """Our default beside joint fine-tuning: the paper's and ours."""
    ours = means[means.index.get_level_values("method") == _DEFAULT]
    by_model = ours.groupby(level="backbone", sort=False)
    for backbone, own in sorted(by_model, key=lambda found: published.is_stand_in(found[0])):
        joint = [(backbone, "joint", name) for name in own.index.get_level_values("dataset")]
        for whose, figures in (("the paper's", published.MEANS), ("our own", means)):
            differences = (own - figures.reindex(joint).to_numpy()).dropna()
            above = int((differences > 0).sum())
            ahead = 2 * above > len(differences)
            count = above if ahead else len(differences) - above
            if len(differences):
                yield (
                    "Ahead" if ahead else "Behind",
                    f"Our default on {published.title(backbone)}, without training, is "
                    f"{'above' if ahead else 'below'} {whose} joint fine-tuning of it on {count} "
                    f"of {len(differences)} ({_listed(differences)}).",
                )


def _not_run(cells: Sequence[Cell]) -> Iterator[Finding]:
    used, used_sets = ({getattr(c, name) for c in cells} for name in ("backbone", "dataset"))
    theirs = published.MEANS.index.unique("backbone")
    models = [published.title(name) for name in theirs if name not in used]
    sets = [info.title for name, info in data.DATASETS.items() if name not in used_sets]
    if models:
        stand_ins = sorted(published.title(name) for name in used if published.is_stand_in(name))
        text = f"{', '.join(models)}: the weights are not on this machine."
        yield "Not run", text + (f" Stand-ins: {', '.join(stand_ins)}." if stand_ins else "")
    if sets:
        yield "Not run", f"{', '.join(sets)}: the data are not on this machine."
