"""The inverse of the scatter with a ridge, ``R = (S + rho I)^-1``: applied, but never formed.

It follows from the factor of an earlier scatter and the few rows that came or went since, and
remembers the vectors that it was applied to: a small change applies it only to what is new.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy

from klda.engine.arrays import Array, product
from klda.engine.ridge import DAMAGED
from klda.engine.statistics import ClassStatistics, Scatter
from klda.errors import KldaError

SMALLEST_SLACK = 0.05  # of 1 - D_eff / (N - M), below which D_out is not to be trusted
LEAST_RAISES = 12  # tenfold, of a ridge that is too small for the precision


class RidgeRaisedWarning(UserWarning):
    """The ridge was raised because the scatter was not positive definite in this precision."""


def _warn_of_raise(statistics: ClassStatistics, wanted: float, rho: float) -> None:
    scatter, dtype = statistics.scatter, statistics.backend.dtype
    scale = max(scatter.trace / scatter.size, np.finfo(float).tiny)
    warnings.warn(
        f"The scatter of {statistics.n_scattered} samples is not positive definite in "
        f"{dtype.name} with a ridge of {wanted:.1e}; solved with one of {rho:.1e}, "
        f"{rho / scale:.1e} of its mean diagonal. A larger ridge avoids this, and so may "
        "dtype='float64'.",
        RidgeRaisedWarning,
        stacklevel=3,
    )


class NotPositiveDefiniteError(ArithmeticError):
    """A factorisation failed in this precision; a larger ridge may succeed."""


def factorised(
    statistics: ClassStatistics, rho: float, vectors: Mapping[str, Array]
) -> InverseScatter:
    """Factorise a scatter, with a larger ridge if need be, and apply the inverse to vectors."""
    scatter, dtype, wanted = statistics.scatter, statistics.backend.dtype, rho
    scale = max(scatter.trace, 0.0) / scatter.size
    # No eigenvalue is below minus the sum of all that was removed.
    enough = max(scatter.turnover, rho * 10.0**LEAST_RAISES)
    while rho <= 10 * enough and np.isfinite(rho):
        with suppress(NotPositiveDefiniteError):
            found = InverseScatter.of(scatter, rho).advanced(scatter, vectors)
            if rho > wanted:
                _warn_of_raise(statistics, wanted, rho)
            return found
        rho = max(rho, float(np.finfo(dtype).eps) * scale) * 10
    raise KldaError(f"The scatter can't be factorised with any ridge: {DAMAGED}")


@dataclass(frozen=True, eq=False)
class InverseScatter:
    """``R = (S + rho I)^-1``, and the vectors that it was applied to.

    With the factor's ``R0`` and the changes since, the gains ``G = V R0`` and the small system
    ``C = J + V R0 V^T`` give ``R = R0 - G^T C^-1 G``: always from the same factor, so that errors
    don't add up over many changes.
    """

    scatter: Scatter
    rho: float
    factor: Array | None  # of S0 + rho I; None if S0 is zero
    gains: Array
    system: Array
    solver: Any = None  # of the system; None without changes
    vectors: Mapping[str, Array] = field(default_factory=dict)  # by kind: class means, names, ...
    solved: Mapping[str, Array] = field(default_factory=dict)  # these times R0

    @classmethod
    def of(cls, scatter: Scatter, rho: float) -> InverseScatter:
        """Factorise the matrix of a scatter, without the changes beside it."""
        backend, factor = scatter.backend, None
        if scatter.square is not None:
            factor = backend.factorise(scatter.square, rho)
            if factor is None:
                raise NotPositiveDefiniteError
        gains, system = backend.zeros((0, scatter.size)), backend.zeros((0, 0))
        start = replace(scatter, changes=())
        return cls(start, rho, factor, gains, system)

    def is_for(self, scatter: Scatter) -> bool:
        """Whether it can be advanced to a scatter: the same matrix, with more changes."""
        known, changes = self.scatter.changes, scatter.changes
        if self.scatter.square is not scatter.square or len(known) > len(changes):
            return False
        return all(a[0] is b[0] for a, b in zip(known, changes, strict=False))

    def advanced(self, scatter: Scatter, vectors: Mapping[str, Array]) -> InverseScatter:
        """Return the inverse of a scatter with more changes, applied to vectors.

        Only the changes, and vectors that are new or were others before, are solved: all at once,
        because one takes about as long as many.
        """
        backend, new = scatter.backend, scatter.changes[len(self.scatter.changes) :]
        added = [rows for rows, _ in new]
        changed = {kind: self._changed(kind, rows) for kind, rows in vectors.items()}
        others = [rows[backend.index(changed[kind])] for kind, rows in vectors.items()]
        found = self._apply_factor(backend.xp.concat([*added, *others]))
        start, solved = sum(map(len, added)), {}
        grown = self._grown(scatter, found[:start]) if new else self
        for kind, rows in vectors.items():
            at, known = changed[kind], self.solved.get(kind, rows[:0])
            solved[kind] = backend.zeros(rows.shape)
            solved[kind][: len(known)] = known[: len(rows)]
            solved[kind][backend.index(at)] = found[start : start + len(at)]
            start += len(at)
        return replace(grown, vectors=vectors, solved=solved)

    def _changed(self, kind: str, rows: Array) -> np.ndarray:
        """Return the positions of vectors that were not solved before."""
        known = self.vectors.get(kind, rows[:0])
        if known is rows:
            return np.empty(0, np.int64)
        both = min(len(known), len(rows))
        same = self.scatter.backend.to_numpy((rows[:both] == known[:both]).all(1)).astype(bool)
        return np.concatenate([np.flatnonzero(~same), np.arange(both, len(rows))])

    def _grown(self, scatter: Scatter, gained: Array) -> InverseScatter:
        """Return the inverse with the rows that a scatter has beyond its own, given their gains."""
        backend, new = scatter.backend, scatter.changes[len(self.scatter.changes) :]
        added = backend.xp.concat([rows for rows, _ in new])
        signs = np.concatenate([np.full(len(rows), float(sign)) for rows, sign in new])
        old, size = len(self.gains), len(self.gains) + len(added)
        system = backend.zeros((size, size))
        system[:old, :old] = self.system
        system[old:, :old] = product(added, self.gains.T)
        system[:old, old:] = system[old:, :old].T
        system[old:, old:] = product(added, gained.T)
        system.reshape(-1)[:: size + 1][old:] += backend.asarray(signs)  # the diagonal
        solver = _lu_factor(backend.to_numpy(system))
        n_removed = sum(len(rows) for rows, sign in scatter.changes if sign < 0)
        if n_removed:  # where more was removed than was there, the inverse is not definite
            values = scipy.linalg.eigvalsh(backend.to_numpy(system, np.float64), check_finite=False)
            if int((values < 0).sum()) != n_removed:
                raise NotPositiveDefiniteError
        gains = backend.xp.concat([self.gains, gained])
        return replace(self, scatter=scatter, gains=gains, system=system, solver=solver)

    # ---------------------------------------------------------------- applied

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self._updated(self._apply_factor(vectors), vectors)

    def with_r(self, kind: str) -> Array:
        """Return vectors that it was advanced with, and these times R, of shape (2, n, D)."""
        vectors = self.vectors[kind]
        return self.scatter.backend.xp.stack([vectors, self._updated(self.solved[kind], vectors)])

    def _apply_factor(self, vectors: Array) -> Array:
        """Return ``vectors R0``."""
        if self.factor is None:  # of zero
            return vectors / self.rho
        return self.scatter.backend.solve(self.factor, vectors) if len(vectors) else vectors

    def _updated(self, solved: Array, vectors: Array) -> Array:
        """Turn ``vectors R0`` into ``vectors R``."""
        if self.solver is None or not len(vectors):
            return solved
        backend = self.scatter.backend
        wanted = backend.to_numpy(product(vectors, self.gains.T)).T
        found = scipy.linalg.lu_solve(self.solver, wanted, check_finite=False).T
        return solved - product(backend.asarray(found), self.gains)

    def d_out(self, freedom: int) -> tuple[float, float]:
        """Return ``tr(P Sigma)`` as a new sample sees it, and how many times the in-sample one."""
        if freedom <= 0:
            return 0.0, 1.0
        probes, solved = self.with_r("probes")
        trace = float((solved * probes).sum())
        inside = max(self.scatter.size - self.rho * trace, 0.0)
        inflation = 1 / max(1 - inside / freedom, SMALLEST_SLACK)
        return inside * inflation, inflation


def _lu_factor(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factorise a small symmetric matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        factor, pivots = scipy.linalg.lu_factor(matrix, check_finite=False)
    diagonal = factor.diagonal()
    if not (np.isfinite(diagonal).all() and diagonal.all()):
        raise NotPositiveDefiniteError
    return factor, pivots
