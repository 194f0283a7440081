"""Tables and a plot of the few-sample benchmark, from its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from klda_bench import data
from klda_bench.display import plots, show
from klda_bench.results import Row
from klda_bench.runs.grid import unpack_bits
from klda_bench.runs.metrics import paired_difference
from klda_bench.shots.contenders import CONTENDERS, PEERS
from klda_bench.shots.draws import ALL, OURS

Titled = tuple[str, pd.DataFrame]
Form = Callable[[pd.Series], str]


def _spread(values: pd.Series) -> str:
    return f"{values.mean():.1f}" + (f" ± {values.std():.1f}" if len(values) > 1 else "")


def _highest(digits: int) -> Form:
    return lambda values: f"{values.mean():.{digits}f} ({values.max():.{digits}f})"


BY_DATASET: dict[str, tuple[str, Form]] = {
    "accuracy": ("accuracy (%)", _spread),
    "rare_recall": ("recall of the rare classes (%)", _spread),
    "unknown_taken_for_known": ("out-of-scope inputs taken for known (%)", _spread),
    "unknown_not_judged": ("out-of-scope inputs that can't be judged yet (%)", _spread),
    "known_refused": ("known inputs refused (%)", _spread),
    "auroc": ("AUROC of out-of-scope inputs", lambda values: f"{values.mean():.3f}"),
}
OVERALL: dict[str, tuple[str, Form]] = {
    "calibration_error": ("Calibration error: mean of the data sets (highest)", _highest(3)),
    "wrong_and_sure": ("Wrong and over 90% sure (%): mean of the data sets (highest)", _highest(1)),
}


def tables(rows: Sequence[Row]) -> Iterator[Titled]:
    """Yield every table that the rows allow, with its title."""
    frame = pd.DataFrame(rows)
    for metric, (title, form) in BY_DATASET.items():
        for name, own in frame.groupby("dataset", sort=False):
            if metric in own and own[metric].fillna(0).any():  # a table of zeros says nothing
                yield f"{data.title(str(name))}: {title}", _by_shots(own, metric, form)
    for title, found in (
        ("Accuracy less that of the best peer (points)", ahead(frame)),
        ("All data: accuracy less that of others, with standard error (points)", paired(frame)),
    ):
        if len(found):
            yield title, found
    for metric, (title, form) in OVERALL.items():
        if metric in frame:
            means = frame.groupby(["method", "shots", "dataset"], sort=False)[metric].mean()
            yield title, _by_shots(means.reset_index(), metric, form)


def _by_shots(frame: pd.DataFrame, metric: str, form: Form) -> pd.DataFrame:
    """Methods x samples per class, a text in each cell."""
    frame = frame[frame[metric].notna()]
    cells = frame.groupby(["method", "shots"], sort=False)[metric].agg(form).unstack("shots")
    cells = cells.reindex(index=frame.method.unique(), columns=in_order(frame.shots)).fillna("-")
    cells.index = pd.Index([CONTENDERS[name].title for name in cells.index], name="method")
    return cells.rename_axis(None, axis="columns").reset_index()


def in_order(shots: pd.Series) -> list[Any]:
    """Return the numbers of samples per class, all of them last."""
    return sorted(shots.unique(), key=lambda k: np.inf if k == ALL else k)


def ahead(frame: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracy of ours less that of the best of the peers, by data set and samples.

    The best peer is chosen in hindsight for each cell. Cryptic names are compared with no names.
    """
    columns = in_order(frame.shots)
    means = frame.groupby(["dataset", "method", "shots"], sort=False).accuracy.mean()
    table = means.unstack("shots").reindex(columns=columns)
    best = table[table.index.isin(PEERS, level="method")].groupby("dataset").max()
    lines: list[Row] = []
    for method in [name for name in OURS if name in table.index.unique("method")]:
        own = table.xs(method, level="method")
        than = "ours" if method == "cryptic" else "best peer"
        try:
            base = table.xs("ours", level="method") if than == "ours" else best
        except KeyError:
            continue
        cells = (own - base.reindex(own.index)).dropna(how="all")
        label = f"{CONTENDERS[method].title} - {'no names' if than == 'ours' else than}"
        for name, line in cells.iterrows():
            ends = {"mean": line.mean(), "lowest": line.min()}
            lines.append({"": label, "data set": data.title(str(name))} | dict(line) | ends)
        if len(cells) > 1:
            ends = {"mean": np.nanmean(cells), "lowest": np.nanmin(cells)}
            lines.append({"": label, "data set": "all"} | dict(cells.mean()) | ends)
    found = pd.DataFrame(lines).dropna(axis="columns", how="all")
    return found.map(_points)


def _points(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "-" if np.isnan(value) else f"{value:+.1f}"


def paired(frame: pd.DataFrame) -> pd.DataFrame:
    """Compare ours with every other method on the same test rows, learned from all data."""
    whole = frame[frame.shots == ALL]
    right = {
        place: np.stack([unpack_bits(row.correct, row.test_rows) for row in own.itertuples()])
        for place, own in whole.groupby(["method", "dataset"], sort=False)
    }
    lines = []
    for other in [name for name in whole.method.unique() if name != "ours"]:
        found = {
            name: paired_difference(right["ours", name], right[other, name])
            for name in whole.dataset.unique()
            if ("ours", name) in right and (other, name) in right
        }
        if found:
            points, errors = np.array(list(found.values())).T
            if len(found) == whole.dataset.nunique():
                # Test sets are independent, so the variances of their differences add up.
                found["mean"] = (points.mean(), np.sqrt((errors**2).sum()) / len(errors))
            cells = {data.title(name): f"{d:+.2f} ± {e:.2f}" for name, (d, e) in found.items()}
            lines.append({"klda, no names - ...": CONTENDERS[other].title} | cells)
    return pd.DataFrame(lines).fillna("-")


def markdown(found: Sequence[Titled], heading: str) -> str:
    """Write tables as a Markdown page."""
    lines = [f"# {heading}", ""]
    for title, frame in found:
        lines += [f"## {title}", "", show.markdown(frame), ""]
    return "\n".join(lines)


def draw(rows: Sequence[Row], draws: int, file: Path, title: str) -> Path:
    """Draw accuracy over samples per class, one panel per data set."""
    frame = pd.DataFrame(rows).rename(columns={"draw": "seed", "shots": "value"})
    titles = {name: CONTENDERS[name].title for name in frame.method.unique()}
    how: dict[str, Any] = {"ticks": in_order(frame.value), "xlabel": "training samples per class"}
    return plots.draw_curves(frame, titles, draws, file, title, **how)
