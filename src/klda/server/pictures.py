"""Coordinates for the page's two pictures; the templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from klda.labelset import ClassMap

WIDTH, HEIGHT, MARGIN = 640, 420, 40
MOST_NAMES = 40
LATEST = 500  # samples that the chart shows
STEPS = 40


@dataclass(frozen=True)
class Dot:
    """A class on the map."""

    label: Any
    count: int
    x: float
    y: float
    radius: float
    named: bool


def dots(classes: ClassMap | None) -> list[Dot]:
    """Place the classes on the map.

    Parameters
    ----------
    classes : ClassMap or None
        The map, if there is one.

    Returns
    -------
    list of Dot
        In pixels; the largest classes have their names shown, where there is room.
    """
    if classes is None:
        return []
    largest = int(classes.counts.max())
    taken: list[tuple[float, float, float]] = []
    found = []
    for i in (-classes.counts).argsort(kind="stable"):
        label, count = classes.labels[i], int(classes.counts[i])
        x = float(MARGIN + (classes.places[i, 0] + 1) / 2 * (WIDTH - 2 * MARGIN))
        y = float(MARGIN + (1 - classes.places[i, 1]) / 2 * (HEIGHT - 2 * MARGIN))
        radius = 3 + 6 * (count / largest) ** 0.5
        half = 3.2 * min(len(str(label)), 24)
        spot = (min(max(x, half), WIDTH - half), y - radius - 4, half)
        named = len(taken) < MOST_NAMES and not any(_overlap(spot, other) for other in taken)
        if named:
            taken.append(spot)
        found.append(Dot(label, count, round(x, 1), round(y, 1), round(radius, 1), named))
    return found


def _overlap(one: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    return abs(one[1] - other[1]) < 13 and abs(one[0] - other[0]) < one[2] + other[2] + 4


@dataclass(frozen=True)
class Chart:
    """Ask-then-teach accuracy over the latest samples taught.

    Attributes
    ----------
    points : str
        For an SVG polyline in a box of 100 by 40.
    share : float or None
        Right answers among samples of classes that were known.
    asked, new : int
        Samples of known classes, and of new ones.
    """

    points: str
    share: float | None
    asked: int
    new: int


def chart(tallies: Sequence[tuple[float, int, int, int]]) -> Chart:
    """Draw how often the model was right just before it was taught.

    Parameters
    ----------
    tallies : sequence of (when, right, wrong, new)
        Oldest first.

    Returns
    -------
    Chart
        Of the latest samples.
    """
    outcomes = [value for _, right, wrong, _ in tallies for value in [1.0] * right + [0.0] * wrong][
        -LATEST:
    ]
    new = sum(tally[3] for tally in tallies)
    if not outcomes:
        return Chart("", None, 0, new)
    window = max(5, len(outcomes) // 8)
    at = sorted({round(i * (len(outcomes) - 1) / (STEPS - 1)) for i in range(STEPS)})
    points = []
    for i in at:
        part = outcomes[max(0, i + 1 - window) : i + 1]
        x = 100 * i / max(1, len(outcomes) - 1)
        points.append(f"{x:.2f},{40 * (1 - sum(part) / len(part)):.2f}")
    return Chart(" ".join(points), sum(outcomes) / len(outcomes), len(outcomes), new)
