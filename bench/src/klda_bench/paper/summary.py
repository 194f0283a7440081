"""What the runs say about the paper, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from klda_bench import data, published
from klda_bench.methods import registry
from klda_bench.paper.accuracy_table import usual_layers
from klda_bench.runs.metrics import FINAL

CLOSE = 1.0
"""Points within which a figure counts as reproduced: the standard error of 750 to 1,076 test rows
is 0.6 to 1.0."""

_DEFAULT = "klda-default"
_PLACE = ["backbone", "method", "dataset"]
Finding = tuple[str, str]
"""What kind of statement (Reproduced, Ahead, Behind, Not run), and the statement."""


def summarise(runs: pd.DataFrame) -> list[Finding]:
    """Say what is reproduced, what is ahead, and what could not be run."""
    if runs.empty:
        return []
    # Mean over seeds by model, method and data set, on the layers that a method uses itself.
    own = usual_layers(runs, runs.backbone)
    means = own[own.subset == ""].groupby(_PLACE, sort=False)[FINAL].mean()
    return [*_reproduced(means), *_beside_joint(means), *_not_run(runs)]


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


def _not_run(runs: pd.DataFrame) -> Iterator[Finding]:
    theirs = published.MEANS.index.unique("backbone").difference(runs.backbone, sort=False)
    sets = [info.title for name, info in data.DATASETS.items() if name not in set(runs.dataset)]
    if len(theirs):
        own = sorted(published.title(b) for b in runs.backbone.unique() if published.is_stand_in(b))
        text = f"{', '.join(map(published.title, theirs))}: the weights are not on this machine."
        yield "Not run", text + (f" Stand-ins: {', '.join(own)}." if own else "")
    if sets:
        yield "Not run", f"{', '.join(sets)}: the data are not on this machine."
