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


def distances_from(rows: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Return the squared distances of rows from one of them."""
    gaps = rows - one
    return np.einsum("ij,ij->i", gaps, gaps)


def close_pairs(rows: np.ndarray) -> Iterator[tuple[int, int, float]]:
    """Yield pairs of near-duplicates, the earlier row first, and their relative distance."""
    usual, squares = typical_distance(rows), np.einsum("ij,ij->i", rows, rows)
    step = max(1, AT_ONCE // max(len(rows), 1))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        # Of rows before these, pairs were found already.
        own, others = squares[start : start + step], squares[start:]
        found = np.maximum(own[:, None] + others - 2 * some @ rows[start:].T, 0)
        one, other = np.nonzero(found <= NEAR * usual)
        later = other > one
        gaps = found[one[later], other[later]] / usual
        places = (one[later] + start).tolist(), (other[later] + start).tolist()
        yield from zip(*places, gaps.tolist(), strict=True)
