"""A map of the classes: places in a plane by classical scaling, and names beside them.

Classical multidimensional scaling (Torgerson 1952): the places are the two principal axes of the
points that have the given distances, so they are the same on every machine.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import numpy as np
import scipy  # its modules are imported when first used

from klda.labels import Label

TIED = 1e-6  # lengths that differ by less than this fraction count as equal
CROWDED = 12  # a map of more classes is spread out
MARGIN = 0.08  # around the dots, as a fraction of each side of a picture
LONGEST_NAME = 32  # letters, in a picture
# Where a name may stand: right, left, above, below, aslant.
_SIDES = np.array([(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)])


def classical_scaling(squared: np.ndarray) -> np.ndarray:
    """Return places ``(M, 2)`` that keep squared distances ``(M, M)`` as well as two axes can."""
    count = len(squared)
    if count < 2:
        return np.zeros((count, 2))
    means = squared.mean(axis=0)
    inner = -0.5 * (squared - means - means[:, None] + means.mean())
    values, vectors = scipy.linalg.eigh(inner, subset_by_index=(count - 2, count - 1))
    places = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1]
    # The sign of an axis is arbitrary: the point farthest out goes to the right and up. Of points
    # equally far out, as any two alone are, it is the first, or rounding would choose.
    lengths = np.abs(places)
    farthest = (lengths >= (1 - TIED) * lengths.max(axis=0)).argmax(axis=0)
    return np.asarray(places * np.where(places[farthest, [0, 1]] < 0, -1.0, 1.0))


def fit_middle(places: np.ndarray) -> np.ndarray:
    """Scale places so that the middle 98% of each axis lies between -1 and 1; move the rest there.

    Both axes have one scale. Without this, one class far from all others would leave no room for
    these.
    """
    ordered, outside = np.sort(places, axis=0), len(places) // 100
    low, high = ordered[outside], ordered[len(places) - 1 - outside]
    half_width = max(float((high - low).max()) / 2, 1e-300)
    return np.clip((places - (low + high) / 2) / half_width, -1.0, 1.0)


def spread(places: np.ndarray) -> np.ndarray:
    """Move places apart where they are crowded: half-way to even steps along each axis.

    A few classes far from all others would otherwise leave most of the map empty.
    """
    ranks = places.argsort(axis=0, kind="stable").argsort(axis=0)
    return (places + 2 * ranks / (len(ranks) - 1) - 1) / 2


@dataclass(frozen=True)
class ClassMap:
    """Places of the classes in a plane, coordinates between -1 and 1."""

    labels: list[Label]
    counts: np.ndarray  # (M,), their samples
    places: np.ndarray  # (M, 2)

    @classmethod
    def of(cls, labels: list[Label], counts: np.ndarray, squared: np.ndarray) -> ClassMap:
        """Place classes by their squared distances ``(M, M)``."""
        places = fit_middle(classical_scaling(squared))
        return cls(labels, counts, spread(places) if len(places) > CROWDED else places)

    def draw(self, width: float, height: float, font_size: float) -> list[Dot]:
        """Lay the map out on a picture, in its pixels; the largest classes first."""
        order = np.argsort(-self.counts, kind="stable")
        labels, counts = [self.labels[i] for i in order], self.counts[order]
        size, upwards = np.array([width, height]), np.array([1, -1])
        points = size / 2 * (1 + (1 - 2 * MARGIN) * upwards * self.places[order])
        radii = font_size * (0.2 + 0.4 * np.sqrt(counts / max(1, int(counts.max(initial=0)))))
        names = [shortened(str(label)) for label in labels]
        # Fonts differ, so there is a little room around each name.
        widths = np.array([4 + 1.07 * name_width(name) * font_size for name in names])
        corners, has_room = place_names(points, radii, widths, 1.25 * font_size, size)
        middles = corners + np.stack([widths / 2, np.full(len(names), 0.85 * font_size)], axis=1)
        return [
            Dot(*dot)
            for dot in zip(
                *(labels, counts.tolist()),
                *points.round(1).T.tolist(),
                radii.round(1).tolist(),
                names,
                *middles.round(1).T.tolist(),
                has_room.tolist(),
                strict=True,
            )
        ]


@dataclass(frozen=True)
class Dot:
    """A class in a picture of the map; y grows downwards."""

    label: Label
    samples: int
    x: float
    y: float
    radius: float
    name: str  # the label, or its beginning
    name_x: float  # the middle of the name
    name_y: float  # its base line
    has_room: bool  # whether the name covers no dot and no name of a larger class


def shortened(name: str) -> str:
    """Return a name, or the beginning of a long one."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def name_width(name: str) -> float:
    """Return about how wide a name is written, in units of the letters' size."""
    return sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.58 for letter in name)


def place_names(
    points: np.ndarray, radii: np.ndarray, widths: np.ndarray, height: float, page: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Place a name beside each point ``(M, 2)`` of a map, the most important first.

    Each goes where it covers least of the points and of the names before it, within the page. One
    that covers any has no room: it takes none from those after it. Returns the corner of each name
    with the smallest coordinates, ``(M, 2)``, and whether it has room there, ``(M,)``. All lengths
    are in one unit, such as pixels.
    """
    taken = np.concatenate([points - radii[:, None], points + radii[:, None]], axis=1)
    corners, has_room = np.empty((len(points), 2)), np.empty(len(points), dtype=bool)
    for i, (point, width) in enumerate(zip(points, widths, strict=True)):
        size = np.array([width, height])
        starts = point + _SIDES * (radii[i] + 1.0) - (1 - _SIDES) / 2 * size
        starts = np.clip(starts, 0.0, np.maximum(page - size, 0.0))
        boxes = np.concatenate([starts, starts + size], axis=1)
        ends = np.minimum(boxes[:, None, 2:], taken[:, 2:])
        sides = ends - np.maximum(boxes[:, None, :2], taken[:, :2])
        covered = np.prod(np.maximum(sides, 0.0), axis=2).sum(axis=1)
        best = int(covered.argmin())
        corners[i], has_room[i] = starts[best], covered[best] == 0
        if has_room[i]:
            taken = np.concatenate([taken, boxes[best : best + 1]])
    return corners, has_room
