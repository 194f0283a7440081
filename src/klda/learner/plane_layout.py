"""Places in a plane for points of which only the distances are known.

Two principal axes of many points show next to nothing (of CLINC150's classes 7% of the spread), so
points are arranged as t-SNE does it (van der Maaten and Hinton 2008): of the divergence

    KL(P || Q) = sum_ij p_ij log(p_ij / q_ij),  q_ij proportional to 1 / (1 + |y_i - y_j|^2),

that the neighbours in the plane have from those in the space, a local minimum is found. The usual
way there, a small random start and steps with momentum, ends elsewhere after a change in the last
digit of a distance. Here the points start from places that depend continuously on the distances, in
double precision, and each is pulled to its start with a strength a,

    KL(P || Q) + (1/M) sum_i a_i |y_i - start_i|^2,

which goes down in every step. So the points move by no more than what they gain is worth: with one
strength for all, their mean squared way is at most KL(start) / a.

A point that fits two places about equally well may still go to the other one after a rounding
error; among hundreds of points without groups, some do.
"""

from __future__ import annotations

import unicodedata

import numpy as np
from scipy.optimize import minimize

NEIGHBOURS = 16  # of each point, that attract it
SPREAD = 1.25  # of the plane's half width, in units of t-SNE, over the root of the points
MOST_STEPS = 300
TIED = 1e-6  # lengths that differ by less than this fraction count as equal


def principal_axes(squared: np.ndarray) -> np.ndarray:
    """Return places ``(M, 2)`` that keep squared distances ``(M, M)`` as well as two axes can.

    This is classical scaling; the largest coordinate is 1.
    """
    means = squared.mean(axis=0)
    values, vectors = np.linalg.eigh(-0.5 * (squared - means - means[:, None] + means.mean()))
    width = min(2, len(squared))
    places = np.zeros((len(squared), 2))
    places[:, :width] = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :width]
    # The sign of an axis is arbitrary: the point that is farthest out goes to the right and up. Of
    # points equally far out, as any two alone are, it is the first, or rounding would choose.
    lengths = np.abs(places)
    farthest = (lengths >= (1 - TIED) * lengths.max(axis=0)).argmax(axis=0)
    places *= np.where(places[farthest, [0, 1]] < 0, -1.0, 1.0)
    return np.asarray(places / max(float(lengths.max()), 1e-300))


def arranged(squared: np.ndarray, start: np.ndarray, pull: np.ndarray) -> np.ndarray:
    """Arrange points so that neighbours are together, and none far from its start without need.

    Distances are squared, ``(M, M)``; places, ``(M, 2)``, are between -1 and 1. ``pull``, ``(M,)``,
    is what it costs a point to be at a distance of 1 from its start.
    """
    if len(start) < 3:
        return start
    neighbours, strength = affinities(squared), pull[:, None] / len(start)

    def cost(flat: np.ndarray) -> tuple[float, np.ndarray]:
        places = flat.reshape(start.shape)
        away = places - start
        value, gradient = cross_entropy(neighbours, places)
        return value + float((strength * away**2).sum()), (gradient + 2 * strength * away).ravel()

    found = minimize(
        cost,
        start.ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(-1, 1)] * start.size,
        options={"maxiter": MOST_STEPS, "maxfun": 2 * MOST_STEPS, "maxcor": 20, "ftol": 1e-10},
    )
    return np.asarray(found.x.reshape(start.shape))


def affinities(squared: np.ndarray) -> np.ndarray:
    """Tell how much of a neighbour each point is to each: the P of t-SNE, which adds up to 1.

    The weight of a neighbour falls evenly with its squared distance: to 0 at the last of the
    `NEIGHBOURS` nearest. This keeps as many neighbours together as weights of a given entropy do.
    """
    apart = squared + np.diag(np.full(len(squared), np.inf))
    near = np.sort(apart, axis=1)[:, : min(NEIGHBOURS, len(squared) - 1)]
    reach = np.maximum(near[:, -1:] - near[:, :1], np.maximum(TIED * near[:, -1:], 1e-300))
    weights = np.maximum(1 - (apart - near[:, :1]) / reach, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray((weights + weights.T) / (2 * len(weights)))


def cross_entropy(neighbours: np.ndarray, places: np.ndarray) -> tuple[float, np.ndarray]:
    """Measure how badly the neighbours in the plane stand for those in the space, `affinities`.

    Returns ``-sum_ij p_ij log(q_ij)``, which is the divergence KL(P || Q) and a constant, the
    entropy of P; and its gradient.
    """
    unit = SPREAD * np.sqrt(len(places))
    points = unit * places
    lengths = (points**2).sum(axis=1)
    apart = 1 + np.maximum(lengths[:, None] + lengths - 2 * points @ points.T, 0.0)
    near = 1 / apart
    np.fill_diagonal(near, 0.0)
    total = near.sum()
    value = np.vdot(neighbours, np.log(apart)) + np.log(total)
    force = (neighbours - near / total) * near
    gradient = 4 * unit * (force.sum(axis=1, keepdims=True) * points - force @ points)
    return float(value), gradient


def name_width(name: str) -> float:
    """Return about how wide a name is written, in units of the letters' size."""
    return sum(1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.58 for letter in name)


def place_names(
    points: np.ndarray,
    radii: np.ndarray,
    widths: np.ndarray,
    height: float,
    page: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Place a name beside each point of a map, the most important first.

    Each goes where it covers least of the points and of the names before it: to the right, to the
    left, above, below, or aslant.

    Parameters
    ----------
    points : ndarray of shape (M, 2)
        In units of the page, such as pixels.
    radii, widths : ndarray of shape (M,)
        Of the points' dots and of the names.
    height : float
        Of all names.
    page : ndarray of shape (2,)
        Width and height of the page, which no name may leave.

    Returns
    -------
    ndarray of shape (M, 2)
        The corner of each name with the smallest coordinates.
    ndarray of shape (M,)
        The area of others that it covers; a map without room leaves out those above 0.
    """
    taken = np.concatenate([points - radii[:, None], points + radii[:, None]], axis=1)
    corners, covered = np.empty((len(points), 2)), np.empty(len(points))
    for i, (point, width) in enumerate(zip(points, widths, strict=True)):
        right, left, middle = radii[i] + 1.0, -radii[i] - 1.0 - width, -width / 2
        above, below, level = radii[i] + 1.0, -radii[i] - 1.0 - height, -height / 2
        ways = [(right, level), (left, level), (middle, above), (middle, below)]
        ways += [(x, y) for y in (above - height / 2, below + height / 2) for x in (right, left)]
        size = np.array([width, height])
        starts = np.clip(point + np.array(ways), 0.0, np.maximum(page - size, 0.0))
        boxes = np.concatenate([starts, starts + size], axis=1)
        ends = np.minimum(boxes[:, None, 2:], taken[:, 2:])
        sides = ends - np.maximum(boxes[:, None, :2], taken[:, :2])
        areas = np.prod(np.maximum(sides, 0.0), axis=2).sum(axis=1)
        best = int(areas.argmin())
        corners[i], covered[i] = starts[best], areas[best]
        taken = np.concatenate([taken, boxes[best : best + 1]])
    return corners, covered
