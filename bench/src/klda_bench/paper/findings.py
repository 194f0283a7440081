"""What the runs say about the paper, on one screen: reproduced, ahead, level, behind, not run.

Two figures are level where they differ by at most two standard errors: of a paired difference
where both were measured here, else of the accuracy on the test rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import pandas as pd

from klda_bench.data import catalog
from klda_bench.methods.registry import registry
from klda_bench.paper import published
from klda_bench.paper.accuracy_table import paired, usual_layers
from klda_bench.runs.metrics import FINAL

ERRORS = 2.0
"""Standard errors within which two figures are level."""
_DEFAULT = "klda-default"
_REFERENCES = ("joint", "anacp", "ranpac")
_PLACE = ["backbone", "method", "dataset"]
_WORDS = {"ahead": "Ahead of", "level": "Level with", "behind": "Behind"}

Finding = tuple[str, str]
"""What kind of statement, and the statement."""


def findings(runs: pd.DataFrame) -> list[Finding]:
    """Say what is reproduced, where the default is ahead, level or behind, and what is not run."""
    if runs.empty:
        return []
    own = usual_layers(runs, runs.backbone)
    return [*_reproduced(own), *_compared(own, runs), *_not_run(runs)]


def verdict(difference: float, error: float) -> str:
    """Return ahead, level or behind."""
    if abs(difference) <= ERRORS * error:
        return "level"
    return "ahead" if difference > 0 else "behind"


def _against_the_paper(runs: pd.DataFrame, method: str, theirs: str) -> pd.DataFrame:
    """Return differences of a method to the paper's figures of another, with the same model."""
    rows = []
    for (backbone, dataset), found in runs[runs.method == method].groupby(["backbone", "dataset"]):
        mean, place = found[FINAL].mean(), (backbone, theirs, dataset)
        if place in published.FIGURES:
            tested = found.record.iloc[0]["rows_predicted"]
            error = 100 * math.sqrt(max(mean * (100 - mean), 0) / 1e4 / tested)
            difference = mean - published.FIGURES[place]["paper"]
            rows.append((backbone, dataset, difference, error))
    return _judged(rows)


def _judged(rows: Iterable[tuple[str, str, float, float]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["backbone", "dataset", "difference", "error"])
    frame["verdict"] = [verdict(row.difference, row.error) for row in frame.itertuples()]
    return frame


def _listed(differences: pd.DataFrame) -> str:
    order = {name: i for i, name in enumerate(catalog.DATASETS)}
    rows = sorted(differences.itertuples(), key=lambda row: order.get(row.dataset, 99))
    return ", ".join(
        f"{catalog.title(row.dataset)} {row.difference:+.2f} ± {row.error:.2f}" for row in rows
    )


def _reproduced(runs: pd.DataFrame) -> Iterator[Finding]:
    for method, spec in registry().items():
        if method == "joint":
            continue
        for backbone, found in _against_the_paper(runs, method, method).groupby("backbone"):
            level = int((found.verdict == "level").sum())
            yield (
                "Reproduced" if level == len(found) else "Reproduced in part",
                f"{spec.title} on {published.title(backbone)}, the paper's own model: {level} of "
                f"{len(found)} within the error of the test rows ({_listed(found)}).",
            )


def _compared(own: pd.DataFrame, runs: pd.DataFrame) -> Iterator[Finding]:
    """Our default beside the upper bound, the paper's and ours, and beside the best peers."""
    parts = [("the paper's joint fine-tuning", _against_the_paper(own, _DEFAULT, "joint"))]
    places = runs[runs.method == _DEFAULT][["backbone", "dataset", "layers"]].drop_duplicates()
    for reference in _REFERENCES:
        # A peer gets the features that the default has; joint fine-tuning needs none.
        same = own if reference == "joint" else runs.merge(places)
        title = registry()[reference].title
        name = "our own joint fine-tuning" if reference == "joint" else title
        parts.append((name, _judged(paired(same, _DEFAULT, reference))))
    for kind, word in _WORDS.items():
        for against, frame in parts:
            chosen = frame[frame.verdict == kind]
            listed = "; ".join(
                f"{published.title(backbone)}: {_listed(found)}"
                for backbone, found in chosen.groupby("backbone", sort=False)
            )
            if listed:
                yield f"{word} {against}", f"{listed}."


def _not_run(runs: pd.DataFrame) -> Iterator[Finding]:
    theirs = [name for name in published.BACKBONES if name not in set(runs.backbone)]
    asked = (*catalog.TEXT_SETS, *catalog.IMAGE_SETS)
    sets = [catalog.title(name) for name in asked if name not in set(runs.dataset)]
    if theirs:
        own = sorted(published.title(b) for b in runs.backbone.unique() if published.is_stand_in(b))
        text = f"{', '.join(map(published.title, theirs))}: their weights were not available"
        yield "Not run", text + (f"; stand-ins: {', '.join(own)}." if own else ".")
    if sets:
        yield "Not run", f"{', '.join(sets)}: their data were not available."
