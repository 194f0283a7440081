"""Feature maps, from a row x to the row z in the kernel's space: random Fourier features, or none.

For KLDA these are random Fourier features of the RBF kernel ``K(x, y) = exp(-gamma ||x - y||^2)``.
The paper writes ``omega ~ N(0, sigma^-2 I)``, but the values it gives for sigma are values of
gamma: its program draws ``omega ~ N(0, 2 gamma I)``. Here the parameter has scikit-learn's name
and meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy

from klda.engine.arrays import Array, Backend, NumpyBackend, is_torch

MEDIAN_SAMPLES = 1000
MEDIAN_PAIRS = 125_000
GAMMA_SCALE = 0.075
RANDOM_FEATURES = ("gaussian", "orthogonal")
KERNEL_ARRAYS = ("support", "centre", "scales")
WORD = 1 << 64
# SplitMix64's constants: what is added from word to word, and how bits are mixed.
STEP = 0x9E3779B97F4A7C15
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
LANE = 16  # bits that pick one quantile
UNIFORM = 53  # bits of a uniform number


@dataclass(frozen=True)
class Draw:
    """How random features are drawn; the same draw gives the same ones on every device."""

    kind: str  # one of RANDOM_FEATURES
    key: int


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A feature map, never changed.

    With a gamma, ``z = sqrt(2 / D) * cos(x omega + phase)``; without, ``z = x``. Random features
    are drawn when they are first needed: a model that holds its samples does without them.

    Attributes
    ----------
    backend : Backend
        Where the arrays are.
    n_features : int
        Length d of x.
    n_components : int
        Length D of z.
    gamma : float or None
        The kernel's inverse squared width.
    drawn : Draw or tuple of two arrays or None
        How to draw the random directions omega, of shape (d, D) and scaled by ``sqrt(2 gamma)``,
        and the phases, of shape (D,) and uniform on ``[0, 2 pi)``; or these two, as read from disk.
    unit_length : bool
        Scale rows to unit length, for cosines.
    blocks : tuple of int
        Widths of the blocks that a row consists of; empty for one.
    """

    backend: Backend
    n_features: int
    n_components: int
    gamma: float | None = None
    drawn: Draw | tuple[Array, Array] | None = field(default=None, repr=False)
    unit_length: bool = False
    blocks: tuple[int, ...] = ()

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Frequencies and phases."""
        assert self.drawn is not None
        assert self.gamma is not None
        if not isinstance(self.drawn, Draw):
            return self.drawn
        stream = RandomStream(self.drawn.key, self.backend)
        phases = self.backend.asarray(2 * np.pi * stream.uniform(self.n_components))
        size = (self.n_features, self.n_components)
        orthogonal = self.drawn.kind == "orthogonal"
        directions = _orthogonal(*size, stream) if orthogonal else stream.normal(*size)
        directions *= float(np.sqrt(2 * self.gamma))
        return directions, phases

    def lift(self, rows: Array, out: Array | None = None) -> Array:
        """Map rows ``(n, d)`` to ``(n, D)``: into ``out`` if it is given, never into ``rows``."""
        rows = self.backend.asarray(rows)
        if self.gamma is not None:
            scale = float(np.sqrt(2 / self.n_components))
            return self.backend.cosine_map(rows, *self.spectrum, scale, out)
        if self.unit_length:
            lengths = (rows * rows).sum(1)[:, None] ** 0.5
            return rows / (lengths + float(np.finfo(self.backend.dtype).tiny))
        return self.backend.copy(rows)

    def with_unit_length(self) -> FeatureMap:
        """Return the same map with rows scaled to unit length."""
        return replace(self, unit_length=True)

    def same_as(self, other: FeatureMap) -> bool:
        """Whether two maps give the same features."""
        if self.gamma is None or other.gamma is None:
            return self.n_features == other.n_features
        sizes = [(each.n_features, each.n_components, each.gamma) for each in (self, other)]
        if isinstance(self.drawn, Draw) and self.drawn == other.drawn and sizes[0] == sizes[1]:
            return True
        pairs = zip(self.spectrum, other.spectrum, strict=True)
        mine, theirs = self.backend.to_numpy, other.backend.to_numpy
        return all(np.array_equal(mine(one), theirs(two)) for one, two in pairs)

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return named arrays and JSON-able values.

        Random features that nothing was computed with yet are not stored, but how to draw them.
        """
        if self.gamma is None:
            return {}, {}
        meta = {"gamma": self.gamma} | ({"blocks": list(self.blocks)} if self.blocks else {})
        if isinstance(self.drawn, Draw) and "spectrum" not in vars(self):
            return {}, meta | {"draw": asdict(self.drawn) | {"n_components": self.n_components}}
        frequencies, phases = map(self.backend.to_numpy, self.spectrum)
        return {"frequencies": frequencies, "phases": phases}, meta

    @classmethod
    def unpack(
        cls,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        n_features: int,
        backend: Backend,
    ) -> FeatureMap:
        """Return the map that `pack` described."""
        if "gamma" not in meta:
            return cls(backend, n_features, n_features)
        gamma, blocks = float(meta["gamma"]), tuple(map(int, meta.get("blocks", ())))
        if "draw" in meta:
            kind, key, size = (meta["draw"][name] for name in ("kind", "key", "n_components"))
            whole = isinstance(key, int) and isinstance(size, int)
            if kind not in RANDOM_FEATURES or not whole or key < 0 or size < 1:
                raise ValueError(f"random features that can't be drawn: {meta['draw']}")
            return cls(backend, n_features, size, gamma, Draw(kind, key), blocks=blocks)
        frequencies = backend.asarray(arrays["frequencies"])
        phases = backend.asarray(arrays["phases"])
        return cls(backend, n_features, len(phases), gamma, (frequencies, phases), blocks=blocks)


@dataclass(frozen=True, eq=False)
class KernelMap:
    """The kernel between a row and the samples of a model, less one: ``exp(-gamma d^2) - 1``.

    Attributes
    ----------
    backend : Backend
        Where the arrays are.
    support : array of shape (n, d)
        The samples, scaled, relative to their mean.
    centre, scales : array of shape (d,)
        What is subtracted from a scaled row, and what each feature is multiplied by.
    scaled_gamma : float
        The gamma for scaled features.
    gamma : float
        That of the feature map, for features that are not scaled.
    """

    backend: Backend
    support: Array
    centre: Array
    scales: Array
    scaled_gamma: float
    gamma: float

    @property
    def n_features(self) -> int:
        """Length d of x."""
        return int(self.support.shape[1])

    @property
    def n_components(self) -> int:
        """Length n of z."""
        return int(self.support.shape[0])

    def lift(self, rows: Array, out: Array | None = None) -> Array:
        """Map rows ``(n, d)`` to their kernel with each sample."""
        rows = self.backend.asarray(rows) * self.scales - self.centre
        lengths = (rows * rows).sum(1)[:, None] + (self.support * self.support).sum(1)
        squares = lengths - 2 * self.backend.linear(rows, self.support)
        return self.backend.xp.expm1(-self.scaled_gamma * squares.clip(0.0))

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return named arrays and JSON-able values."""
        arrays = {name: self.backend.to_numpy(getattr(self, name)) for name in KERNEL_ARRAYS}
        return arrays, {"width": self.scaled_gamma, "gamma": self.gamma}

    @classmethod
    def unpack(
        cls,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        backend: Backend,
    ) -> KernelMap:
        """Return the map that `pack` described."""
        found = {name: backend.asarray(arrays[name]) for name in KERNEL_ARRAYS}
        return cls(backend, **found, scaled_gamma=float(meta["width"]), gamma=float(meta["gamma"]))


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


def _orthogonal(n_features: int, n_components: int, stream: RandomStream) -> Array:
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


def median_squared_distance(samples: Array) -> float:
    """Median squared distance between samples, over at most a thousand evenly spaced ones.

    With many samples, only every few of them are compared with all. If all samples are equal (or
    there is only one), this is the mean squared length, so that the result is positive and follows
    the scale of the features.
    """
    step = -(-len(samples) // MEDIAN_SAMPLES)
    chosen = samples[::step]
    on_device = is_torch(chosen)  # samples on a GPU are not fetched for this
    chosen = chosen.double() if on_device else np.asarray(chosen, np.float64)
    scale = float((chosen * chosen).sum(1).mean())
    if len(chosen) > 1:
        centred = chosen - chosen.mean(0)
        norms = (centred * centred).sum(1)
        some = slice(None, None, -(-(len(chosen) ** 2) // MEDIAN_PAIRS))
        distances = norms[some, None] + norms - 2 * centred[some] @ centred.T
        positive = distances[distances > 1e-13 * max(scale, np.finfo(float).tiny)]
        if len(positive) and on_device:
            ordered = positive.sort().values
            return float((ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2)
        if len(positive):
            return float(np.median(positive))
    return scale if scale > 0 else 1.0
