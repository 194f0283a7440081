"""Pictures: confusion, reliability, the map of the classes."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.errors import KldaError, require

if TYPE_CHECKING:
    from klda.engine.solution import Solution
    from klda.inspection.class_map import ClassMap, Dot
    from klda.inspection.evaluation import Evaluation
    from klda.inspection.label_set import ConfusablePair

SUFFIXES = (".png", ".svg", ".pdf")
MAP_SUFFIXES = (".html", *SUFFIXES)
MOST_LINES = 60  # pairs joined on a map


def check_file(name: str, path: str | Path, suffixes: tuple[str, ...] = SUFFIXES) -> Path:
    """Refuse a file that can't be drawn to, before the work that the plot would show."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise KldaError(f"{name} {path}: give a name that ends in {', '.join(suffixes)}.")
    if path.suffix.lower() != ".html":
        require("matplotlib", "plot")
    return path


def draw_confusion(result: Evaluation, path: str | Path) -> None:
    """Draw the confusion matrix: which classes are taken for which."""
    path = check_file("path", path)
    from sklearn.metrics import ConfusionMatrixDisplay

    count = len(result.labels)
    side = min(max(4.5, 0.16 * count + 2), 24)
    figure, axes = _pyplot().subplots(figsize=(side, side), layout="constrained")
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


def draw_reliability(result: Evaluation, path: str | Path) -> None:
    """Draw the reliability diagram: how often answers of each probability are right."""
    path = check_file("path", path)
    from sklearn.calibration import CalibrationDisplay

    found = result.reliability
    figure, (above, below) = _pyplot().subplots(
        2, 1, figsize=(5, 6), height_ratios=(4, 1), sharex=True, layout="constrained"
    )
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


def draw_map(solution: Solution, path: str | Path) -> None:
    """Draw the classes so that those near each other are easily confused.

    An .html file is a page that needs nothing else: names on hover, zoom, search.
    """
    from klda.inspection.label_set import ClassDistances

    path = check_file("path", path, MAP_SUFFIXES)
    distances = ClassDistances.of(solution)
    classes, pairs = distances.map(), distances.pairs(MOST_LINES)
    lines = ", red lines join the most easily confused" if pairs else ""
    title = f"{len(classes.labels):,} classes: neighbours are alike{lines}"
    if path.suffix.lower() == ".html":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_map_page(title, classes.draw(1000, 1000, 10), pairs), encoding="utf-8")
    else:
        _plot_map(title, classes, pairs, path)


def _plot_map(title: str, classes: ClassMap, pairs: list[ConfusablePair], path: Path) -> None:
    count = len(classes.labels)
    height = 72 * min(max(6.0, 1.1 * np.sqrt(count)), 20)  # points, as the letters' size
    width, size = 1.2 * height, max(5.0, min(9.0, 120 / np.sqrt(count)))
    dots = classes.draw(width, height, size)
    at = {dot.label: dot for dot in dots}
    figure = _pyplot().figure(figsize=(width / 72, height / 72 + 0.4))
    axes = figure.add_axes((0, 0, 1, height / (height + 0.4 * 72)))
    axes.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[], title=title)
    for pair in pairs:
        ends, strength = (at[pair.first], at[pair.second]), min(1.0, 0.3 + 5 * pair.confusion)
        x, y = [dot.x for dot in ends], [dot.y for dot in ends]
        axes.plot(x, y, color="#e45756", alpha=strength, linewidth=2, zorder=1)
    x, y = [dot.x for dot in dots], [dot.y for dot in dots]
    areas = [(2 * dot.radius) ** 2 for dot in dots]
    axes.scatter(x, y, s=areas, color="#4c78a8", alpha=0.75, linewidths=0, zorder=2)
    for dot in dots:
        if dot.has_room:
            axes.text(dot.name_x, dot.name_y, dot.name, fontsize=size, ha="center", va="baseline")
    _save(figure, path)


def _map_page(title: str, dots: list[Dot], pairs: list[ConfusablePair]) -> str:
    at = {dot.label: i for i, dot in enumerate(dots)}
    drawn = {
        "title": title,
        "classes": [asdict(dot) for dot in dots],
        "pairs": [(at[pair.first], at[pair.second], pair.confusion) for pair in pairs],
    }
    page = resources.files("klda.inspection").joinpath("class_map.html").read_text(encoding="utf-8")
    # A class may be called </script>.
    return page.replace("@MAP@", json.dumps(drawn).replace("<", r"\u003c"))


def _pyplot() -> Any:
    require("matplotlib", "plot").use("Agg")
    return require("matplotlib.pyplot", "plot")


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    _pyplot().close(figure)
