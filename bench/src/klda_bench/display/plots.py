"""Plots, as PNG files: axes with units, the spread over seeds, a legend beside the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from klda_bench import data
from klda_bench.runs.metrics import FINAL, METRICS

# Okabe and Ito's colours: told apart with any colour vision.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B6914"),
    *("#6A3D9A", "#7F7F7F", "#B2182B", "#1B7837"),
)
_MARKERS = "osD^vP*Xh<>p"
_DPI = 150
_SIZE = (10.0, 6.0)  # inches, of every figure
_STYLE = {
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
}


def pyplot() -> Any:
    """Return pyplot in this package's style, drawing to files only."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update(_STYLE)
    return plt


def save(figure: Any, file: Path) -> Path:
    """Write a figure as a PNG file and close it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DPI)
    pyplot().close(figure)
    return file


def line_style(position: int) -> dict[str, Any]:
    """Colour and marker of the line at a position."""
    look = {"color": _COLOURS[position % len(_COLOURS)], "markersize": 4.5, "linewidth": 1.4}
    return look | {"marker": _MARKERS[position % len(_MARKERS)]}


def draw_curves(
    curves: pd.DataFrame,
    titles: Mapping[str, str],
    seeds: int,
    file: Path,
    n_components: int | None,
    title: str,
    ticks: Mapping[float, str] | None = None,
) -> Path:
    """Draw the accuracy on the classes seen after each task, one panel per data set.

    A line is drawn where as many samples as random features have been seen. A method with fewer
    runs than `seeds` says so: another order of classes is another curve. With `ticks`, the samples
    are per class, at these places.
    """
    plt = pyplot()
    panels = list(curves.groupby("dataset", sort=False))
    wide = min(2, len(panels))
    high = -(-len(panels) // wide)
    figure, axes = plt.subplots(high, wide, figsize=_SIZE, squeeze=False)
    names: dict[str, int] = {}
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (dataset, rows) in zip(axes.flat, panels, strict=False):
        for method, runs in rows.groupby("method", sort=False):
            n = runs.seed.nunique()
            name = titles[method] + (f" ({n} of {seeds} seeds)" if n < seeds else "")
            # Tasks hold different classes in different seeds: the samples seen differ a little.
            x = runs.samples_seen.astype(float).groupby(runs.task).mean()
            style = line_style(names.setdefault(name, len(names)))
            _line(axis, x, runs.accuracy.astype(float).groupby(runs.task), name, style)
        if n_components is not None:
            axis.axvline(n_components, color="black", linestyle=":", linewidth=1)
            text, at = f"N = D = {n_components:,}", (n_components, 0.02)
            how: dict[str, Any] = {"xytext": (3, 0), "textcoords": "offset points", "fontsize": 7}
            axis.annotate(text, at, xycoords=("data", "axes fraction"), **how)
        axis.set_title(data.title(str(dataset)))
        axis.set_xlabel("training samples seen" if ticks is None else "training samples per class")
        axis.set_ylabel("accuracy on classes seen (%)" if ticks is None else "accuracy (%)")
        if ticks is not None:
            axis.set_xticks(list(ticks), list(ticks.values()))
    handles = [plt.Line2D([], [], label=name, **line_style(i)) for name, i in names.items()]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.suptitle(f"{title} (mean over seeds; band: lowest to highest seed)", fontsize=10)
    return save(figure, file)


def _line(axis: Any, x: Any, groups: Any, name: str, style: dict[str, Any]) -> None:
    """Draw the mean of each group, and a band from its lowest to its highest value."""
    axis.plot(x, groups.mean(), label=name, **style)
    axis.fill_between(x, groups.min(), groups.max(), color=style["color"], alpha=0.15, lw=0)


def draw_sweep(sweep: pd.DataFrame, file: Path, xlabel: str, title: str) -> Path:
    """Draw final accuracy over a parameter (columns dataset, value, accuracy)."""
    figure, axis = pyplot().subplots(figsize=_SIZE)
    for position, (dataset, rows) in enumerate(sweep.groupby("dataset", sort=False)):
        groups = rows.groupby("value").accuracy
        _line(axis, sorted(groups.groups), groups, str(dataset), line_style(position))
    axis.set_xscale("log")
    values = sorted(sweep.value.unique())
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set_xlabel(f"{xlabel} (logarithmic)")
    axis.set_ylabel(METRICS[FINAL])
    figure.legend(loc="outside right center", frameon=False)
    axis.set_title(f"{title}\n(mean over seeds; band: lowest to highest seed)", fontsize=10)
    return save(figure, file)
