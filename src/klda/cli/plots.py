"""Plots that commands draw: confusion, reliability, the map of the classes."""

from __future__ import annotations

import json
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
    from sklearn.metrics import ConfusionMatrixDisplay

    count = len(result.labels)
    side = min(max(4.5, 0.16 * count + 2), 24)
    figure, axes = _subplots(figsize=(side, side))
    fractions = result.confusion / np.maximum(result.confusion.sum(axis=1, keepdims=True), 1)
    ConfusionMatrixDisplay(fractions, display_labels=list(map(str, result.labels))).plot(
        ax=axes,
        include_values=False,
        cmap="magma_r",
        xticks_rotation="vertical",
        im_kw={"vmin": 0, "vmax": 1},
    )
    axes.tick_params(labelsize=max(4.0, min(9.0, 400 / max(count, 1))))
    if count > 150:  # too small to read
        axes.set(xticks=[], yticks=[])
    title = f"accuracy {result.accuracy:.1%}, {result.samples:,} samples"
    axes.set(title=title, xlabel="answer", ylabel="label (colour: fraction of its samples)")
    _save(figure, path)


def draw_reliability(result: Evaluation, path: Path) -> None:
    """Draw the reliability diagram: how often answers of each probability are right."""
    from sklearn.calibration import CalibrationDisplay

    found = result.reliability
    figure, (above, below) = _subplots(2, 1, figsize=(5, 6), height_ratios=(4, 1), sharex=True)
    there, bins = found.counts > 0, len(found.counts)
    curve = CalibrationDisplay(found.accuracy[there], found.confidence[there], None)
    curve.plot(ax=above, name="answers")
    above.set(
        title=f"expected calibration error {found.error:.1%}, {result.samples:,} samples",
        xlabel=None,
        ylabel="fraction of answers that are right",
    )
    below.bar((np.arange(bins) + 0.5) / bins, found.counts / found.counts.sum(), 0.9 / bins)
    below.set(xlabel="probability of the answer", ylabel="fraction")
    _save(figure, path)


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
    count = len(classes.labels)
    side = min(max(6.0, 1.1 * np.sqrt(count)), 20)
    figure, axes = _subplots(figsize=(side * 1.2, side))
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
    _save(figure, path)


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
    drawn = {
        "title": _map_title(classes, pairs),
        "classes": [
            {"name": str(label), "samples": samples, "area": area, "x": x, "y": y}
            for label, samples, area, (x, y) in zip(
                classes.labels,
                classes.counts.tolist(),
                _areas(classes.counts).tolist(),
                classes.places.tolist(),
                strict=True,
            )
        ],
        "pairs": [(at[pair.first], at[pair.second], pair.confusion) for pair in pairs],
    }
    page = resources.files("klda.cli").joinpath("class_map.html").read_text(encoding="utf-8")
    # A class may be called </script>.
    return page.replace("@MAP@", json.dumps(drawn).replace("<", r"\u003c"))


def _subplots(*shape: int, **options: Any) -> Any:
    require("matplotlib", "plot").use("Agg")
    return require("matplotlib.pyplot", "plot").subplots(*shape, layout="constrained", **options)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    require("matplotlib.pyplot", "plot").close(figure)
