"""Plots, as PNG files: axes with units, the spread over seeds, a legend beside the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda.benchmarks.metrics import FINAL, METRICS
from klda.benchmarks.tables import Table
from klda.errors import require

# Okabe and Ito's colours: told apart with any colour vision.
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8B6914"),
    *("#6A3D9A", "#7F7F7F", "#B2182B", "#1B7837"),
)
_MARKERS = "osD^vP*Xh<>p"
_DPI = 150
_WIDEST = 30.0  # points; beyond, a method is written at the edge of the panel instead of drawn


def _pyplot() -> Any:
    matplotlib = require("matplotlib", "plot")
    matplotlib.use("Agg")
    plt = require("matplotlib.pyplot", "plot")
    plt.rcParams.update(
        {
            "font.size": 9,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "figure.constrained_layout.use": True,
        }
    )
    return plt


def _style(position: int) -> dict[str, Any]:
    return {
        "color": _COLOURS[position % len(_COLOURS)],
        "marker": _MARKERS[position % len(_MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.4,
    }


def _save(plt: Any, figure: Any, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=_DPI)
    plt.close(figure)
    return file


def table_figure(table: Table, file: Path) -> Path:
    """Draw a table: one panel a column, one line a row; mean, spread over seeds, the paper's.

    Parameters
    ----------
    table : Table
        What to draw.
    file : Path
        PNG file to write.
    """
    plt = _pyplot()
    height = 1.2 + 0.3 * len(table.rows)
    figure, axes = plt.subplots(
        1, len(table.columns), figsize=(2.5 * len(table.columns) + 3.0, height), sharey=True
    )
    positions = np.arange(len(table.rows))[::-1]
    for axis, column, title in zip(
        np.atleast_1d(axes), table.column_names, table.columns, strict=True
    ):
        low = _left_edge(table, column)
        for position, row in zip(positions, table.row_names, strict=True):
            _table_point(axis, table, row, column, position, low)
        if low is not None:
            axis.set_xlim(left=low)
        axis.set_title(title)
        axis.set_xlabel(METRICS[table.metric])
        axis.set_yticks(positions, table.rows)
        axis.set_ylim(-0.6, len(table.rows) - 0.4)
    label = "measured here (bar: standard deviation over seeds)"
    ours = plt.Line2D([], [], color=_COLOURS[0], marker="o", linestyle="-", label=label)
    theirs = plt.Line2D(
        [], [], color=_COLOURS[1], marker="D", fillstyle="none", linestyle="", label="paper"
    )
    figure.legend(handles=[ours, theirs], loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(table.title, fontsize=10)
    return _save(plt, figure, file)


def _left_edge(table: Table, column: str) -> float | None:
    """Where the axis starts, if far lower methods would squeeze the others together."""
    if table.metric not in (FINAL, "average_incremental_accuracy"):
        return None
    entries = [table.entries[row, column] for row in table.row_names]
    means = [entry.ours.mean for entry in entries if entry.ours is not None]
    if not means or max(means) - min(means) < _WIDEST:
        return None
    published = [entry.paper.value for entry in entries if entry.paper is not None]
    shown = [value for value in (*means, *published) if value > max(means) - _WIDEST]
    return min(shown) - 3.0


def _table_point(
    axis: Any, table: Table, row: str, column: str, position: float, low: float | None
) -> None:
    entry = table.entries[row, column]
    if entry.ours is not None and low is not None and entry.ours.mean < low:
        axis.annotate(
            f"\N{LEFTWARDS ARROW} {entry.ours.mean:.1f}",
            (0.02, position),
            xycoords=("axes fraction", "data"),
            va="center",
            color=_COLOURS[0],
        )
    elif entry.ours is not None:
        spread = 0.0 if entry.ours.n < 2 else entry.ours.std
        axis.errorbar(
            entry.ours.mean, position, xerr=spread, fmt="o", color=_COLOURS[0], capsize=3, ms=5
        )
    if entry.paper is not None and (low is None or entry.paper.value >= low):
        axis.plot(entry.paper.value, position, "D", color=_COLOURS[1], fillstyle="none", ms=6)


def curve_figure(
    curves: Mapping[str, Mapping[str, Sequence[tuple[Sequence[int], Sequence[float]]]]],
    file: Path,
    *,
    n_components: int | None = None,
    title: str = "Accuracy while learning",
) -> Path:
    """Draw the accuracy on the classes seen after each task.

    Parameters
    ----------
    curves : mapping
        ``curves[data set][method]``: for each seed the samples seen and the accuracies.
    file : Path
        PNG file to write.
    n_components : int, optional
        Draws a line where as many samples as random features have been seen.
    title : str
        Heading.
    """
    plt = _pyplot()
    columns = min(2, len(curves))
    lines = -(-len(curves) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(5.2 * columns + 1.4, 3.4 * lines + 0.4), squeeze=False
    )
    names = list(dict.fromkeys(name for methods in curves.values() for name in methods))
    for axis in axes.flat[len(curves) :]:
        axis.set_visible(False)
    for axis, (dataset, methods) in zip(axes.flat, curves.items(), strict=False):
        for name, runs in methods.items():
            _curve(axis, runs, name, _style(names.index(name)))
        if n_components is not None:
            axis.axvline(n_components, color="black", linestyle=":", linewidth=1)
            axis.annotate(
                f"N = D = {n_components:,}",
                (n_components, 0.02),
                xycoords=("data", "axes fraction"),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=7,
            )
        axis.set_title(dataset)
        axis.set_xlabel("training samples seen")
        axis.set_ylabel("accuracy on classes seen (%)")
    handles = [plt.Line2D([], [], label=name, **_style(i)) for i, name in enumerate(names)]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    figure.suptitle(f"{title} (mean over seeds; band: lowest to highest seed)", fontsize=10)
    return _save(plt, figure, file)


def _curve(
    axis: Any, runs: Sequence[tuple[Sequence[int], Sequence[float]]], name: str, style: Any
) -> None:
    # Tasks hold different classes in different seeds, so the samples seen differ a little.
    x = np.mean([seen for seen, _ in runs], axis=0)
    y = np.asarray([values for _, values in runs])
    axis.plot(x, y.mean(axis=0), label=name, **style)
    if len(y) > 1:
        axis.fill_between(x, y.min(axis=0), y.max(axis=0), color=style["color"], alpha=0.15, lw=0)


def sweep_figure(
    sweeps: Mapping[str, Mapping[float, Sequence[float]]],
    file: Path,
    *,
    xlabel: str,
    title: str,
) -> Path:
    """Draw final accuracy over a parameter, one line a data set.

    Parameters
    ----------
    sweeps : mapping
        ``sweeps[data set][value]``: accuracies of the seeds.
    file : Path
        PNG file to write.
    xlabel : str
        Name of the parameter.
    title : str
        Heading.
    """
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7.4, 4.0))
    for position, (dataset, points) in enumerate(sweeps.items()):
        x = np.asarray(sorted(points))
        y = [points[value] for value in x.tolist()]
        style = _style(position)
        axis.plot(x, [np.mean(values) for values in y], label=dataset, **style)
        low, high = [np.min(values) for values in y], [np.max(values) for values in y]
        axis.fill_between(x, low, high, color=style["color"], alpha=0.15, lw=0)
    axis.set_xscale("log")
    values = sorted({value for points in sweeps.values() for value in points})
    axis.set_xticks(values, [f"{value:g}" for value in values])
    axis.minorticks_off()
    axis.set_xlabel(f"{xlabel} (logarithmic)")
    axis.set_ylabel("final accuracy (%)")
    figure.legend(loc="outside right center", frameon=False)
    axis.set_title(f"{title}\n(mean over seeds; band: lowest to highest seed)", fontsize=10)
    return _save(plt, figure, file)


def bar_figure(
    rows: Sequence[tuple[str, float, float | None]],
    file: Path,
    *,
    labels: tuple[str, str],
    xlabel: str,
    title: str,
) -> Path:
    """Draw two bars a row on a logarithmic axis.

    Parameters
    ----------
    rows : sequence of tuple
        Heading, first value, second value or ``None``.
    file : Path
        PNG file to write.
    labels : tuple of str
        What the two bars are.
    xlabel, title : str
        Axis and heading.
    """
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7.4, 1.4 + 0.42 * len(rows)))
    positions = np.arange(len(rows))[::-1]
    axis.barh(positions + 0.2, [row[1] for row in rows], 0.36, color=_COLOURS[0], label=labels[0])
    second = [(p, row[2]) for p, row in zip(positions, rows, strict=True) if row[2] is not None]
    if second:
        places, values = zip(*second, strict=True)
        axis.barh(np.asarray(places) - 0.2, values, 0.36, color=_COLOURS[4], label=labels[1])
    axis.set_xscale("log")
    axis.set_yticks(positions, [row[0] for row in rows])
    axis.set_xlabel(xlabel)
    axis.set_title(title)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return _save(plt, figure, file)
