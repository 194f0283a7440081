"""Plots, as PNG files: axes with units, the spread over seeds, a legend beside the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from klda_bench.data import catalog

# Okabe and Ito's colours: told apart with any colour vision.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B6914"),
    *("#6A3D9A", "#7F7F7F", "#B2182B", "#1B7837"),
)
_MARKERS = "osD^vP*Xh<>p"
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
    figure.savefig(file, dpi=150)
    pyplot().close(figure)
    return file


def line_style(position: int) -> dict[str, Any]:
    """Colour and marker of the line at a position."""
    colour, marker = _COLOURS[position % len(_COLOURS)], _MARKERS[position % len(_MARKERS)]
    return {"color": colour, "marker": marker, "markersize": 4.5, "linewidth": 1.4}


def lines(
    curves: pd.DataFrame,
    titles: Mapping[str, str],
    seeds: int,
    file: Path,
    title: str,
    n_components: int | None = None,
    ticks: Sequence[Any] = (),
    xlabel: str = "training samples seen",
) -> Path:
    """Draw accuracy after each task, over the samples seen, one panel per data set.

    A line is drawn where as many samples as random features have been seen. A method with fewer
    runs than `seeds` says so: another order of classes is another curve. With `ticks`, runs are
    drawn over these values of something else (`xlabel`) instead, at equal distances.
    """
    if len(ticks):
        places = curves.value.map({value: float(i) for i, value in enumerate(ticks)})
        curves = curves.assign(task=places, samples_seen=places)
    plt = pyplot()
    panels = list(curves.groupby("dataset", sort=False))
    wide = min(2, len(panels))
    high = -(-len(panels) // wide)
    figure, axes = plt.subplots(high, wide, figsize=(10.0, 6.0), squeeze=False)
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
            groups = runs.accuracy.astype(float).groupby(runs.task)
            axis.plot(x, groups.mean(), label=name, **style)
            axis.fill_between(x, groups.min(), groups.max(), color=style["color"], alpha=0.15, lw=0)
        if n_components is not None:
            axis.axvline(n_components, color="black", linestyle=":", linewidth=1)
            place: Any = {"transform": axis.get_xaxis_transform(), "fontsize": 7}
            axis.text(n_components, 0.02, f" N = D = {n_components:,}", **place)
        axis.set_title(catalog.title(str(dataset)))
        axis.set_xlabel(xlabel)
        axis.set_ylabel("accuracy (%)" if len(ticks) else "accuracy on classes seen (%)")
        if len(ticks):
            axis.set_xticks(range(len(ticks)), [str(value) for value in ticks])
    handles = [plt.Line2D([], [], label=name, **line_style(i)) for name, i in names.items()]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.suptitle(f"{title} (mean over seeds; band: lowest to highest seed)", fontsize=10)
    return save(figure, file)
