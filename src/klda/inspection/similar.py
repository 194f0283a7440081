"""Feature rows that are alike, on a scale that any features have: their typical distance."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Of the typical squared distance. In questions to a bank (Banking77) pairs below the first differ
# in blanks, pairs below the second in a word or their order: two in a hundred of
# those have different labels, one in ten at 0.25.
SAME, NEAR = 0.001, 0.15
PAIRS = 2000  # that show what is typical
AT_ONCE = 1 << 22  # distances


def typical_distance(rows: np.ndarray) -> float:
    """Return the median squared distance between two rows."""
    one, other = np.random.RandomState(0).randint(0, len(rows), (2, PAIRS))
    differ = one != other
    gaps = rows[one[differ]] - rows[other[differ]]
    found = np.einsum("ij,ij->i", gaps, gaps)
    return float(np.median(found[found > 0])) if (found > 0).any() else 1.0


def distances(rows: np.ndarray, others: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield squared distances between rows and others, some rows at a time, after the first."""
    squares = np.einsum("ij,ij->i", others, others)
    step = max(1, AT_ONCE // max(len(others), 1))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        own = np.einsum("ij,ij->i", some, some)
        yield start, np.maximum(own[:, None] + squares - 2 * some @ others.T, 0)


def close_pairs(rows: np.ndarray, within: float = NEAR) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of near-duplicates, the earlier row first, and their relative distance."""
    usual = typical_distance(rows)
    for start, found in distances(rows, rows):
        one, other = np.nonzero(found <= within * usual)
        later = other > one + start
        gaps = found[one[later], other[later]] / usual
        places = (one[later] + start).tolist(), other[later].tolist()
        yield from zip(*places, gaps.tolist(), strict=True)
