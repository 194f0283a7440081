"""Random numbers that are the same on every machine and device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy

from klda.engine.arrays import Array, Backend

WORD = 1 << 64
# SplitMix64's constants: what is added from word to word, and how bits are mixed.
STEP = 0x9E3779B97F4A7C15
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
LANE = 16  # bits that pick one quantile
UNIFORM = 53  # bits of a uniform number
# As many as a processor's cache holds: 20 times faster than all at once. A GPU prefers many.
WORDS_AT_ONCE = {"cpu": 1 << 16, "gpu": 1 << 22}


class RandomStream:
    """Random numbers that are the same on every machine: nothing in them rounds differently.

    The words are SplitMix64's (Steele et al. 2014). A normal number is the sum of two entries of a
    table of quantiles, picked by 16 bits each. The sum takes 2^32 values; its fourth moment is
    2.9996 where the normal distribution's is 3.
    """

    def __init__(self, key: int, backend: Backend) -> None:
        self._next, self._backend = (key + STEP) % WORD, backend

    def normal(self, n_rows: int, n_columns: int) -> Array:
        """Draw standard normal numbers."""
        backend = self._backend
        half = -(-n_rows // 2)  # a word makes a number of the first half, and one of the second
        drawn = backend.zeros((2, half, n_columns))
        quantiles = backend.asarray(_half_quantiles())
        step = max(1, WORDS_AT_ONCE["cpu" if backend.device == "cpu" else "gpu"] // n_columns)
        for start in range(0, half, step):
            rows = slice(start, min(start + step, half))
            words = self._words((rows.stop - start) * n_columns).reshape(-1, n_columns)
            lanes = [quantiles[(words >> LANE * i) & ((1 << LANE) - 1)] for i in range(4)]
            drawn[0, rows], drawn[1, rows] = lanes[0] + lanes[1], lanes[2] + lanes[3]
        return drawn.reshape(-1, n_columns)[:n_rows]

    def uniform(self, n: int) -> np.ndarray:
        """Draw numbers from ``[0, 1)``, in double precision."""
        words = self._backend.to_numpy(_shifted(self._words(n), 64 - UNIFORM))
        return np.asarray(words * 2.0**-UNIFORM)

    def _words(self, n: int) -> Array:
        """Return the next words of 64 bits; all of it is modulo 2^64."""
        words = self._backend.index(np.arange(n)) * _signed(STEP) + _signed(self._next)
        self._next = (self._next + n * STEP) % WORD
        for shift, factor in MIXING:
            words ^= _shifted(words, shift)
            words *= _signed(factor)
        return words ^ _shifted(words, LAST_SHIFT)


def _signed(word: int) -> int:
    """Return the number that has the bits of a word: torch has no unsigned arithmetic."""
    return word - WORD if word >= WORD // 2 else word


def _shifted(words: Array, bits: int) -> Array:
    """Shift words to the right, zeros coming in."""
    return (words >> bits) & ((1 << 64 - bits) - 1)


@lru_cache(maxsize=1)
def _half_quantiles() -> np.ndarray:
    """Return equally likely normal numbers, scaled so that the sum of two has variance one."""
    n = 1 << LANE
    quantiles = scipy.special.ndtri((np.arange(n) + 0.5) / n)
    return np.asarray(quantiles / np.sqrt(2 * np.mean(quantiles**2)), np.float32)


def orthogonal(stream: RandomStream, n_features: int, n_components: int) -> np.ndarray:
    """Blocks of orthogonal directions with the lengths of Gaussian ones (Yu et al. 2016)."""
    blocks = []
    for _ in range(-(-n_components // n_features)):
        directions, triangle = np.linalg.qr(stream.normal(n_features, n_features))
        directions *= np.sign(np.diag(triangle))  # uniform over the orthogonal group
        lengths = np.linalg.norm(stream.normal(n_features, n_features), axis=0)
        blocks.append(directions * lengths)
    return np.concatenate(blocks, axis=1)[:, :n_components]
