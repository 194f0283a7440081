"""Tables and a plot of the few-sample benchmark, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from klda_bench import data
from klda_bench.report import plots
from klda_bench.results import Row
from klda_bench.runs.grid import unpack_bits
from klda_bench.runs.metrics import Spread, paired_difference
from klda_bench.shots.contenders import CONTENDERS, PEERS
from klda_bench.shots.draws import ALL

OURS = ("ours", "names", "cryptic")
UNKNOWN = {
    "unknown_taken_for_known": "out-of-scope inputs taken for known (%)",
    "unknown_not_judged": "out-of-scope inputs not judged (%)",
    "known_refused": "known inputs refused (%)",
    "auroc": "AUROC",
}
Titled = tuple[str, pd.DataFrame]


def tables(rows: Sequence[Row]) -> Iterator[Titled]:
    """Yield every table that the rows allow, with its title."""
    frame = pd.DataFrame(rows)
    frame["title"] = frame.method.map(lambda name: CONTENDERS[name].title)
    for name, own in frame.groupby("dataset", sort=False):
        yield f"{data.title(str(name))}: accuracy (%)", _by_shots(own, "accuracy", _spread)
        if "rare_recall" in frame:
            title = f"{data.title(str(name))}: recall of the rare classes (%)"
            yield title, _by_shots(own, "rare_recall", _spread)
    differences = ahead(frame)
    if len(differences):
        yield "Accuracy less that of the best peer (points)", differences
    for metric, title in {
        "calibration_error": "Calibration error: mean over data sets (highest)",
        "wrong_and_sure": "Wrong answers above 90% confidence (% of all): mean (highest)",
    }.items():
        if metric in frame:
            means = frame.groupby(["title", "shots", "dataset"], sort=False)[metric].mean()
            yield title, _by_shots(means.reset_index().dropna(), metric, _mean_and_highest)
    for metric, title in UNKNOWN.items():
        if metric in frame and frame[metric].notna().any():
            form = _spread if metric != "auroc" else _short
            yield f"CLINC: {title}", _by_shots(frame[frame[metric].notna()], metric, form)
    paired = paired_with_all_data(frame)
    if len(paired):
        title = "All data: accuracy less that of others, paired, with its standard error (points)"
        yield title, paired


def _spread(values: pd.Series) -> str:
    spread = Spread.of(values.tolist())
    return f"{spread.mean:.1f}" + ("" if spread.std is None else f" ± {spread.std:.1f}")


def _short(values: pd.Series) -> str:
    return f"{values.mean():.3f}"


def _mean_and_highest(values: pd.Series) -> str:
    digits = 3 if values.max() <= 1.0 else 1
    return f"{values.mean():.{digits}f} ({values.max():.{digits}f})"


def _by_shots(frame: pd.DataFrame, metric: str, form: Callable[[pd.Series], str]) -> pd.DataFrame:
    """Methods x samples per class, a text in each cell."""
    cells = frame.groupby(["title", "shots"], sort=False)[metric].agg(form).unstack("shots")
    cells = cells.reindex(index=frame.title.unique(), columns=_in_order(frame.shots))
    return cells.fillna("-").rename_axis("method").rename_axis(None, axis=1).reset_index()


def _in_order(shots: pd.Series) -> list[Any]:
    return sorted(shots.unique(), key=lambda k: np.inf if k == ALL else k)


def ahead(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy of ours less that of the best of the peers, by data set and samples.

    The best peer is chosen in hindsight for each cell. Cryptic names are compared with no names.
    """
    means = frame.groupby(["method", "dataset", "shots"], sort=False).accuracy.mean()
    methods = means.index.unique("method")
    best = means[means.index.isin(PEERS, level="method")].groupby(["dataset", "shots"]).max()
    lines = []
    for method in [name for name in OURS if name in methods]:
        base = means["ours"] if method == "cryptic" and "ours" in methods else best
        differences = (means[method] - base).dropna().unstack("shots")
        differences = differences.reindex(columns=_in_order(frame.shots)).dropna(axis=1, how="all")
        differences = differences.reindex(frame.dataset.unique()).dropna(how="all")
        if differences.empty:
            continue
        than = "no names" if base is not best else "best peer"
        label = f"{CONTENDERS[method].title} - {than}"
        differences.loc["mean"] = differences.mean()
        cells = differences.to_numpy()[:-1]
        overall = {"mean": np.nanmean(cells), "lowest": np.nanmin(cells)}
        for name, line in differences.iterrows():
            ends = overall if name == "mean" else {"mean": line.mean(), "lowest": line.min()}
            named = {"": label, "data set": data.title(str(name))}
            lines.append(named | line.to_dict() | ends)
    order = ["", "data set", *_in_order(frame.shots), "mean", "lowest"]
    found = pd.DataFrame(lines, columns=[c for c in order if any(c in line for line in lines)])
    return found.map(lambda value: f"{value:+.1f}" if isinstance(value, float) else value)


def paired_with_all_data(frame: pd.DataFrame) -> pd.DataFrame:
    """Ours against every other method on the same test rows, learned from all data."""
    whole = frame[frame.shots == ALL]
    correct = {
        place: np.stack([unpack_bits(r.correct, r.test_rows) for r in own.itertuples()])
        for place, own in whole.groupby(["method", "dataset"], sort=False)
    }
    lines = []
    for other in [name for name in whole.method.unique() if name != "ours"]:
        found = {
            dataset: paired_difference(correct["ours", dataset], correct[other, dataset])
            for dataset in whole.dataset.unique()
            if ("ours", dataset) in correct and (other, dataset) in correct
        }
        if not found:
            continue
        # Test sets are independent, so the variances of their differences add up.
        mean = np.mean([difference for difference, _ in found.values()])
        error = np.sqrt(np.sum([error**2 for _, error in found.values()])) / len(found)
        line = {data.title(name): f"{d:+.2f} ± {e:.2f}" for name, (d, e) in found.items()}
        named = {"method": f"{CONTENDERS['ours'].title} - {CONTENDERS[other].title}"}
        lines.append(named | line | {"mean": f"{mean:+.2f} ± {error:.2f}"})
    return pd.DataFrame(lines)


def markdown(found: Sequence[Titled], heading: str) -> str:
    """Write tables as a Markdown page."""
    lines = [f"# {heading}", ""]
    for title, frame in found:
        lines += [f"## {title}", "", _line(frame.columns), _line(["---"] * len(frame.columns))]
        lines += [*(_line(row) for row in frame.fillna("-").to_numpy().tolist()), ""]
    return "\n".join(lines)


def _line(cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def draw(rows: Sequence[Row], draws: int, file: Path, title: str) -> Path:
    """Draw accuracy over samples per class, one panel per data set."""
    frame = pd.DataFrame(rows).rename(columns={"draw": "seed"})
    places = {shots: float(i) for i, shots in enumerate(_in_order(frame.shots))}
    at = frame.shots.map(places)
    ticks = {place: str(shots) for shots, place in places.items()}
    titles = {name: CONTENDERS[name].title for name in frame.method.unique()}
    curves = frame.assign(task=at, samples_seen=at)
    return plots.draw_curves(curves, titles, draws, file, None, title, ticks)
