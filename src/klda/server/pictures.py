"""Coordinates for the page's two pictures; the templates draw them."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from klda.labelset import ClassMap

WIDTH, HEIGHT, MARGIN = 640, 420, 40
MOST_NAMES, LONGEST_NAME = 40, 24
LETTERS, LARGE_LETTERS = 12, 22  # on a wide screen, and on a phone, where the map is drawn small
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


@dataclass(frozen=True)
class Name:
    """A name on the map; `x` is its middle, `y` its base line."""

    text: str
    x: float
    y: float


def dots(classes: ClassMap | None) -> list[Dot]:
    """Place the classes on the map.

    Parameters
    ----------
    classes : ClassMap or None
        The map, if there is one.

    Returns
    -------
    list of Dot
        In pixels; the largest classes first.
    """
    if classes is None:
        return []
    largest = int(classes.counts.max())
    found = []
    for i in (-classes.counts).argsort(kind="stable"):
        count = int(classes.counts[i])
        x = float(MARGIN + (classes.places[i, 0] + 1) / 2 * (WIDTH - 2 * MARGIN))
        y = float(MARGIN + (1 - classes.places[i, 1]) / 2 * (HEIGHT - 2 * MARGIN))
        radius = 3 + 6 * (count / largest) ** 0.5
        found.append(Dot(classes.labels[i], count, round(x, 1), round(y, 1), round(radius, 1)))
    return found


def names(placed: Sequence[Dot], size: float) -> list[Name]:
    """Write the names of classes above or below their dots, where there is room.

    Parameters
    ----------
    placed : sequence of Dot
        The most important first.
    size : float
        Of the letters, in pixels of the map.

    Returns
    -------
    list of Name
        None overlaps another or covers the dot of another, and none leaves the map.
    """
    taken: list[_Box] = []
    found = []
    for dot in placed:
        text = _shortened(str(dot.label))
        half = _width(text) * size / 2
        x = min(max(dot.x, half + 2), WIDTH - half - 2)
        for y in (dot.y - dot.radius - size / 3, dot.y + dot.radius + size):
            box = _Box(x - half - 2, x + half + 2, y - 0.85 * size, y + 0.25 * size)
            if box.is_free(taken, [other for other in placed if other is not dot]):
                taken.append(box)
                found.append(Name(text, round(x, 1), round(y, 1)))
                break
        if len(found) == MOST_NAMES:
            break
    return found


class _Box(NamedTuple):
    left: float
    right: float
    top: float
    bottom: float

    def is_free(self, taken: Sequence[_Box], others: Sequence[Dot]) -> bool:
        if self.top < 0 or self.bottom > HEIGHT:
            return False
        return not any(map(self._meets, taken)) and not any(map(self._covers, others))

    def _meets(self, other: _Box) -> bool:
        beside = self.right < other.left or other.right < self.left
        return not beside and self.top < other.bottom and other.top < self.bottom

    def _covers(self, dot: Dot) -> bool:
        return self.left < dot.x < self.right and self.top < dot.y < self.bottom


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else text[: LONGEST_NAME - 1] + "…"


def _width(text: str) -> float:
    """Width in units of the letters' size, rather too large than too small."""
    return sum(1.0 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in text)


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
