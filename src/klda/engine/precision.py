"""The inverse of the regularised scatter, ``R = (S + rho I)^-1``, applied but never formed.

After a small change the factor stays as it is and the Woodbury identity brings the change in,
always from the same factor, so that errors don't add up over many changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Backend, Steps
from klda.engine.interrupts import held_back
from klda.engine.statistics import ClassStatistics, Scatter


class NotPositiveDefiniteError(ArithmeticError):
    """A factorisation failed in this precision; a larger ridge may succeed."""


class ThinPrecision:
    """``R = (V^T J V + rho I)^-1`` through the system between the rows V, for few rows.

    Rows that were added and removed again make that system ill-conditioned: with such rows it is
    solved in double precision.
    """

    def __init__(self, scatter: Scatter, rho: float) -> None:
        self.backend = scatter.backend
        self.rho = rho
        self.definite = bool((scatter.signs > 0).all())
        if self.definite:
            self.rows, system = scatter.rows, self.backend.copy(scatter.gram())
        else:
            self.rows = self.backend.widen(scatter.rows)
            system = self.rows @ self.rows.T
        _diagonal(system)[:] += self.backend.asarray(rho * scatter.signs)
        self._solve = _small_solver(self.backend, system, self.definite) if len(system) else None

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        if self._solve is None:
            return vectors / self.rho
        if not self.definite:
            vectors = self.backend.widen(vectors)
        solved = self._solve(vectors @ self.rows.T)
        return self.backend.asarray((vectors - solved @ self.rows) / self.rho)


class DensePrecision:
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
    def factorised(cls, scatter: Scatter, rho: float) -> Steps[DensePrecision]:
        """Factorise a scatter."""
        with held_back():
            finish = scatter.backend.factorise(scatter.square, rho)
        yield
        with held_back():
            factor = finish()
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
        _diagonal(system)[old:] += float(sign)
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
            self._solve = _small_solver(self.backend, self.system, self.definite)
        return solved - self._solve(vectors @ self.gains.T) @ self.gains

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self.apply_updates(self.apply_base([vectors])[0], vectors)


class PlainWeights:
    """``N (mu_m - g) R``: the weights of the plain means, computed for a few classes at a time.

    With a dense precision, ``base`` holds the rows ``(mu_m - reference) R0``.
    """

    def __init__(
        self,
        statistics: ClassStatistics,
        precision: ThinPrecision | DensePrecision,
        base: Array | None,
        reference: Array,
    ) -> None:
        self.statistics, self.precision = statistics, precision
        self.base, self.reference = base, reference
        self.centre = statistics.means.mean(0)
        self._centre_offset = self.centre - reference
        self._shift: Array | float = 0.0  # the same in the weights of all classes
        if base is not None:
            assert isinstance(precision, DensePrecision)
            self._shift = precision.apply_updates(base.mean(0)[None], self._centre_offset[None])

    def of(self, positions: np.ndarray) -> tuple[Array, Array]:
        """Return the means, relative to the mean of means, and the weights of some classes."""
        at = self.statistics.backend.index(positions)
        means = self.statistics.means[at]
        means -= self.reference
        if self.base is None:
            weights = self.precision.apply(means)
        else:
            assert isinstance(self.precision, DensePrecision)
            weights = self.precision.apply_updates(self.base[at], means)
        weights -= self._shift
        weights *= self.statistics.n_scattered
        means -= self._centre_offset
        return means, weights


def _small_solver(backend: Backend, system: Array, definite: bool) -> Callable[[Array], Array]:
    solve = backend.small_solver(system, definite=definite)
    if solve is None:
        raise NotPositiveDefiniteError
    return solve


def _diagonal(matrix: Array) -> Array:
    """Return the diagonal of a contiguous matrix as a view that can be written to."""
    return matrix.reshape(-1)[:: len(matrix) + 1]
