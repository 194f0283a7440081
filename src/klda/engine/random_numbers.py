"""Random numbers that are the same on every device.

The i-th word of a stream is a function of its key and of i alone (SplitMix64, Steele et al. 2014),
so that a GPU computes all words at once. From there on nothing rounds differently on another
device: a normal number is the sum of two entries of a table of quantiles, picked by 16 bits each.
The sum takes 2^32 values; its fourth moment is 2.9996 where the normal distribution's is 3.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy

from klda.engine.arrays import Array, Backend

# SplitMix64's constants, as the signed integers that torch computes with.
STEP = 0x9E3779B97F4A7C15 - (1 << 64)
MIXING = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))
LANE = 16  # bits that pick one quantile
UNIFORM = 24  # bits of a uniform number: as many as float32 can hold


class RandomStream:
    """A stream of random numbers, made on the device of a backend."""

    def __init__(self, key: int, backend: Backend, position: int = 1) -> None:
        self.key, self.backend = key, backend
        self._position = position

    def on(self, backend: Backend) -> RandomStream:
        """Return what is left of the stream, made on another device."""
        return RandomStream(self.key, backend, self._position)

    def normal(self, n_rows: int, n_columns: int) -> Array:
        """Draw standard normal numbers."""
        words = self._words(-(-n_rows // 2), n_columns)
        quantiles = self.backend.asarray(_half_quantiles())
        lanes = [quantiles[_shifted(words, LANE * i) & ((1 << LANE) - 1)] for i in range(4)]
        return self.backend.concatenate([lanes[0] + lanes[1], lanes[2] + lanes[3]])[:n_rows]

    def uniform(self, n: int) -> Array:
        """Draw numbers from ``[0, 1)``."""
        bits = _shifted(self._words(1, n)[0], 64 - UNIFORM)
        return self.backend.asarray(bits) * 2.0**-UNIFORM

    def _words(self, n_rows: int, n_columns: int) -> Array:
        """Return the next words of 64 bits."""
        rows, columns = (self.backend.index(np.arange(n)) for n in (n_rows, n_columns))
        words = rows[:, None] * n_columns + columns
        words += self._position
        self._position += n_rows * n_columns
        words *= STEP  # all products are modulo 2^64
        words += self.key
        for shift, factor in MIXING:
            words ^= _shifted(words, shift)
            words *= factor
        return words


def _shifted(words: Array, shift: int) -> Array:
    """Shift to the right without the sign, which signed integers would repeat."""
    return (words >> shift) & ((1 << (64 - shift)) - 1) if shift else words


@lru_cache(maxsize=1)
def _half_quantiles() -> np.ndarray:
    """Return equally likely normal numbers, scaled so that the sum of two has variance one."""
    n = 1 << LANE
    quantiles = scipy.special.ndtri((np.arange(n) + 0.5) / n)
    scaled = quantiles / np.sqrt(2 * np.mean(quantiles**2))
    return scaled.astype(np.float32)
