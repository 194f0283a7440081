"""The inverse of the scatter with a ridge, ``R = (S + rho I)^-1``: applied, but never formed.

`InverseScatter` is R itself, from the factor of an earlier scatter and the few rows that came or
went since. `Factor` adds the class means, names and probes that R was applied to, so that a small
change applies it only to what is new.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy

from klda.engine.arrays import Array, Backend
from klda.engine.means import Names
from klda.engine.ridge import DAMAGED, Ridge, trace_probes
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


@dataclass(frozen=True, eq=False)
class InverseScatter:
    """``R = (S + rho I)^-1``, applied but never formed.

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

    def advanced(self, scatter: Scatter, vectors: Array) -> tuple[InverseScatter, Array]:
        """Return the inverse of a scatter with more changes, and vectors times ``R0``.

        Both at once: one vector takes about as long as many.
        """
        backend, new = scatter.backend, scatter.changes[len(self.scatter.changes) :]
        if not new:
            return self, self._apply_factor(vectors)
        added = backend.xp.concat([rows for rows, _ in new])
        solved = self._apply_factor(backend.xp.concat([added, vectors]))
        gained, solved = solved[: len(added)], solved[len(added) :]
        signs = np.concatenate([np.full(len(rows), float(sign)) for rows, sign in new])
        old, size = len(self.gains), len(self.gains) + len(added)
        system = backend.zeros((size, size))
        system[:old, :old] = self.system
        system[old:, :old] = backend.matmul(added, self.gains.T)
        system[:old, old:] = system[old:, :old].T
        system[old:, old:] = backend.matmul(added, gained.T)
        system.reshape(-1)[:: size + 1][old:] += backend.asarray(signs)  # the diagonal
        solver = _lu_factor(backend.to_numpy(system))
        n_removed = sum(len(rows) for rows, sign in scatter.changes if sign < 0)
        if n_removed:  # where more was removed than was there, the inverse is not definite
            values = scipy.linalg.eigvalsh(backend.to_numpy(system, np.float64), check_finite=False)
            if int((values < 0).sum()) != n_removed:
                raise NotPositiveDefiniteError
        gains = backend.xp.concat([self.gains, gained])
        grown = replace(self, scatter=scatter, gains=gains, system=system, solver=solver)
        return grown, solved

    def _apply_factor(self, vectors: Array) -> Array:
        if self.factor is None:  # of zero
            return vectors / self.rho
        return self.scatter.backend.solve(self.factor, vectors) if len(vectors) else vectors

    def update(self, solved: Array, vectors: Array) -> Array:
        """Turn ``vectors R0`` into ``vectors R``."""
        if self.solver is None or not len(vectors):
            return solved
        backend = self.scatter.backend
        wanted = backend.to_numpy(backend.matmul(vectors, self.gains.T)).T
        found = scipy.linalg.lu_solve(self.solver, wanted, check_finite=False).T
        return solved - backend.matmul(backend.asarray(found), self.gains)

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self.update(self._apply_factor(vectors), vectors)


def _lu_factor(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Factorise a small symmetric matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", scipy.linalg.LinAlgWarning)
        factor, pivots = scipy.linalg.lu_factor(matrix, check_finite=False)
    diagonal = factor.diagonal()
    if not (np.isfinite(diagonal).all() and diagonal.all()):
        raise NotPositiveDefiniteError
    return factor, pivots


@dataclass(frozen=True, eq=False)
class Factor:
    """What one solve leaves for the next: the inverse, and the vectors that it was applied to."""

    inverse: InverseScatter
    ridge: Ridge  # before it was raised, if it had to be
    origin: Array  # class means and names are taken relative to this row
    names: Names  # among the vectors
    vectors: Mapping[str, Array]  # class means, names and the probes of the trace, by kind
    solved: Mapping[str, Array]  # these times R0

    @classmethod
    def of(cls, statistics: ClassStatistics, names: Names, ridge: Ridge) -> Factor:
        """Factorise a scatter, with a larger ridge if need be, and apply the factor."""
        means, scatter, rho = statistics.means, statistics.scatter, ridge.rho
        origin = means.mean(0) if len(means) else statistics.backend.zeros(means.shape[1:])
        scale = max(scatter.trace, 0.0) / scatter.size
        dtype = statistics.backend.dtype
        # No eigenvalue is below minus the sum of all that was removed.
        enough = max(scatter.turnover, rho * 10.0**LEAST_RAISES)
        while rho <= 10 * enough and np.isfinite(rho):
            with suppress(NotPositiveDefiniteError):
                inverse = InverseScatter.of(scatter, rho)
                empty = cls(inverse, ridge, origin, names, {}, {})
                solved = empty.advanced(statistics, names, ridge)
                if rho > ridge.rho:
                    _warn_of_raise(statistics, ridge.rho, rho)
                return solved
            rho = max(rho, float(np.finfo(dtype).eps) * scale) * 10
        raise KldaError(f"The scatter can't be factorised with any ridge: {DAMAGED}")

    def advanced(self, statistics: ClassStatistics, names: Names, ridge: Ridge) -> Factor:
        """Return the same for statistics that have changed a little.

        Only vectors that have changed, or are new, are solved.
        """
        scatter, backend = statistics.scatter, statistics.backend
        vectors = {"means": statistics.means - self.origin}
        vectors["names"] = names.rows - self.origin if names.labels else vectors["means"][:0]
        vectors["probes"] = backend.asarray(trace_probes(scatter.size))
        wanted = {kind: self._changed(kind, rows, backend) for kind, rows in vectors.items()}
        some = [rows[backend.index(wanted[kind])] for kind, rows in vectors.items()]
        inverse, found = self.inverse.advanced(scatter, backend.xp.concat(some))
        solved, start = {}, 0
        for kind, rows in vectors.items():
            at, known = wanted[kind], self.solved.get(kind, rows[:0])
            stop = start + len(at)
            solved[kind] = backend.zeros(rows.shape)
            solved[kind][: len(known)] = known[: len(rows)]
            solved[kind][backend.index(at)] = found[start:stop]
            start = stop
        return Factor(inverse, ridge, self.origin, names, vectors, solved)

    def _changed(self, kind: str, rows: Array, backend: Backend) -> np.ndarray:
        """Return the positions of vectors that were not solved before."""
        known = self.vectors.get(kind, rows[:0])
        if known is rows:
            return np.empty(0, np.int64)
        both = min(len(known), len(rows))
        same = backend.to_numpy((rows[:both] == known[:both]).all(1)).astype(bool)
        return np.concatenate([np.flatnonzero(~same), np.arange(both, len(rows))])

    def with_r(self, kind: str) -> Array:
        """Return vectors, and these times R, in an array of shape (2, n, D)."""
        vectors, backend = self.vectors[kind], self.inverse.scatter.backend
        return backend.xp.stack([vectors, self.inverse.update(self.solved[kind], vectors)])

    def d_out(self, freedom: int) -> tuple[float, float]:
        """Return ``tr(P Sigma)`` as a new sample sees it, and how many times the in-sample one."""
        if freedom <= 0:
            return 0.0, 1.0
        probes, solved = self.with_r("probes")
        trace = float((solved * probes).sum())
        inside = max(self.inverse.scatter.size - self.inverse.rho * trace, 0.0)
        inflation = 1 / max(1 - inside / freedom, SMALLEST_SLACK)
        return inside * inflation, inflation
