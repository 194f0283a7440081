"""Tables of the few-sample benchmark, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from klda_bench import data
from klda_bench.display import show
from klda_bench.results import Row
from klda_bench.shots.contenders import CONTENDERS, PEERS
from klda_bench.shots.tasks import ALL, KINDS

Titled = tuple[str, pd.DataFrame]
MEASURES = {
    "accuracy": ("accuracy (%)", 1),
    "rare_recall": ("recall of the rare classes (%)", 1),
    "declared_recall": ("recall of the declared classes (%)", 1),
    "others_recall": ("accuracy of the others (%)", 1),
    "others_alone": ("the same without declared classes (%)", 1),
    "expected_accuracy": ("accuracy it expects (%)", 1),
    "expected_off": ("that, off by (points)", 1),
    "calibration_error": ("calibration error", 3),
    "wrong_and_sure": ("wrong and above 90% (%)", 1),
    "known_refused": ("known inputs refused (%)", 1),
    "auroc": ("AUROC of out-of-scope inputs", 3),
    "unknown_taken_for_known": ("out-of-scope inputs taken for known (%)", 1),
}
_DIFFERENCES = {
    "ahead": "accuracy less the best peer's (points)",
    "others_ahead": "accuracy of the others less that without declared classes (points)",
}
OF_PEERS = ("accuracy", "rare_recall", "auroc")
"""What is shown of peers as well."""


@dataclass(frozen=True)
class Target:
    """A bound that the worst data set has to keep, over some numbers of samples per class."""

    kind: str
    measure: str
    title: str
    of: Callable[[float], bool]  # whether it holds for so many samples; infinity is all
    limit: float
    at_least: bool = False
    dataset: str = ""  # if it is for this one only


TARGETS = (
    Target("shots", "ahead", "5 to all", lambda k: k >= 5, -1.5, at_least=True),
    Target("shots", "wrong_and_sure", "1 to all", lambda k: k >= 1, 3.0),
    Target("shots", "known_refused", "1 to 5", lambda k: 1 <= k <= 5, 12.0),
    Target("shots", "known_refused", "8 to all", lambda k: k > 5, 8.0),
    Target("shots", "calibration_error", "1 and 2", lambda k: 1 <= k <= 2, 0.12),
    Target("shots", "calibration_error", "5 to 64", lambda k: 5 <= k < np.inf, 0.07),
    Target("shots", "calibration_error", "all", np.isinf, 0.04),
    Target("shots", "expected_off", "5 to all", lambda k: k >= 5, 2.0),
    *(
        Target("shots", "accuracy", "all", np.isinf, least, at_least=True, dataset=name)
        for name, least in {
            "clinc": 97.0,
            "banking": 94.2,
            "hwu": 92.3,
            "dbpedia": 93.9,
            "sst2": 82.8,
            "emotion": 75.2,
            "agnews": 90.0,
        }.items()
    ),
    Target("noisy", "ahead", "16 and all", lambda k: True, 0.0, at_least=True),
    Target("made", "ahead", "5", lambda k: k == 5, -4.0, at_least=True, dataset="gaussian"),
    Target("made", "ahead", "10", lambda k: k == 10, -2.5, at_least=True, dataset="gaussian"),
    Target("declared", "declared_recall", "80", lambda k: True, 55.0, at_least=True),
    Target("declared", "others_ahead", "80", lambda k: True, -1.0, at_least=True),
)


def sections(name: str, found: Mapping[str, Sequence[Row]]) -> Iterator[Any]:
    """Yield the name of the page, then its tables with their titles: the targets first."""
    yield f"{name}.md"
    means = {kind: _means(rows) for kind, rows in found.items()}
    lines = [line for kind, own in means.items() for line in targets(kind, own)]
    if lines:
        yield "Targets, and the cell that is nearest to missing each", pd.DataFrame(lines)
    for kind, own in means.items():
        for title, frame in tables(own):
            yield f"{KINDS[kind].heading}: {title}", frame


def _means(rows: Sequence[Row]) -> pd.DataFrame:
    """Return means over draws, by data set, method and samples."""
    frame = pd.DataFrame(rows).assign(k=lambda rows: rows.shots.map(_number))
    measures = [name for name in MEASURES if name in frame]
    means = frame.groupby(["dataset", "method", "k"], sort=False)[measures].mean()
    if "expected_accuracy" in means:
        means["expected_off"] = (means.expected_accuracy - means.accuracy).abs()
    return means


def tables(means: pd.DataFrame) -> Iterator[Titled]:
    """Yield every table that means allow, with its title: the data sets together first."""
    names = means.index.unique("dataset")
    if len(names) > 1:
        yield "mean of the data sets", by_shots(means.groupby(["method", "k"], sort=False).mean())
    apart = ahead(means)
    if len(apart):
        yield "accuracy less that of the best peer (points)", _with_ends(apart)
    for name in names:
        yield data.title(str(name)), by_shots(means.loc[name])


def _number(shots: Any) -> float:
    return np.inf if shots == ALL else float(shots)


def _title(k: float) -> str:
    return ALL if np.isinf(k) else f"k = {k:g}"


def by_shots(means: pd.DataFrame) -> pd.DataFrame:
    """Make of means by method and samples a table: measures and methods x samples."""
    ks = sorted(means.index.unique("k"))
    lines = []
    for measure in means:
        title, digits = MEASURES[measure]
        cells = means[measure].unstack("k").reindex(means.index.unique("method"))
        for method, line in cells.dropna(how="all").iterrows():
            if CONTENDERS[method].is_ours or measure in OF_PEERS:
                texts = ["-" if np.isnan(line[k]) else f"{line[k]:.{digits}f}" for k in ks]
                own = dict(zip(map(_title, ks), texts, strict=True))
                lines.append({"": title, "method": CONTENDERS[method].title} | own)
    return pd.DataFrame(lines)


def ahead(means: pd.DataFrame) -> pd.DataFrame:
    """Accuracy of ours less that of the best peer, chosen in hindsight: data sets x samples."""
    if "accuracy" not in means:
        return pd.DataFrame()
    table = means.accuracy.unstack("k").sort_index(axis="columns")
    methods = table.index.get_level_values("method")
    best = table[methods.isin(PEERS)].groupby("dataset", sort=False).max()
    found = table[methods == "ours"].droplevel("method")
    return (found - best.reindex(found.index)).dropna(how="all").dropna(axis=1, how="all")


def _with_ends(apart: pd.DataFrame) -> pd.DataFrame:
    """Add the mean and the lowest of the data sets to differences; write them with signs."""
    if len(apart) > 1:
        ends = pd.DataFrame({"mean": apart.mean(), "lowest": apart.min()}).T
        apart = pd.concat([apart, ends])
    shown = apart.rename(columns=_title, index=data.title)
    shown = shown.map(lambda value: "-" if np.isnan(value) else f"{value:+.1f}")
    return shown.rename_axis("data set").rename_axis(None, axis="columns").reset_index()


def targets(kind: str, means: pd.DataFrame) -> Iterator[Row]:
    """Compare with every target of a kind the cell that is nearest to missing it."""
    ours = "names" if kind == "declared" else "ours"
    own = means[means.index.get_level_values("method") == ours].droplevel("method")
    cells = {name: own[name].dropna() for name in own} | {"ahead": ahead(means).stack()}
    if "others_recall" in own:
        cells["others_ahead"] = own.others_recall - own.others_alone
    for target in TARGETS:
        values = cells.get(target.measure, pd.Series(dtype=float))
        where = [target.of(k) and target.dataset in ("", name) for name, k in values.index]
        values = values[where]
        if target.kind == kind and len(values):
            worst = values.idxmin() if target.at_least else values.idxmax()
            place = f"{data.title(worst[0])}, {_title(worst[1])}"
            yield _line(target.measure, target.title, place, target, values[worst])
    for peer in PEERS if kind == "shots" else ():
        margin = mean_margin(means, peer)
        if len(margin):
            worst = margin.idxmin()
            limit = Target(kind, f"mean less that of {CONTENDERS[peer].title}", "", bool, 0.0, True)
            yield _line(limit.measure, "5 to all", _title(worst), limit, margin[worst])


def mean_margin(means: pd.DataFrame, peer: str) -> pd.Series:
    """Mean over data sets of the accuracy of ours less that of one peer, from five samples on."""
    table = means.accuracy.unstack("method")
    if not {"ours", peer} <= set(table):
        return pd.Series(dtype=float)
    margin = (table["ours"] - table[peer]).dropna().groupby("k").mean()
    return margin[margin.index >= 5]


def _line(measure: str, shots: str, where: str, target: Target, value: float) -> Row:
    title, digits = MEASURES.get(measure, (_DIFFERENCES.get(measure, measure), 1))
    limit = target.limit
    return {
        "": title,
        "samples": shots,
        "target": f"{'at least' if target.at_least else 'at most'} {limit:g}",
        "found": f"{value:.{digits}f}",
        "where": where,
        "kept": "yes" if (value >= limit if target.at_least else value <= limit) else "NO",
    }


def markdown(found: Sequence[Titled]) -> str:
    """Write tables as a Markdown page."""
    lines = ["# Answers by the number of samples per class", ""]
    for title, frame in found:
        lines += [f"## {title}", "", show.markdown(frame), ""]
    return "\n".join(lines)
