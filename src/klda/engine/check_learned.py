"""Whether samples that are to be forgotten were ever learned.

No sample is kept, so the statistics must tell:

- The samples of a whole class have the mean of the class.
- What is removed must be there. Let V be the rows that a removal takes out of the scatter S. If
  the samples were learned, ``S - V^T V`` is the scatter of the others, hence positive
  semi-definite, and no eigenvalue of ``V (S + rho I)^-1 V^T`` reaches one. Samples that were never
  learned exceed it wherever S has little or nothing in their directions.

A few unlearned samples that look like much of what was learned pass: no statistics of this kind can
tell them apart. A ledger can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import scipy

from klda.engine.arrays import Array
from klda.engine.model import Member
from klda.engine.solve import Solver
from klda.errors import KldaError
from klda.labels import Label

# How far rows may be from those learned, relative to their length: encoded in other batches or on
# another machine, they differ a little.
TOLERANCE = 0.01
ROWS_AT_ONCE = 1024


class NotLearnedError(KldaError):
    """Samples that are to be forgotten were never learned."""

    def __init__(self, label: Label) -> None:
        super().__init__(
            f"These rows were not learned by this model as class {label!r}: nothing was "
            "forgotten. Give exactly the inputs that were learned, with their labels; or give "
            "the label alone to forget the whole class."
        )


def check_learned(
    members: Sequence[Member], samples: Array, groups: np.ndarray, labels: Sequence[Label]
) -> None:
    """Raise if samples can't have been learned.

    Parameters
    ----------
    members : sequence of Member
        LeaveOneOutTerms, if they keep a scatter.
    samples : array of shape (n, d)
        Samples, no more of a class than it has.
    groups : ndarray of shape (n,)
        Position of each sample's class in `labels`.
    labels : sequence
        Classes.

    Raises
    ------
    NotLearnedError
        Names the class.
    """
    for member in members:
        means = _Means(member, np.bincount(groups, minlength=len(labels)), labels)
        for rows, present, own in _rows_by_class(member, samples, groups):
            names = [labels[i] for i in present]
            grouping = member.map.backend.grouping(own, len(present))
            means.add(present, member.map.backend.to_numpy(grouping.sums(rows)), grouping.counts)
            if member.statistics.scatter is not None:
                change = member.statistics.rows_of_removal(rows, grouping, names)
                lengths = member.map.backend.to_numpy((change * change).sum(1))
                overlap, rho = _overlap(member.solver, change)
                if not _is_below(_limit(float(lengths.max()), rho), overlap):
                    strangest = int(overlap.diagonal().argmax())
                    raise NotLearnedError(names[own[strangest]])


def _rows_by_class(
    member: Member, samples: Array, groups: np.ndarray
) -> Iterator[tuple[Array, np.ndarray, np.ndarray]]:
    """Features of samples class by class, the classes they have, and which one each has."""
    order = np.argsort(groups, kind="stable")
    for start in range(0, len(order), ROWS_AT_ONCE):
        chosen = order[start : start + ROWS_AT_ONCE]
        present, own = np.unique(groups[chosen], return_inverse=True)
        yield member.map.lift(samples[chosen]), present, own


class _Means:
    """Sums of samples that come class by class, compared with the means of whole classes."""

    def __init__(self, member: Member, wanted: np.ndarray, labels: Sequence[Label]) -> None:
        statistics = member.statistics
        self.member, self.labels, self.wanted = member, labels, wanted
        self.positions = statistics.locate(labels)
        self.whole = wanted == statistics.counts[self.positions]
        self._class, self._sum, self._seen = -1, np.zeros(0), 0

    def add(self, present: np.ndarray, sums: np.ndarray, counts: np.ndarray) -> None:
        """Add the sums of some classes; the last class of a block may go on in the next."""
        for i, total, n in zip(present.tolist(), sums.astype(np.float64), counts, strict=True):
            again = i == self._class
            self._sum = self._sum + total if again else total
            self._seen = self._seen + n if again else n
            self._class = i
            if self.whole[i] and self._seen == self.wanted[i]:
                self._check(i, self._sum / self._seen)

    def _check(self, i: int, mean: np.ndarray) -> None:
        means = self.member.statistics.means
        at = int(self.positions[i])
        learned = self.member.map.backend.to_numpy(means[at : at + 1])[0].astype(np.float64)
        if np.linalg.norm(mean - learned) > TOLERANCE * np.linalg.norm(learned):
            raise NotLearnedError(self.labels[i])


def _overlap(solver: Solver, rows: Array) -> tuple[np.ndarray, float]:
    """Return ``rows (S + rho I)^-1 rows^T``, how much of the scatter rows make up, and rho."""
    assert solver.terms is not None
    precision = solver.terms.plain.precision
    found = solver.backend.linear(precision.apply(rows), rows)
    return solver.backend.to_numpy(solver.backend.widen(found)), precision.rho


def _limit(largest: float, rho: float) -> float:
    """Return what an eigenvalue may reach if rows differ a little from those learned.

    A row that is off by e adds at most ``|e| / sqrt(rho)`` to the root of it.
    """
    return float((1 + TOLERANCE * (1 + np.sqrt(largest / rho))) ** 2)


def _is_below(limit: float, overlap: np.ndarray) -> bool:
    """Whether all eigenvalues are."""
    try:
        system = limit * np.eye(len(overlap)) - overlap
        scipy.linalg.cholesky(system, lower=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        return False
    return True
