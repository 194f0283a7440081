"""Coordinates for the two pictures on the page; the templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from klda.labels import Label
from klda.learner.label_set import ClassMap
from klda.learner.plane_layout import name_width, place_names
from klda.server.changes import Tally

WIDTH, HEIGHT, MARGIN = 640, 420, 40
MAX_NAMES, MAX_NAME_LENGTH = 40, 24
FONT_SIZE, PHONE_FONT_SIZE = 12, 22  # on a phone the map is drawn small
LATEST = 500  # samples that the chart shows
STEPS = 40


@dataclass(frozen=True)
class Dot:
    """A class on the map."""

    label: Label
    count: int
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Name:
    """A name on the map; `x` is its middle, `y` its base line."""

    text: str
    x: float
    y: float


def dots(classes: ClassMap | None) -> list[Dot]:
    """Place the classes on the map, in pixels; the largest first."""
    if classes is None:
        return []
    largest = max(1, int(classes.counts.max()))
    found = []
    for i in (-classes.counts).argsort(kind="stable"):
        count = int(classes.counts[i])
        x = float(MARGIN + (classes.places[i, 0] + 1) / 2 * (WIDTH - 2 * MARGIN))
        y = float(MARGIN + (1 - classes.places[i, 1]) / 2 * (HEIGHT - 2 * MARGIN))
        radius = 3 + 6 * (count / largest) ** 0.5
        found.append(Dot(classes.labels[i], count, round(x, 1), round(y, 1), round(radius, 1)))
    return found


def names(placed: Sequence[Dot], size: float) -> list[Name]:
    """Write the names of classes beside their dots, where they cover nothing else.

    The classes that come first are served first; `size` is that of the letters, in pixels.
    """
    texts = [_shortened(str(dot.label)) for dot in placed]
    points = np.array([(dot.x, dot.y) for dot in placed]).reshape(-1, 2)
    radii = np.array([dot.radius for dot in placed])
    widths = np.array([4 + 1.07 * name_width(text) * size for text in texts])  # fonts differ
    page = np.array([WIDTH, HEIGHT])
    corners, covered = place_names(points, radii, widths, 1.1 * size, page)
    middles = np.round(corners + np.stack([widths / 2, np.full(len(texts), 0.85 * size)], 1), 1)
    found = [
        Name(text, *at)
        for text, at, area in zip(texts, middles.tolist(), covered, strict=True)
        if not area
    ]
    return found[:MAX_NAMES]


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else name[: MAX_NAME_LENGTH - 1] + "…"


@dataclass(frozen=True)
class Chart:
    """Live accuracy over the latest samples taught."""

    points: str  # of an SVG polyline in a box of 100 by 40
    accuracy: float | None  # on samples of classes that were known
    asked: int  # samples of known classes
    new: int  # samples of new classes


def chart(tallies: Sequence[Tally]) -> Chart:
    """Draw how often the model was right just before it was taught."""
    outcomes: list[float] = []
    for tally in tallies:
        # The order within a batch is not known: each sample counts as its batch did.
        if asked := tally.right + tally.wrong:
            outcomes += [tally.right / asked] * asked
    outcomes = outcomes[-LATEST:]
    new = sum(tally.new for tally in tallies)
    if not outcomes:
        return Chart("", None, 0, new)
    window = max(5, len(outcomes) // 8)
    points = []
    for i in sorted({round(i * (len(outcomes) - 1) / (STEPS - 1)) for i in range(STEPS)}):
        part = outcomes[max(0, i + 1 - window) : i + 1]
        x = 100 * i / max(1, len(outcomes) - 1)
        points.append(f"{x:.2f},{40 * (1 - sum(part) / len(part)):.2f}")
    return Chart(" ".join(points), sum(outcomes) / len(outcomes), len(outcomes), new)
