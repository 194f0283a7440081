"""Tables of the few-sample benchmark, from its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from klda_bench.data import catalog
from klda_bench.results import Row
from klda_bench.shots.contenders import CONTENDERS, PEERS
from klda_bench.shots.tasks import ALL, KINDS

Titled = tuple[str, pd.DataFrame]


def _table(name: str) -> Any:
    return pd.read_csv(str(files(__package__) / name), keep_default_na=False)


MEASURES = {row.name: row for row in _table("measures.csv").itertuples(index=False)}
"""What is measured: how it is called, with how many digits, and whether it is shown of peers."""
TARGETS = _table("targets.csv")
"""Bounds that the worst data set, or the one named, has to keep from `least_k` to `most_k` samples
per class; infinity is all."""


def sections(found: Mapping[str, Sequence[Row]]) -> Iterator[Titled]:
    """Yield the tables of a page with their titles: the targets first."""
    means = {kind: _means(rows) for kind, rows in found.items()}
    lines = [line for kind, own in means.items() for line in targets(kind, own)]
    if lines:
        yield "Targets, and the cell that is nearest to missing each", pd.DataFrame(lines)
    for kind, own in means.items():
        for title, frame in tables(own):
            yield f"{KINDS[kind].heading}: {title}", frame


def _means(rows: Sequence[Row]) -> pd.DataFrame:
    """Return means over draws, by data set, method and samples."""
    frame = pd.DataFrame(rows)
    frame["k"] = [np.inf if shots == ALL else float(shots) for shots in frame.shots]
    measures = [name for name in MEASURES if name in frame]
    means = frame.groupby(["dataset", "method", "k"], sort=False)[measures].mean()
    if "expected_accuracy" in means:
        means["expected_off"] = (means.expected_accuracy - means.accuracy).abs()
    if "accuracy_as_learned" in means:
        off = means.expected_accuracy - means.accuracy_as_learned
        means["expected_off_as_learned"] = off.abs()
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
        yield catalog.title(str(name)), by_shots(means.loc[name])


def _title(k: float) -> str:
    return ALL if np.isinf(k) else f"k = {k:g}"


def by_shots(means: pd.DataFrame) -> pd.DataFrame:
    """Make of means by method and samples a table: measures and methods x samples."""
    ks = sorted(means.index.unique("k"))
    lines = []
    for measure in means:
        known = MEASURES[measure]
        cells = means[measure].unstack("k").reindex(means.index.unique("method"))
        for method, line in cells.dropna(how="all").iterrows():
            if CONTENDERS[method].is_ours or known.of_peers:
                texts = ["-" if np.isnan(line[k]) else f"{line[k]:.{known.digits}f}" for k in ks]
                own = dict(zip(map(_title, ks), texts, strict=True))
                lines.append({"": known.title, "method": CONTENDERS[method].title} | own)
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
    shown = apart.rename(columns=_title, index=catalog.title)
    shown = shown.map(lambda value: "-" if np.isnan(value) else f"{value:+.1f}")
    return shown.rename_axis("data set").rename_axis(None, axis="columns").reset_index()


def targets(kind: str, means: pd.DataFrame) -> Iterator[Row]:
    """Compare with every target of a kind the cell that is nearest to missing it."""
    cells = _cells("names" if kind == "declared" else "ours", means)
    for target in TARGETS[TARGETS.kind == kind].itertuples():
        values = cells.get(target.measure, pd.Series(dtype=float))
        values = values[
            [
                target.least_k <= k <= target.most_k and target.dataset in ("", name)
                for name, k in values.index
            ]
        ]
        if len(values):
            worst = values.idxmin() if target.at_least else values.idxmax()
            found, known = values[worst], MEASURES[target.measure]
            is_kept = found >= target.limit if target.at_least else found <= target.limit
            yield {
                "": known.title,
                "samples": target.title,
                "target": f"{'at least' if target.at_least else 'at most'} {target.limit:g}",
                "found": f"{found:.{known.digits}f}",
                "where": ", ".join(filter(None, [catalog.title(worst[0]), _title(worst[1])])),
                "kept": "yes" if is_kept else "NO",
            }


def _cells(ours: str, means: pd.DataFrame) -> dict[str, pd.Series]:
    """Return what has targets, by data set and samples; means of all data sets have no name."""
    own = means[means.index.get_level_values("method") == ours].droplevel("method")
    cells = {name: own[name].dropna() for name in own} | {"ahead": ahead(means).stack()}
    if "others_recall" in own:
        cells["others_ahead"] = own.others_recall - own.others_alone
    for peer in means.index.unique("method").intersection(PEERS):
        margin = (own.accuracy - means.accuracy.xs(peer, level="method")).dropna()
        mean = margin.groupby("k").mean()
        cells[f"ahead_of_{peer}"] = pd.concat({"": mean}, names=["dataset"])
    return cells
