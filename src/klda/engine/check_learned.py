"""Whether samples that are to be forgotten were ever learned.

While a model holds its samples, they tell. After that the statistics must:

- The samples of a whole class have the mean of the class.
- What is removed must be there. Let V be the rows that a removal takes out of the scatter S. If
  the samples were learned, ``S - V^T V`` is the scatter of the others, hence positive
  semi-definite, and no eigenvalue of ``V (S + rho I)^-1 V^T`` reaches one. Samples that were never
  learned exceed it wherever S has little or nothing in their directions.

A few unlearned samples that look like much of what was learned pass: no statistics of this kind can
tell them apart. A ledger can.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from klda.engine.arrays import Array
from klda.engine.held_rows import TOLERANCE, NotLearnedError
from klda.engine.model import Member, Model
from klda.labels import Label

ROWS_AT_ONCE = 1024


def check_learned(
    model: Model, samples: Array, groups: np.ndarray, labels: Sequence[Label]
) -> None:
    """Raise if samples, row i of the class ``labels[groups[i]]``, can't have been learned.

    There are no more of a class than it has. A model that keeps a scatter must be solved.
    """
    if model.is_holding:
        model.held.without(samples, [labels[group] for group in groups.tolist()])
        return
    for member in model.members:
        _check_means(member, samples, groups, labels)
        if member.statistics.with_scatter:
            _check_scatter(member, samples, groups, labels)


def _check_means(
    member: Member, samples: Array, groups: np.ndarray, labels: Sequence[Label]
) -> None:
    """Compare the mean of the samples of each whole class with that of the class."""
    statistics, to_numpy = member.statistics, member.map.backend.to_numpy
    places, wanted = statistics.locate(labels), np.bincount(groups, minlength=len(labels))
    by_class = np.split(np.argsort(groups, kind="stable"), np.cumsum(wanted)[:-1])
    for i, (label, rows) in enumerate(zip(labels, by_class, strict=True)):
        if len(rows) != statistics.counts[places[i]]:
            continue
        total = np.zeros(statistics.n_components)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            lifted = member.map.lift(samples[rows[start : start + ROWS_AT_ONCE]])
            total += to_numpy(lifted.sum(0))
        learned = to_numpy(statistics.means[places[i] : places[i] + 1])[0].astype(np.float64)
        if np.linalg.norm(total / len(rows) - learned) > TOLERANCE * np.linalg.norm(learned):
            raise NotLearnedError(label)


def _check_scatter(
    member: Member, samples: Array, groups: np.ndarray, labels: Sequence[Label]
) -> None:
    """Look whether what is to be removed is in the scatter, block by block, class by class."""
    backend, order = member.map.backend, np.argsort(groups, kind="stable")
    to_numpy = backend.to_numpy
    for start in range(0, len(order), ROWS_AT_ONCE):
        chosen = order[start : start + ROWS_AT_ONCE]
        present, counts = np.unique(groups[chosen], return_counts=True)
        names = [labels[i] for i in present]
        rows = member.map.lift(samples[chosen])
        change = member.statistics.rows_of_removal(rows, counts, names)
        lengths = to_numpy((change * change).sum(1))
        assert member.precision is not None
        # How much of the scatter the rows make up.
        overlap = to_numpy(backend.linear(member.precision.apply(change), change), np.float64)
        if not _is_below(_limit(float(lengths.max()), member.precision.rho), overlap):
            strangest = int(overlap.diagonal().argmax())
            raise NotLearnedError(labels[groups[chosen[strangest]]])


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
