"""Random Fourier features of the RBF kernel ``K(x, y) = exp(-gamma * ||x - y||^2)``.

The paper writes ``omega ~ N(0, sigma^-2 I)``, but the values it gives for sigma are values of
gamma: its program draws ``omega ~ N(0, 2 gamma I)``. Here the parameter has scikit-learn's name
and meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from klda.backend import Array, Backend

MEDIAN_SAMPLES = 1000
GAMMA_SCALE = 0.075


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """A drawn feature map ``z(x) = sqrt(2 / D) * cos(x omega + phase)``.

    Attributes
    ----------
    frequencies : array of shape (d, D)
        The random directions omega, scaled by ``sqrt(2 gamma)``.
    phases : array of shape (D,)
        Uniform on ``[0, 2 pi)``.
    gamma : float
        The kernel's inverse squared width.
    """

    frequencies: Array
    phases: Array
    gamma: float
    backend: Backend

    @classmethod
    def draw(
        cls,
        n_features: int,
        n_components: int,
        *,
        gamma: float,
        kind: str,
        rng: np.random.RandomState,
        backend: Backend,
    ) -> FourierFeatures:
        """Draw a feature map: ``kind`` is ``"gaussian"`` or ``"orthogonal"``."""
        directions = _DIRECTIONS[kind](n_features, n_components, rng)
        phases = rng.uniform(0, 2 * np.pi, n_components)
        return cls(
            backend.asarray(np.sqrt(2 * gamma) * directions),
            backend.asarray(phases),
            float(gamma),
            backend,
        )

    @property
    def n_components(self) -> int:
        """The number of random features D."""
        return int(self.frequencies.shape[1])

    def transform(self, samples: Array, room: Array | None = None) -> Array:
        """Map samples ``(n, d)`` to features ``(n, D)``, in the room if one is given."""
        scale = float(np.sqrt(2 / self.n_components))
        return self.backend.cosine_map(samples, self.frequencies, self.phases, scale, room)

    def same_as(self, other: FourierFeatures) -> bool:
        """Whether two maps give the same features."""
        mine, theirs = self.backend.to_numpy, other.backend.to_numpy
        return np.array_equal(mine(self.phases), theirs(other.phases)) and np.array_equal(
            mine(self.frequencies), theirs(other.frequencies)
        )


def _gaussian_directions(
    n_features: int, n_components: int, rng: np.random.RandomState
) -> np.ndarray:
    return rng.standard_normal((n_features, n_components))


def _orthogonal_directions(
    n_features: int, n_components: int, rng: np.random.RandomState
) -> np.ndarray:
    """Blocks of orthogonal directions with the lengths of Gaussian ones (Yu et al. 2016)."""
    blocks = []
    for _ in range(-(-n_components // n_features)):
        directions, triangle = np.linalg.qr(rng.standard_normal((n_features, n_features)))
        directions *= np.sign(np.diag(triangle))  # uniform over the orthogonal group
        lengths = np.sqrt(rng.chisquare(n_features, n_features))
        blocks.append(directions * lengths)
    return np.concatenate(blocks, axis=1)[:, :n_components]


_DIRECTIONS = {"gaussian": _gaussian_directions, "orthogonal": _orthogonal_directions}
RANDOM_FEATURES = tuple(_DIRECTIONS)


def median_squared_distance(samples: np.ndarray) -> float:
    """Median squared distance between samples, over at most a thousand evenly spaced ones.

    Where all samples are alike (or there is one), the mean squared length stands in, so that the
    answer is positive and follows the scale of the features.
    """
    step = -(-len(samples) // MEDIAN_SAMPLES)
    chosen = np.asarray(samples[::step], dtype=np.float64)
    chosen_norms = np.einsum("ij,ij->i", chosen, chosen)
    scale = float(chosen_norms.mean())
    if len(chosen) > 1:
        centred = chosen - chosen.mean(axis=0)
        norms = np.einsum("ij,ij->i", centred, centred)
        squared = norms[:, None] + norms - 2 * centred @ centred.T
        distances = squared[np.triu_indices(len(chosen), 1)]
        positive = distances[distances > 1e-13 * max(scale, np.finfo(float).tiny)]
        if len(positive):
            return float(np.median(positive))
    return scale if scale > 0 else 1.0
