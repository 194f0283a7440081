"""The scatter matrix S that all classes share, and its inverse.

S is a value that never changes: a change gives another one. Small changes, rows that were added or
removed, are kept beside the matrix of D x D numbers that they change,

    S = S0 + V^T J V,      J the signs of the rows,

and are brought into it once there are many. So teaching a sample costs a copy of nothing, and a
change that fails leaves everything as it was. For the same reason ``R = (S + rho I)^-1`` follows
from the factor of ``S0 + rho I`` by the Woodbury identity until that happens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Backend

UPDATED_PART = 8  # changes are brought into the matrix once there are more than D / 8 rows
Change = tuple[Array, int]  # rows of shape (n, D), and whether they were added (1) or removed (-1)


class NotPositiveDefiniteError(ArithmeticError):
    """A factorisation failed in this precision; a larger ridge may succeed."""


@dataclass(frozen=True, eq=False)
class Scatter:
    """A sum of outer products of rows, never changed."""

    backend: Backend
    size: int  # D
    square: Array | None = None  # S0 in the lower triangle of (D, D); None for zero
    changes: tuple[Change, ...] = ()
    # Sum of squares of every row ever added or removed: what rounding errors are relative to.
    turnover: float = 0.0

    @cached_property
    def trace(self) -> float:
        """The sum of the diagonal."""
        found = 0.0
        if self.square is not None:
            found = float(self.backend.to_numpy(self.square.diagonal(), np.float64).sum())
        return found + sum(sign * float(self.backend.sum_of_squares(v)) for v, sign in self.changes)

    def matrix(self, columns: slice = slice(None)) -> Array:
        """Return the full symmetric matrix, or that of some columns, in double precision."""
        size = len(range(self.size)[columns])
        found = self.backend.double(np.zeros((size, size)))
        if self.square is not None:
            found += self.backend.symmetric(self.square[columns, columns])
        for rows, sign in self.changes:
            part = self.backend.double(rows[:, columns])
            found += sign * (part.T @ part)
        return found

    def add(self, rows: Array, sign: int) -> Scatter:
        """Return the scatter with the outer products of rows added or removed.

        The rows are kept: they must not be changed afterwards.
        """
        turnover = self.turnover + float(self.backend.sum_of_squares(rows))
        added = replace(self, changes=(*self.changes, (rows, sign)), turnover=turnover)
        many = sum(len(kept) for kept, _ in added.changes) > self.size // UPDATED_PART
        return added.condensed() if many else added

    def condensed(self) -> Scatter:
        """Return the same with all changes brought into the matrix."""
        if not self.changes:
            return self
        square = self._own_square()
        for rows, sign in self.changes:
            self.backend.add_gram(square, rows, sign)
        return replace(self, square=square, changes=())

    def _own_square(self) -> Array:
        """Return a copy of the matrix."""
        if self.square is None:
            return self.backend.zeros((self.size, self.size))
        return self.backend.copy(self.square)

    def merge(self, other: Scatter, sign: int = 1) -> Scatter:
        """Return the sum of two, or their difference."""
        merged = self
        if other.square is not None:
            square = self._own_square()
            square += sign * self.backend.asarray(other.square)
            merged = replace(self, square=square)
        for rows, own in other.changes:
            merged = merged.add(self.backend.asarray(rows), sign * own)
        return replace(merged, turnover=self.turnover + other.turnover)


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
        return cls(replace(scatter, changes=()), rho, factor, gains, system)

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
        added = backend.concatenate([rows for rows, _ in new])
        solved = self._apply_factor(backend.concatenate([added, vectors]))
        gained, solved = solved[: len(added)], solved[len(added) :]
        signs = np.concatenate([np.full(len(rows), float(sign)) for rows, sign in new])
        old, size = len(self.gains), len(self.gains) + len(added)
        system = backend.zeros((size, size))
        system[:old, :old] = self.system
        system[old:, :old] = added @ self.gains.T
        system[:old, old:] = system[old:, :old].T
        system[old:, old:] = added @ gained.T
        system.reshape(-1)[:: size + 1][old:] += backend.asarray(signs)  # the diagonal
        solver = backend.lu_factor(system)
        if solver is None:
            raise NotPositiveDefiniteError
        gains = backend.concatenate([self.gains, gained])
        return InverseScatter(scatter, self.rho, self.factor, gains, system, solver), solved

    def _apply_factor(self, vectors: Array) -> Array:
        if self.factor is None:  # of zero
            return vectors / self.rho
        return self.scatter.backend.solve(self.factor, vectors) if len(vectors) else vectors

    def update(self, solved: Array, vectors: Array) -> Array:
        """Turn ``vectors R0`` into ``vectors R``."""
        if self.solver is None:
            return solved
        found = self.scatter.backend.lu_solve(self.solver, vectors @ self.gains.T)
        return solved - found @ self.gains

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self.update(self._apply_factor(vectors), vectors)
