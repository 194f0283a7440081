"""Pictures: confusion, reliability, the map of the classes."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.errors import KldaError, require
from klda.inspection.class_map import shortened

if TYPE_CHECKING:
    from klda.engine.solution import Solution
    from klda.inspection.class_map import ClassMap
    from klda.inspection.evaluation import Evaluation
    from klda.inspection.label_set import ConfusablePair

SUFFIXES = (".png", ".svg", ".pdf")
MAP_SUFFIXES = (".html", *SUFFIXES)
MOST_LINES = 60  # pairs joined on a map
MOST_CONFUSED = 30  # classes in a confusion matrix
LEAST_IN_BIN = 10  # answers: fewer say little


def check_file(name: str, path: str | Path, suffixes: tuple[str, ...] = SUFFIXES) -> Path:
    """Refuse a file that can't be drawn to, before the work that the plot would show."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        raise KldaError(f"{name} {path}: give a name that ends in {', '.join(suffixes)}.")
    if path.suffix.lower() != ".html":
        require("matplotlib", "plot")
    return path


def draw_confusion(result: Evaluation, path: str | Path) -> None:
    """Draw which classes are taken for which: errors only, classes that are confused together.

    Of many classes the picture shows those that are confused most.
    """
    path = check_file("path", path)
    chosen = confused_classes(result.confusion)
    errors = _errors(result.confusion)
    shown = errors[np.ix_(chosen, chosen)]
    fractions = shown / np.maximum(result.confusion.sum(axis=1)[chosen, None], 1)
    side = min(max(4.5, 0.3 * len(chosen) + 2.5), 14)
    figure, axes = _pyplot().subplots(figsize=(side, side), layout="constrained")
    image = axes.imshow(fractions, cmap="Reds", vmin=0, vmax=max(float(fractions.max()), 0.1))
    names = [shortened(str(result.labels[i])) for i in chosen]
    places = range(len(chosen))
    axes.set_xticks(places, names, rotation="vertical", fontsize=8)
    axes.set_yticks(places, names, fontsize=8)
    edges = np.arange(len(chosen) + 1) - 0.5
    axes.set_xticks(edges, minor=True)
    axes.set_yticks(edges, minor=True)
    axes.grid(which="minor", color="#e4e4e4", linewidth=0.6)
    axes.tick_params(which="minor", length=0)
    middle = float(image.norm.vmax) / 2
    for row, column in zip(*np.nonzero(shown), strict=True):
        colour = "white" if fractions[row, column] > middle else "black"
        count = int(shown[row, column])
        axes.text(column, row, count, ha="center", va="center", fontsize=7, color=colour)
    title = f"{int(errors.sum()):,} errors in {result.samples:,} samples"
    if len(chosen) < len(errors):
        title += (
            f"; {int(shown.sum()):,} of them are among these {len(chosen)} of {len(errors)} classes"
        )
    axes.set_title(title, fontsize=10, wrap=True)
    axes.set(xlabel="answer", ylabel="label")
    figure.colorbar(image, ax=axes, shrink=0.6, label="fraction of the label's samples")
    _save(figure, path)


def confused_classes(confusion: np.ndarray, most: int = MOST_CONFUSED) -> list[int]:
    """Return the classes to show, those that are confused with each other side by side.

    Of many classes: the ones in the most frequent confusions, as far as there is room.
    """
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    both = _errors(confusion)
    both = both + both.T
    chosen = set(range(len(both)))
    if len(both) > most:
        chosen = set()
        rows, columns = np.nonzero(np.triu(both))
        for i in np.argsort(-both[rows, columns], kind="stable"):
            pair = {int(rows[i]), int(columns[i])}
            if len(chosen | pair) > most:
                break
            chosen |= pair
        chosen = chosen or set(range(most))  # without errors
    order = sorted(chosen)
    if len(order) < 3:
        return order
    gaps = squareform(1 / (1 + both[np.ix_(order, order)].astype(float)), checks=False)
    tree = optimal_leaf_ordering(linkage(gaps, "average"), gaps)
    return [order[i] for i in leaves_list(tree)]


def _errors(confusion: np.ndarray) -> np.ndarray:
    errors = confusion.copy()
    np.fill_diagonal(errors, 0)
    return errors


def draw_reliability(result: Evaluation, path: str | Path) -> None:
    """Draw the reliability diagram: how often answers of each probability are right."""
    path = check_file("path", path)
    found = result.reliability.with_at_least(LEAST_IN_BIN)
    figure, axes = _pyplot().subplots(figsize=(5.5, 5.5), layout="constrained")
    axes.plot([0, 1], [0, 1], color="#999999", linestyle="--", linewidth=1, label="calibrated")
    axes.plot(found.confidence, found.accuracy, marker="o", color="#2f56c6", label="answers")
    for count, x, y in zip(found.counts, found.confidence, found.accuracy, strict=True):
        place = (0, -14 if y > 0.5 else 7)
        axes.annotate(f"{count:,}", (x, y), place, textcoords="offset points", ha="center", size=8)
    axes.set(
        xlim=(0, 1.08),
        ylim=(0, 1.08),
        title=f"Expected calibration error {result.reliability.error:.1%}, "
        f"{result.samples:,} samples\n(numbers: answers in each bin)",
        xlabel="probability of the answer",
        ylabel="fraction that is right",
    )
    axes.legend(loc="upper left")
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
        path.write_text(_map_page(title, classes, pairs), encoding="utf-8")
    else:
        _plot_map(title, classes, pairs, path)


def _map_size(count: int) -> tuple[float, float, float]:
    """Return the width and height of a map of so many classes, and the letters' size, in points."""
    height = 72 * min(max(6.0, 1.1 * np.sqrt(count)), 20)
    return 1.2 * height, height, max(5.0, min(9.0, 120 / np.sqrt(max(count, 1))))


def _plot_map(title: str, classes: ClassMap, pairs: list[ConfusablePair], path: Path) -> None:
    width, height, size = _map_size(len(classes.labels))
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


def _map_page(title: str, classes: ClassMap, pairs: list[ConfusablePair]) -> str:
    size = _map_size(len(classes.labels))
    dots = classes.draw(*size)
    at = {dot.label: i for i, dot in enumerate(dots)}
    drawn = {
        "title": title,
        "size": size,
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
