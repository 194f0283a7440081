"""Coordinates for the two pictures on the page; the templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from klda.labels import Label
from klda.learner.label_set import ClassMap
from klda.learner.plane_layout import name_width
from klda.server.journal import Tally

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
    """Write the names of classes above or below their dots, the first first, where there is room.

    None overlaps another name or the dot of another class, and none leaves the map; `size` is that
    of the letters, in pixels.
    """
    taken: list[_Box] = []
    found: list[Name] = []
    for dot in placed:
        text = str(dot.label)
        if len(text) > MAX_NAME_LENGTH:
            text = text[: MAX_NAME_LENGTH - 1] + "…"
        half = 1.07 * name_width(text) * size / 2  # fonts differ
        x = min(max(dot.x, half + 2), WIDTH - half - 2)
        for y in (dot.y - dot.radius - size / 3, dot.y + dot.radius + size):
            box = _Box(x - half - 2, x + half + 2, y - 0.85 * size, y + 0.25 * size)
            if box.is_free(taken, [other for other in placed if other is not dot]):
                taken.append(box)
                found.append(Name(text, round(x, 1), round(y, 1)))
                break
        if len(found) == MAX_NAMES:
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
        outcomes += [1.0] * tally.right + [0.0] * tally.wrong
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
