"""Plots that commands draw: confusion, reliability, the map of the classes."""

from __future__ import annotations

import re
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.errors import KldaError, require

if TYPE_CHECKING:
    from klda.learner import Learner
    from klda.learner.evaluation import Evaluation
    from klda.learner.label_set import ClassMap, ConfusablePair

SUFFIXES = (".png", ".svg", ".pdf")
MAP_SUFFIXES = (".html", *SUFFIXES)
MOST_LINES = 60  # pairs joined on a map
MOST_NAMES = 300  # in a picture; a page has them all


def check_file(option: str, path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Refuse a file that can't be drawn to, before the work that the plot would show."""
    if path.suffix.lower() not in suffixes:
        raise KldaError(f"{option} {path}: give a name that ends in {', '.join(suffixes)}.")
    if path.suffix.lower() != ".html":
        require("matplotlib", "plot")


def draw_confusion(result: Evaluation, path: Path) -> None:
    """Draw the confusion matrix: which classes are taken for which."""
    pyplot = _pyplot()
    count = len(result.labels)
    totals = np.maximum(result.confusion.sum(axis=1, keepdims=True), 1)
    side = min(max(4.5, 0.16 * count + 2), 24)
    figure, axes = pyplot.subplots(figsize=(side, side), layout="constrained")
    image = axes.imshow(result.confusion / totals, cmap="magma_r", vmin=0, vmax=1)
    names = [str(label) for label in result.labels]
    size = max(4.0, min(9.0, 400 / max(count, 1)))
    if count <= 150:
        axes.set_xticks(range(count), names, rotation=90, fontsize=size)
        axes.set_yticks(range(count), names, fontsize=size)
    axes.set_xlabel("answer")
    axes.set_ylabel("label")
    axes.set_title(f"accuracy {result.accuracy:.1%}, {result.samples:,} samples")
    figure.colorbar(image, ax=axes, shrink=0.7, label="fraction of the label's samples")
    _save(pyplot, figure, path)


def draw_reliability(result: Evaluation, path: Path) -> None:
    """Draw the reliability diagram: how often answers of each probability are right."""
    found = result.reliability
    pyplot = _pyplot()
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(5, 6), height_ratios=(4, 1), sharex=True, layout="constrained"
    )
    bins = len(found.counts)
    middles = (np.arange(bins) + 0.5) / bins
    there = found.counts > 0
    above.plot([0, 1], [0, 1], color="0.3", linewidth=1, label="calibrated", zorder=3)
    above.bar(middles[there], found.accuracy[there], 0.9 / bins, color="#4c78a8", label="accuracy")
    above.plot(
        found.confidence[there],
        found.accuracy[there],
        "o",
        color="#e45756",
        markersize=4,
        label="by mean probability",
    )
    above.set_ylabel("fraction of answers that are right")
    above.set_xlim(0, 1)
    above.set_ylim(0, 1.02)
    above.legend(loc="upper left", frameon=False)
    above.set_title(f"expected calibration error {found.error:.1%}, {result.samples:,} samples")
    below.bar(middles, found.counts / found.counts.sum(), 0.9 / bins, color="0.6")
    below.set_ylabel("fraction")
    below.set_xlabel("probability of the answer")
    _save(pyplot, figure, path)


def draw_map(learner: Learner, path: Path) -> None:
    """Draw the classes so that those near each other are easily confused.

    An .html file is a page that needs nothing else: names on hover, zoom, search.
    """
    from klda.learner import label_set

    looked = label_set.Neighbourhood.of(learner.classifier)
    classes, pairs = looked.map(), looked.pairs(MOST_LINES)
    if path.suffix.lower() == ".html":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_map_page(classes, pairs), encoding="utf-8")
    else:
        _plot_map(classes, pairs, path)


def _plot_map(classes: ClassMap, pairs: list[ConfusablePair], path: Path) -> None:
    pyplot = _pyplot()
    count = len(classes.labels)
    side = min(max(6.0, 1.1 * np.sqrt(count)), 20)
    figure, axes = pyplot.subplots(figsize=(side * 1.2, side), layout="constrained")
    x, y = classes.places.T
    at = {label: i for i, label in enumerate(classes.labels)}
    for pair in pairs:
        i, j = at[pair.first], at[pair.second]
        strength = min(1.0, 0.3 + 5 * pair.confusion)
        axes.plot(x[[i, j]], y[[i, j]], color="#e45756", alpha=strength, linewidth=2, zorder=1)
    axes.scatter(x, y, s=_areas(classes.counts), color="#4c78a8", alpha=0.75, zorder=2)
    if count <= MOST_NAMES:
        _write_names(axes, classes, np.array([1.2 * side, side]))
    axes.set_title(_map_title(classes, pairs))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.14, 0.06)  # room for names at the edge
    _save(pyplot, figure, path)


def _write_names(axes: Any, classes: ClassMap, inches: np.ndarray) -> None:
    from klda.learner.plane_layout import name_width, place_names

    names = [str(label) for label in classes.labels]
    size = max(5.0, min(9.0, 120 / np.sqrt(len(names))))
    page = inches * 70  # points, less the frame
    points = page / 2 + classes.places * inches * 72 / 2.3  # as far out as the axes' margins let
    widths = np.array([name_width(name) * size for name in names])
    height = 1.15 * size
    corners, _ = place_names(points, np.full(len(names), 4.0), widths, height, page)
    for name, place, offset in zip(names, classes.places, corners - points, strict=True):
        axes.annotate(
            name,
            place,
            xytext=(offset[0], offset[1] + height / 2),
            textcoords="offset points",
            fontsize=size,
            va="center",
        )


def _map_title(classes: ClassMap, pairs: list[ConfusablePair]) -> str:
    lines = ", red lines join the most easily confused" if pairs else ""
    return f"{len(classes.labels):,} classes: neighbours are alike{lines}"


def _areas(counts: np.ndarray) -> np.ndarray:
    return 12 + 60 * counts / max(int(counts.max(initial=1)), 1)


def _map_page(classes: ClassMap, pairs: list[ConfusablePair]) -> str:
    at = {label: i for i, label in enumerate(classes.labels)}
    places = np.round(500 + 460 * classes.places * (1, -1), 1)
    radii = np.round(np.sqrt(_areas(classes.counts)) / 1.5, 1)
    lines = []
    for pair in pairs:
        (x1, y1), (x2, y2) = places[at[pair.first]], places[at[pair.second]]
        title = f"{pair.first} / {pair.second}: {pair.confusion:.1%} expected confusion"
        width = 1.5 + 20 * pair.confusion
        lines.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke-width="{width:.1f}">'
            f"<title>{escape(title)}</title></line>"
        )
    dots = []
    for i, label in enumerate(classes.labels):
        x, y = places[i]
        name = escape(str(label))
        dots.append(
            f'<g class="class" data-name="{escape(str(label).lower(), quote=True)}" '
            f'transform="translate({x} {y})"><circle r="{radii[i]}">'
            f"<title>{name}: {int(classes.counts[i]):,} samples</title></circle>"
            f'<text x="{radii[i] + 1}" y="3">{name}</text></g>'
        )
    parts = {
        "@TITLE@": escape(_map_title(classes, pairs)),
        "@LINES@": "\n".join(lines),
        "@DOTS@": "\n".join(dots),
    }
    # In one pass: a class may be called @DOTS@.
    page = resources.files("klda.cli").joinpath("class_map.html").read_text(encoding="utf-8")
    return re.sub("|".join(parts), lambda found: parts[found[0]], page)


def _pyplot() -> Any:
    require("matplotlib", "plot").use("Agg")
    return require("matplotlib.pyplot", "plot")


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
