"""Tables of the few-sample benchmark, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from klda_bench import data
from klda_bench.display import show
from klda_bench.results import Row
from klda_bench.shots.contenders import CONTENDERS, PEERS
from klda_bench.shots.tasks import ALL

Titled = tuple[str, pd.DataFrame]
MEASURES = {
    "accuracy": ("accuracy (%)", 1),
    "rare_recall": ("recall of the rare classes (%)", 1),
    "declared_recall": ("recall of the declared classes (%)", 1),
    "others_recall": ("accuracy of the others (%)", 1),
    "others_alone": ("the same without declared classes (%)", 1),
    "expected_accuracy": ("accuracy it expects (%)", 1),
    "calibration_error": ("calibration error", 3),
    "wrong_and_sure": ("wrong and above 90% (%)", 1),
    "known_refused": ("known inputs refused (%)", 1),
    "auroc": ("AUROC of out-of-scope inputs", 3),
    "unknown_taken_for_known": ("out-of-scope inputs taken for known (%)", 1),
}
OF_PEERS = ("accuracy", "rare_recall", "auroc")
"""What is shown of peers as well."""


@dataclass(frozen=True)
class Target:
    """A bound that the worst data set has to keep, over some numbers of samples per class."""

    measure: str
    title: str
    of: Callable[[float], bool]  # whether it holds for so many samples; infinity is all
    limit: float
    at_least: bool = False


TARGETS = (
    Target("ahead", "5 to all", lambda k: k >= 5, -1.5, at_least=True),
    Target("wrong_and_sure", "1 to all", lambda k: k >= 1, 3.0),
    Target("known_refused", "1 to 5", lambda k: 1 <= k <= 5, 12.0),
    Target("known_refused", "8 to all", lambda k: k > 5, 8.0),
    Target("calibration_error", "1 and 2", lambda k: 1 <= k <= 2, 0.12),
    Target("calibration_error", "5 to 64", lambda k: 5 <= k < np.inf, 0.07),
    Target("calibration_error", "all", np.isinf, 0.04),
)
LEAST_ACCURACY = {
    "clinc": 97.0,
    "banking": 94.2,
    "hwu": 92.3,
    "dbpedia": 93.9,
    "sst2": 82.8,
    "emotion": 75.2,
    "agnews": 90.0,
}
"""Targets with all rows."""


def tables(rows: Sequence[Row], kind: str) -> Iterator[Titled]:
    """Yield every table that the rows allow, with its title: the summary first."""
    measures = [name for name in MEASURES if any(name in row for row in rows)]
    frame = pd.DataFrame(rows).assign(k=lambda rows: rows.shots.map(_number))
    order = ["dataset", "method", "k"]
    means = frame.groupby(order, sort=False)[measures].mean()  # over draws
    if frame.dataset.nunique() > 1:
        yield "Mean of the data sets", by_shots(means.groupby(order[1:], sort=False).mean())
    apart = ahead(means)
    if len(apart):
        yield "Accuracy less that of the best peer (points)", _with_ends(apart)
    if kind == "shots":
        found = targets(means, apart)
        if len(found):
            yield "Targets, and the cell that is nearest to missing each", found
    for name in frame.dataset.unique():
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


def targets(means: pd.DataFrame, apart: pd.DataFrame) -> pd.DataFrame:
    """Compare with every target the cell that is nearest to missing it."""
    own = means[means.index.get_level_values("method") == "ours"].droplevel("method")
    cells = {name: own[name].dropna() for name in own} | {"ahead": apart.stack()}
    lines = []
    for target in TARGETS:
        values = cells.get(target.measure, pd.Series(dtype=float))
        values = values[[target.of(k) for _, k in values.index]]
        if len(values):
            title, digits = MEASURES.get(target.measure, ("accuracy less the best peer's", 1))
            worst = values.idxmin() if target.at_least else values.idxmax()
            where = f"{data.title(worst[0])}, {_title(worst[1])}"
            figures = target.limit, values[worst], target.at_least, digits
            lines.append(_line(title, target.title, where, *figures))
    for peer in PEERS:
        margin = mean_margin(means, peer)
        if len(margin):
            worst = margin.idxmin()
            title = f"mean accuracy less that of {CONTENDERS[peer].title}"
            lines.append(_line(title, "5 to all", _title(worst), 0.0, margin[worst], True, 1))
    for name, least in LEAST_ACCURACY.items():
        if (name, np.inf) in own.index:
            value = own.accuracy[name, np.inf]
            lines.append(_line("accuracy (%)", ALL, data.title(name), least, value, True, 1))
    return pd.DataFrame(lines)


def mean_margin(means: pd.DataFrame, peer: str) -> pd.Series:
    """Mean over data sets of the accuracy of ours less that of one peer, from five samples on."""
    table = means.accuracy.unstack("method")
    if not {"ours", peer} <= set(table):
        return pd.Series(dtype=float)
    margin = (table["ours"] - table[peer]).dropna().groupby("k").mean()
    return margin[margin.index >= 5]


def _line(
    title: str, shots: str, where: str, limit: float, value: float, at_least: bool, digits: int
) -> Row:
    return {
        "": title,
        "samples": shots,
        "target": f"{'at least' if at_least else 'at most'} {limit:g}",
        "found": f"{value:.{digits}f}",
        "where": where,
        "kept": "yes" if (value >= limit if at_least else value <= limit) else "NO",
    }


def markdown(found: Sequence[Titled], heading: str) -> str:
    """Write tables as a Markdown page."""
    lines = [f"# {heading}", ""]
    for title, frame in found:
        lines += [f"## {title}", "", show.markdown(frame), ""]
    return "\n".join(lines)
