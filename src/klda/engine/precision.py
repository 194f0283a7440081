"""The inverse of the regularised scatter, ``R = (S + rho I)^-1``, applied but never formed.

After a small change the factor stays as it is and the Woodbury identity brings the change in,
always from the same factor, so that errors don't add up over many changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from klda.engine.arrays import Array
from klda.engine.interrupts import held_back
from klda.engine.statistics import Scatter


class NotPositiveDefiniteError(ArithmeticError):
    """A factorisation failed in this precision; a larger ridge may succeed."""


class Precision:
    """``R = (S + rho I)^-1`` from one factorisation and the changes since (Woodbury).

    With the factor's ``R0`` and changes ``V^T J V`` since, the gains ``G = V R0`` and the small
    system ``C = J + V R0 V^T`` give ``R = R0 - G^T C^-1 G``.
    """

    def __init__(self, scatter: Scatter, rho: float, factor: Any) -> None:
        self.backend = scatter.backend
        self.rho = rho
        self.square = scatter.square
        self.factor = factor
        self.gains = self.backend.empty((0, scatter.n_components))
        self.system = self.backend.empty((0, 0))
        self.definite = True
        self._solve: Callable[[Array], Array] | None = None

    @classmethod
    def factorised(cls, scatter: Scatter, rho: float) -> Precision:
        """Factorise a scatter."""
        with held_back():
            factor = scatter.backend.factorise(scatter.filled(), rho)
        if factor is None:
            raise NotPositiveDefiniteError
        return cls(scatter, rho, factor)

    def extend(self, rows: Array, gains: Array, sign: int) -> None:
        """Bring in a change of the scatter by ``sign * rows^T rows``; the gains are ``rows R0``."""
        old, new = len(self.gains), len(rows)
        system = self.backend.empty((old + new, old + new))
        system[:old, :old] = self.system
        system[old:, :old] = rows @ self.gains.T
        system[:old, old:] = system[old:, :old].T
        system[old:, old:] = rows @ gains.T
        system.reshape(-1)[:: len(system) + 1][old:] += float(sign)  # the diagonal
        self.system = system
        self.gains = self.backend.concatenate([self.gains, gains])
        self.definite = self.definite and sign > 0
        self._solve = None

    def apply_base(self, parts: list[Array]) -> list[Array]:
        """Return ``vectors R0`` for each of some arrays of vectors."""
        vectors = self.backend.concatenate(parts) if len(parts) > 1 else parts[0]
        if not len(vectors):
            return parts
        solved = self.backend.solve(self.square, self.factor, vectors)
        stops = np.cumsum([len(part) for part in parts]).tolist()
        return [solved[stop - len(part) : stop] for part, stop in zip(parts, stops, strict=True)]

    def apply_updates(self, solved: Array, vectors: Array) -> Array:
        """Turn ``vectors R0`` into ``vectors R``."""
        if not len(self.gains):
            return solved
        if self._solve is None:
            self._solve = self.backend.small_solver(self.system, definite=self.definite)
        if self._solve is None:
            raise NotPositiveDefiniteError
        return solved - self._solve(vectors @ self.gains.T) @ self.gains

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self.apply_updates(self.apply_base([vectors])[0], vectors)


class PlainWeights:
    """``N (mu_m - g) R``: the weights of the plain means, computed for a few classes at a time.

    ``base`` holds the rows ``(mu_m - reference) R0``.
    """

    def __init__(
        self, means: Array, n_samples: int, precision: Precision, base: Array, reference: Array
    ) -> None:
        self.means, self.n_samples, self.precision = means, n_samples, precision
        self.base, self.reference = base, reference
        self.centre = means.mean(0)
        self._centre_offset = self.centre - reference
        # The same in the weights of all classes.
        self._shift = precision.apply_updates(base.mean(0)[None], self._centre_offset[None])

    def of(self, positions: np.ndarray) -> tuple[Array, Array]:
        """Return the means, relative to the mean of means, and the weights of some classes."""
        at = self.precision.backend.index(positions)
        means = self.means[at]
        means -= self.reference
        weights = self.precision.apply_updates(self.base[at], means)
        weights -= self._shift
        weights *= self.n_samples
        means -= self._centre_offset
        return means, weights
