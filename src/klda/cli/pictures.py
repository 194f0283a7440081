"""Pictures that commands draw."""

from __future__ import annotations

import re
from html import escape
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


def check_name(option: str, path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Refuse a name that no picture can have, before the work that it would show.

    Parameters
    ----------
    option : str
        The option that it was given with.
    path : Path
        The picture.
    suffixes : tuple of str
        Endings that can be drawn.
    """
    if path.suffix.lower() not in suffixes:
        raise KldaError(f"{option} {path}: give a name that ends in {', '.join(suffixes)}.")


def draw_confusion(result: Evaluation, path: Path) -> None:
    """Draw which classes are taken for which.

    Parameters
    ----------
    result : Evaluation
        Agreement of answers with labels.
    path : Path
        The picture: .png, .svg or .pdf.
    """
    pyplot = _pyplot("--confusion", path, SUFFIXES)
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
    """Draw what probabilities promised beside what came true.

    Parameters
    ----------
    result : Evaluation
        With its reliability.
    path : Path
        The picture: .png, .svg or .pdf.
    """
    found = result.reliability
    if found is None:
        raise KldaError("--reliability: the answers have no probabilities.")
    pyplot = _pyplot("--reliability", path, SUFFIXES)
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(5, 6), height_ratios=(4, 1), sharex=True, layout="constrained"
    )
    bins = len(found.counts)
    middles = (np.arange(bins) + 0.5) / bins
    there = found.counts > 0
    above.plot([0, 1], [0, 1], color="0.3", linewidth=1, label="honest", zorder=3)
    above.bar(middles[there], found.accuracy[there], 0.9 / bins, color="#4c78a8", label="came true")
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
    below.set_ylabel("share")
    below.set_xlabel("probability of the answer")
    _save(pyplot, figure, path)


def draw_map(learner: Learner, path: Path) -> None:
    """Draw the classes so that those near each other are easily confused.

    Parameters
    ----------
    learner : Learner
        With its statistics.
    path : Path
        The picture: .html (names on hover, zoom, search), .png, .svg or .pdf.
    """
    from klda.learner import label_set

    pyplot = None
    if path.suffix.lower() != ".html":
        pyplot = _pyplot("--map", path, MAP_SUFFIXES)
    looked = label_set.Neighbourhood.of(learner.classifier)
    classes, pairs = looked.map(), looked.pairs(MOST_LINES)
    if pyplot is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_map_page(classes, pairs), encoding="utf-8")
    else:
        _plot_map(pyplot, classes, pairs, path)


def _plot_map(pyplot: Any, classes: ClassMap, pairs: list[ConfusablePair], path: Path) -> None:
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
    if count <= 300:
        size = max(5.0, min(9.0, 120 / np.sqrt(count)))
        names = [str(label) for label in classes.labels]
        page = np.array([1.2 * side, side]) * 72 / 2.3  # points from the middle to the edge
        for i, offset in enumerate(_label_offsets(classes.places * page, names, size)):
            axes.annotate(
                names[i],
                (x[i], y[i]),
                xytext=offset,
                textcoords="offset points",
                fontsize=size,
                va="center",
            )
    axes.set_title(_map_title(classes, pairs))
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.14, 0.06)  # room for names at the edge
    _save(pyplot, figure, path)


def _label_offsets(points: np.ndarray, names: list[str], size: float) -> list[tuple]:
    """Where to write names beside points, one after the other where there is still room."""
    height = 1.15 * size
    taken = [np.array([px - 3, py - 3, px + 3, py + 3]) for px, py in points]
    offsets = []
    for (px, py), name in zip(points, names, strict=True):
        width = 0.56 * size * len(name)
        beside = [(5.0, 0.0), (-5.0 - width, 0.0)]
        aslant = [(dx, dy) for dy in (0.8 * size, -0.8 * size) for dx in (4.0, -4.0 - width)]
        across = [(-width / 2, dy) for dy in (1.1 * size, -1.1 * size)]
        boxes = [
            np.array([px + dx, py + dy - height / 2, px + dx + width, py + dy + height / 2])
            for dx, dy in (*beside, *aslant, *across)
        ]
        overlaps = [_overlap(box, np.array(taken)) for box in boxes]
        best = int(np.argmin(overlaps))
        taken.append(boxes[best])
        offsets.append((*beside, *aslant, *across)[best])
    return offsets


def _overlap(box: np.ndarray, others: np.ndarray) -> float:
    """Area that a box (left, bottom, right, top) shares with others."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    return float(np.prod(np.maximum(sides, 0.0), axis=1).sum())


def _map_title(classes: ClassMap, pairs: list[ConfusablePair]) -> str:
    lines = ", red lines join the most easily confused" if pairs else ""
    return f"{len(classes.labels):,} classes: neighbours are alike{lines}"


def _areas(counts: np.ndarray) -> np.ndarray:
    return 12 + 60 * counts / max(int(counts.max(initial=1)), 1)


def _map_page(classes: ClassMap, pairs: list[ConfusablePair]) -> str:
    """Return a page that needs nothing else: an SVG, zoomed by the wheel, with a search field."""
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
    return re.sub("|".join(parts), lambda found: parts[found[0]], MAP_PAGE)


def _pyplot(option: str, path: Path, suffixes: tuple[str, ...]) -> Any:
    check_name(option, path, suffixes)
    matplotlib = require("matplotlib", "plot")
    matplotlib.use("Agg")
    return require("matplotlib.pyplot", "plot")


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


MAP_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Map of the classes</title><style>
body { margin: 0; height: 100vh; display: flex; flex-direction: column;
  font: 14px system-ui, sans-serif; background: #fff; color: #222; }
header { padding: .5em 1em; display: flex; gap: 1em; align-items: baseline; flex-wrap: wrap; }
input { font: inherit; padding: .2em .5em; width: 14em; }
svg { width: 100%; flex: 1; min-height: 0; cursor: grab; touch-action: none; }
circle { fill: #4c78a8; fill-opacity: .75; }
line { stroke: #e45756; stroke-opacity: .6; vector-effect: non-scaling-stroke; }
text { font-size: 10px; fill: #222; }
.faded { opacity: .12; }
@media (prefers-color-scheme: dark) {
  body { background: #16181c; color: #ddd; }
  text { fill: #ddd; } circle { fill: #8ab4e8; } }
</style></head><body>
<header><label>Find <input id="find" type="search" placeholder="part of a name"></label>
<span>@TITLE@. Wheel zooms, dragging moves.</span></header>
<svg viewBox="0 0 1000 1000" role="img" aria-label="Map of the classes">
@LINES@
@DOTS@
</svg>
<script>
const svg = document.querySelector("svg"), dots = [...document.querySelectorAll(".class")];
let view = [0, 0, 1000, 1000], held = null;
function show() {
  svg.setAttribute("viewBox", view.join(" "));
  // Names and dots keep their size on the screen while the distances grow.
  for (const dot of dots) dot.setAttribute("transform",
    dot.getAttribute("transform").split(" scale")[0] + ` scale(${view[2] / 1000})`);
}
function point(event) {
  return new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
}
svg.addEventListener("wheel", event => {
  event.preventDefault();
  const p = point(event), f = Math.min(Math.max(Math.exp(event.deltaY / 400), .5), 2);
  if (view[2] * f > 4000 || view[2] * f < 5) return;
  view = [p.x - (p.x - view[0]) * f, p.y - (p.y - view[1]) * f, view[2] * f, view[3] * f];
  show();
}, { passive: false });
svg.addEventListener("pointerdown", event => {
  held = point(event);
  svg.setPointerCapture(event.pointerId);
});
svg.addEventListener("pointermove", event => {
  if (!held) return;
  const p = point(event);
  view[0] += held.x - p.x; view[1] += held.y - p.y;
  show();
});
svg.addEventListener("pointerup", () => { held = null; });
document.getElementById("find").addEventListener("input", event => {
  const part = event.target.value.toLowerCase();
  view = [0, 0, 1000, 1000];
  show();
  for (const dot of dots) dot.classList.toggle("faded", !dot.dataset.name.includes(part));
});
</script></body></html>
"""
