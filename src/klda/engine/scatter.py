"""The scatter matrix S that all classes share, and its inverse.

S is a value that never changes: a change gives another one. Small changes, rows that were added or
removed, are kept beside the matrix of D x D numbers that they change,

    S = S0 + V^T J V,      J the signs of the rows,

and are brought into it once there are many. So teaching a sample costs a copy of nothing, and a
change that fails leaves everything as it was. For the same reason ``R = (S + rho I)^-1`` follows
from the factor of ``S0 + rho I`` by the Woodbury identity until that happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from klda.engine.backends import Array, Backend

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

    def matrix(self, columns: slice = slice(None)) -> np.ndarray:
        """Return the full symmetric matrix, or that of some columns, in double precision."""
        to_numpy, size = self.backend.to_numpy, len(range(self.size)[columns])
        found = np.zeros((size, size))
        if self.square is not None:
            lower = np.tril(to_numpy(self.square[columns, columns], np.float64))
            found = lower + np.tril(lower, -1).T
        for rows, sign in self.changes:
            part = to_numpy(rows[:, columns], np.float64)
            found += sign * (part.T @ part)
        return found

    def draft(self) -> ScatterDraft:
        """Return a draft to which rows can be added."""
        return ScatterDraft(self)

    def merge(self, other: Scatter) -> Scatter:
        """Return the sum of two."""
        draft = self.draft()
        if other.square is not None:
            draft.add_square(other.square)
        for rows, sign in other.changes:
            draft.add(self.backend.asarray(rows), sign)
        return replace(draft.done(), turnover=self.turnover + other.turnover)


class ScatterDraft:
    """A scatter being changed; the one that it started from stays as it is."""

    def __init__(self, scatter: Scatter) -> None:
        self._from = scatter
        self._square: Array = None
        self._changes, self._turnover = list(scatter.changes), scatter.turnover

    def add(self, rows: Array, sign: int) -> None:
        """Add or remove the outer products of rows, which must not be changed afterwards."""
        self._turnover += float(self._from.backend.sum_of_squares(rows))
        self._changes.append((rows, sign))
        if sum(len(kept) for kept, _ in self._changes) > self._from.size // UPDATED_PART:
            self.bring_in()

    def add_square(self, square: Array) -> None:
        """Add another matrix."""
        self._own_square()
        self._square += self._from.backend.asarray(square)

    def _own_square(self) -> None:
        if self._square is None:
            backend, size = self._from.backend, self._from.size
            known = self._from.square
            self._square = backend.zeros((size, size)) if known is None else backend.copy(known)

    def bring_in(self) -> None:
        """Bring all changes into the matrix."""
        if not self._changes:
            return
        self._own_square()
        for rows, sign in self._changes:
            self._from.backend.add_gram(self._square, rows, sign)
        self._changes.clear()

    def done(self) -> Scatter:
        """Return the scatter with all changes."""
        square = self._from.square if self._square is None else self._square
        return replace(
            self._from, square=square, changes=tuple(self._changes), turnover=self._turnover
        )


class InverseScatter:
    """``R = (S + rho I)^-1``, applied but never formed.

    With the factor's ``R0`` and the changes since, the gains ``G = V R0`` and the small system
    ``C = J + V R0 V^T`` give ``R = R0 - G^T C^-1 G``: always from the same factor, so that errors
    don't add up over many changes.
    """

    def __init__(self, scatter: Scatter, rho: float, factor: Array | None = None) -> None:
        self.backend, self.rho, self.square, self.size = (
            scatter.backend,
            rho,
            scatter.square,
            scatter.size,
        )
        self.changes: tuple[Change, ...] = ()
        self._factor = factor
        if factor is None and self.square is not None:
            self._factor = self.backend.factorise(self.square, rho)
            if self._factor is None:
                raise NotPositiveDefiniteError
        self._gains = self.backend.empty((0, self.size))
        self._system = self.backend.empty((0, 0))
        self._solver: Callable[[Array], Array] | None = None

    def is_for(self, scatter: Scatter, rho: float) -> bool:
        """Whether it can be advanced to a scatter: the same matrix, with more changes."""
        known = self.changes
        return (
            self.square is scatter.square
            and self.rho == rho
            and len(known) <= len(scatter.changes)
            and all(a[0] is b[0] for a, b in zip(known, scatter.changes, strict=False))
        )

    def advanced(self, scatter: Scatter, *vectors: Array) -> tuple[InverseScatter, list[Array]]:
        """Return the inverse of a scatter with more changes, and some vectors times ``R0``.

        All at once: one vector takes about as long as many.
        """
        new = scatter.changes[len(self.changes) :]
        stacked = [rows for rows, _ in new]
        *gains, solved = self._split_solve([*stacked, *vectors], len(stacked))
        if not new:
            return self, solved
        twin = InverseScatter(scatter, self.rho, self._factor)
        twin.changes = scatter.changes
        added, gained = self.backend.concatenate(stacked), self.backend.concatenate(gains)
        signs = np.concatenate([np.full(len(rows), float(sign)) for rows, sign in new])
        old, size = len(self._gains), len(self._gains) + len(added)
        system = self.backend.empty((size, size))
        system[:old, :old] = self._system
        system[old:, :old] = added @ self._gains.T
        system[:old, old:] = system[old:, :old].T
        system[old:, old:] = added @ gained.T
        system.reshape(-1)[:: size + 1][old:] += self.backend.asarray(signs)  # the diagonal
        twin._system, twin._gains = system, self.backend.concatenate([self._gains, gained])
        definite = all(sign > 0 for _, sign in twin.changes)
        twin._solver = self.backend.small_solver(system, definite=definite)
        if twin._solver is None:
            raise NotPositiveDefiniteError
        return twin, solved

    def _split_solve(self, parts: list[Array], n_first: int) -> list:
        """Return the parts times ``R0``: the first ones, then a list of the others."""
        found = []
        if parts:
            solved = self._apply_factor(self.backend.concatenate(parts))
            stops = np.cumsum([len(part) for part in parts]).tolist()
            found = [solved[end - len(p) : end] for p, end in zip(parts, stops, strict=True)]
        return [*found[:n_first], found[n_first:]]

    def _apply_factor(self, vectors: Array) -> Array:
        if self._factor is None:  # of zero
            return vectors / self.rho
        return self.backend.solve(self._factor, vectors) if len(vectors) else vectors

    def update(self, solved: Array, vectors: Array) -> Array:
        """Turn ``vectors R0`` into ``vectors R``."""
        if self._solver is None:
            return solved
        return solved - self._solver(vectors @ self._gains.T) @ self._gains

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self.update(self._apply_factor(vectors), vectors)
