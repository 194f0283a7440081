"""Feature maps, from a row x to the row z of the space in which LDA is done.

For KLDA that is the space of the RBF kernel ``K(x, y) = exp(-gamma ||x - y||^2)``: approximated by
random Fourier features, or exact, spanned by the few samples there are. The paper writes
``omega ~ N(0, sigma^-2 I)``, but the values it gives for sigma are values of gamma: its program
draws ``omega ~ N(0, 2 gamma I)``. Here the parameter has scikit-learn's name and meaning.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import scipy

from klda.engine.arrays import (
    Array,
    Arrays,
    Backend,
    Meta,
    NumpyBackend,
    Packed,
    choose_backend,
    on_cpu,
    product,
)
from klda.engine.random_stream import RandomStream, orthogonal

MEDIAN_SAMPLES = 1000
MEDIAN_PAIRS = 125_000
GAMMA_SCALE = 0.075
RANDOM_FEATURES = ("gaussian", "orthogonal")
KERNEL_ARRAYS = ("support", "centre", "whitener", "scales")


@dataclass(frozen=True)
class Draw:
    """How random features are drawn; the same draw gives the same ones on every device."""

    kind: str  # one of RANDOM_FEATURES
    key: int


@dataclass(frozen=True, eq=False)
class IdentityMap:
    """The features as they are, relative to a fixed row.

    Beside an offset that all samples share, their differences would lose digits: the first batch's
    mean is subtracted.
    """

    backend: Backend
    centre: Array  # of shape (d,)

    @property
    def n_features(self) -> int:
        """Length of x."""
        return len(self.centre)

    n_components = n_features  # length of z

    def lift(self, rows: Array) -> Array:
        """Map rows ``(n, d)`` to other rows."""
        return self.backend.asarray(rows) - self.centre

    def same_as(self, other: FeatureMap) -> bool:
        """Whether two maps give the same features, up to an offset."""
        return isinstance(other, IdentityMap) and self.n_features == other.n_features

    def pack(self) -> Packed:
        """Return named arrays and JSON-able values."""
        return Packed({"centre": self.backend.to_numpy(self.centre)}, {})


@dataclass(frozen=True, eq=False)
class FourierMap:
    """Random Fourier features, ``z = sqrt(2 / D) * cos(x omega + phase)``.

    They are drawn when they are first needed: a model of few samples does without them.
    """

    backend: Backend
    n_features: int  # length d of x and D of z
    n_components: int
    gamma: float  # the kernel's inverse squared width
    # How to draw the random directions omega, of shape (d, D) and scaled by ``sqrt(2 gamma)``, and
    # the phases, of shape (D,) and uniform on ``[0, 2 pi)``; or these two, as read from disk.
    drawn: Draw | tuple[Array, Array]

    @cached_property
    def spectrum(self) -> tuple[Array, Array]:
        """Frequencies and phases."""
        if not isinstance(self.drawn, Draw):
            return self.drawn
        backend, is_orthogonal = self.backend, self.drawn.kind == "orthogonal"
        # The decomposition that makes directions orthogonal rounds differently on each device.
        stream = RandomStream(self.drawn.key, NumpyBackend("float64") if is_orthogonal else backend)
        phases = backend.asarray(2 * np.pi * stream.uniform(self.n_components))
        draw = orthogonal if is_orthogonal else RandomStream.normal
        directions = backend.asarray(draw(stream, self.n_features, self.n_components))
        directions *= float(np.sqrt(2 * self.gamma))
        return directions, phases

    def lift(self, rows: Array) -> Array:
        """Map rows ``(n, d)`` to other rows ``(n, D)``."""
        scale = float(np.sqrt(2 / self.n_components))
        return self.backend.cosine_map(self.backend.asarray(rows), *self.spectrum, scale)

    def same_as(self, other: FeatureMap) -> bool:
        """Whether two maps give the same features."""
        if not isinstance(other, FourierMap):
            return False
        sizes = [(each.n_features, each.n_components, each.gamma) for each in (self, other)]
        if isinstance(self.drawn, Draw) and self.drawn == other.drawn:
            return sizes[0] == sizes[1]
        pairs = zip(self.spectrum, other.spectrum, strict=True)
        mine, theirs = self.backend.to_numpy, other.backend.to_numpy
        return all(np.array_equal(mine(one), theirs(two)) for one, two in pairs)

    def pack(self) -> Packed:
        """Return named arrays and JSON-able values.

        Random features that nothing was computed with yet are not stored, but how to draw them.
        """
        if isinstance(self.drawn, Draw) and "spectrum" not in vars(self):
            draw = asdict(self.drawn) | {"n_components": self.n_components}
            return Packed({}, {"gamma": self.gamma, "draw": draw})
        frequencies, phases = map(self.backend.to_numpy, self.spectrum)
        return Packed({"frequencies": frequencies, "phases": phases}, {"gamma": self.gamma})


FeatureMap: TypeAlias = IdentityMap | FourierMap


def unpack_map(arrays: Arrays, meta: Meta, n_features: int, backend: Backend) -> FeatureMap:
    """Return the map that `pack` described."""
    if "gamma" not in meta:
        centre = arrays.get("centre", np.zeros(n_features))  # version 0.2.0 had none
        return IdentityMap(backend, backend.asarray(centre))
    gamma = float(meta["gamma"])
    if "draw" in meta:
        kind, key, size = (meta["draw"][name] for name in ("kind", "key", "n_components"))
        whole = isinstance(key, int) and isinstance(size, int)
        if kind not in RANDOM_FEATURES or not whole or key < 0 or size < 1:
            raise ValueError(f"random features that can't be drawn: {meta['draw']}")
        return FourierMap(backend, n_features, size, gamma, Draw(kind, key))
    frequencies, phases = (backend.asarray(arrays[name]) for name in ("frequencies", "phases"))
    return FourierMap(backend, n_features, len(phases), gamma, (frequencies, phases))


@dataclass(frozen=True, eq=False)
class KernelMap:
    """Features whose inner products are the kernel's, exactly, on the span of some samples.

    With ``k`` the kernel relative to the samples' mean row c, ``k(x, y) = K(x, y) - K(x, c) -
    K(c, y) + 1``, and the pivoted Cholesky factor ``L L^T`` of k between the samples, a row's
    features are ``z = k(x, support) L^-T``. All of it is in double precision: the kernel of nearby
    samples is almost singular.
    """

    backend: Backend
    support: Array  # (r, d): the pivots: samples, relative to c, that are not in the span of others
    centre: Array  # (d,): c
    whitener: Array  # (r, r): ``L^-T`` for the pivots
    # (d,): what each feature is multiplied by first. The gamma for scaled features makes the kernel
    # as wide, on average, as it is without them.
    scales: Array
    gamma: float

    @classmethod
    def of(
        cls, rows: np.ndarray, gamma: float, scales: np.ndarray, backend: Backend
    ) -> tuple[KernelMap, Array]:
        """Return the map that samples span, and their features."""
        plain = np.asarray(rows, np.float64)
        rows = plain * scales
        centre = rows.mean(axis=0)
        spread = float(rows.var(axis=0).sum())
        gamma = gamma * float(plain.var(axis=0).sum()) / spread if spread > 0 else gamma
        rows = rows - centre
        inner = scipy.linalg.blas.dsyrk(1.0, rows.T, trans=1, lower=1)
        kernel = relative_kernel(rows, rows, inner, gamma, np)  # the lower triangle
        tolerance = len(rows) * np.finfo(float).eps * float(kernel.diagonal().max(initial=0.0))
        factor, pivots, rank, _ = scipy.linalg.lapack.dpstrf(kernel, tol=tolerance, lower=1)
        rank, order = max(int(rank), 1), pivots - 1
        factor = np.tril(factor)[:, :rank]
        if factor[0, 0] <= 0:  # all samples are the same
            factor[:], factor[0, 0] = 0.0, 1.0
        features = np.empty_like(factor)
        features[order] = factor
        inverse, _ = scipy.linalg.lapack.dtrtri(factor[:rank], lower=1)
        double = choose_backend(backend.device, "float64")
        support = double.asarray(rows[order[:rank]])
        own_map = cls(
            backend=double,
            support=support,
            centre=double.asarray(centre),
            whitener=double.asarray(np.tril(inverse).T),
            scales=double.asarray(scales),
            gamma=gamma,
        )
        return own_map, double.asarray(features)

    @property
    def n_features(self) -> int:
        """Length d of x."""
        return int(self.support.shape[1])

    @property
    def n_components(self) -> int:
        """Length r of z."""
        return int(self.support.shape[0])

    def lift(self, rows: Array) -> Array:
        """Map rows ``(n, d)`` to their features ``(n, r)``."""
        rows = self.backend.asarray(rows) * self.scales - self.centre
        inner = product(rows, self.support.T)
        kernel = relative_kernel(rows, self.support, inner, self.gamma, self.backend.xp)
        return product(kernel, self.whitener)

    def pack(self) -> Packed:
        """Return named arrays and JSON-able values."""
        arrays = {name: self.backend.to_numpy(getattr(self, name)) for name in KERNEL_ARRAYS}
        return Packed(arrays, {"gamma": self.gamma})

    @classmethod
    def unpack(cls, arrays: Arrays, meta: Meta, backend: Backend) -> KernelMap:
        """Return the map that `pack` described."""
        double = choose_backend(backend.device, "float64")
        support, centre, whitener, scales = (double.asarray(arrays[k]) for k in KERNEL_ARRAYS)
        return cls(double, support, centre, whitener, scales, float(meta["gamma"]))


def relative_kernel(rows: Array, others: Array, inner: Array, gamma: float, xp: Any) -> Array:
    """Return the kernel between rows and others, relative to the origin, without lost digits.

    ``inner`` has their inner products; ``xp`` is the module of the arrays.
    """
    lengths, other_lengths = (rows * rows).sum(1), (others * others).sum(1)
    squares = lengths[:, None] + other_lengths - 2 * inner
    near = xp.expm1(-gamma * squares.clip(0.0))
    return near - xp.expm1(-gamma * lengths)[:, None] - xp.expm1(-gamma * other_lengths)


def median_squared_distance(samples: Array) -> float:
    """Median squared distance between samples, over at most a thousand evenly spaced ones.

    With many samples, only every few of them are compared with all. If all samples are equal (or
    there is only one), this is the mean squared length, so that the result is positive and follows
    the scale of the features.
    """
    step = -(-len(samples) // MEDIAN_SAMPLES)
    chosen = on_cpu(samples[::step]).astype(np.float64)
    scale = float((chosen * chosen).sum(1).mean())
    if len(chosen) > 1:
        centred = chosen - chosen.mean(0)
        norms = (centred * centred).sum(1)
        some = slice(None, None, -(-(len(chosen) ** 2) // MEDIAN_PAIRS))
        distances = norms[some, None] + norms - 2 * centred[some] @ centred.T
        positive = distances[distances > 1e-13 * max(scale, np.finfo(float).tiny)]
        if len(positive):
            return float(np.median(positive))
    return scale if scale > 0 else 1.0
