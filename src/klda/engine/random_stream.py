"""Random numbers that are the same on every device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy

from klda.engine.arrays import Array, Backend, NumpyBackend

WORD = 1 << 64
# SplitMix64's constants: what is added from word to word, and how bits are mixed.
STEP = 0x9E3779B97F4A7C15
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
LANE = 16  # bits that pick one quantile
UNIFORM = 53  # bits of a uniform number


class RandomStream:
    """Random numbers that are the same on every device; many are made on the backend's.

    The i-th word of a stream is a function of its key and of i alone (SplitMix64, Steele et al.
    2014), so that a GPU computes all words at once. From there on nothing rounds differently on
    another device: a normal number is the sum of two entries of a table of quantiles, picked by 16
    bits each. The sum takes 2^32 values; its fourth moment is 2.9996 where the normal
    distribution's is 3.
    """

    def __init__(self, key: int, backend: Backend, position: int = 1) -> None:
        self.key, self.backend = key, backend
        self._position = position

    def on(self, backend: Backend) -> RandomStream:
        """Return what is left of the stream, made on another device."""
        return RandomStream(self.key, backend, self._position)

    def normal(self, n_rows: int, n_columns: int) -> Array:
        """Draw standard normal numbers."""
        words = self._words(-(-n_rows // 2), n_columns, self.backend)
        quantiles = self.backend.asarray(_half_quantiles())
        lanes = [quantiles[(words >> LANE * i) & ((1 << LANE) - 1)] for i in range(4)]
        return self.backend.concatenate([lanes[0] + lanes[1], lanes[2] + lanes[3]])[:n_rows]

    def uniform(self, n: int) -> np.ndarray:
        """Draw a few numbers from ``[0, 1)``, on the CPU and in double precision."""
        words = self._words(1, n, NumpyBackend("float64"))[0]
        return np.asarray(_shifted(words, 64 - UNIFORM) * 2.0**-UNIFORM)

    def _words(self, n_rows: int, n_columns: int, backend: Backend) -> Array:
        """Return the next words of 64 bits, in signed integers: torch has no others."""
        start = self.key + self._position * STEP
        self._position += n_rows * n_columns
        rows = np.arange(n_rows) * _signed(n_columns * STEP)  # all of it modulo 2^64
        columns = np.arange(n_columns) * _signed(STEP) + _signed(start)
        words = backend.index(rows)[:, None] + backend.index(columns)
        for shift, factor in MIXING:
            words ^= _shifted(words, shift)
            words *= _signed(factor)
        return words ^ _shifted(words, LAST_SHIFT)


def _signed(word: int) -> int:
    """Return the signed integer with the same bits."""
    return (word + WORD // 2) % WORD - WORD // 2


def _shifted(words: Array, shift: int) -> Array:
    """Shift to the right without the sign, which signed integers would repeat."""
    return (words >> shift) & ((1 << (64 - shift)) - 1)


@lru_cache(maxsize=1)
def _half_quantiles() -> np.ndarray:
    """Return equally likely normal numbers, scaled so that the sum of two has variance one."""
    n = 1 << LANE
    quantiles = scipy.special.ndtri((np.arange(n) + 0.5) / n)
    scaled = quantiles / np.sqrt(2 * np.mean(quantiles**2))
    return scaled.astype(np.float32)


def orthogonal(n_features: int, n_components: int, stream: RandomStream) -> Array:
    """Blocks of orthogonal directions with the lengths of Gaussian ones (Yu et al. 2016).

    They are computed on the CPU: a factorisation rounds differently elsewhere.
    """
    on_host = stream.on(NumpyBackend("float64"))
    blocks = []
    for _ in range(-(-n_components // n_features)):
        directions, triangle = np.linalg.qr(on_host.normal(n_features, n_features))
        directions *= np.sign(np.diag(triangle))  # uniform over the orthogonal group
        lengths = np.linalg.norm(on_host.normal(n_features, n_features), axis=0)
        blocks.append(directions * lengths)
    return stream.backend.asarray(np.concatenate(blocks, axis=1)[:, :n_components])
