"""Whether samples that are to be forgotten were ever learned, judged from the statistics.

- The samples of a whole class have the mean of the class.
- What is removed must be there. Let V be the rows that a removal takes out of the scatter S. If
  the samples were learned, ``S - V^T V`` is the scatter of the others, hence positive
  semi-definite, and no eigenvalue of ``V (S + rho I)^-1 V^T`` reaches one. Samples that were never
  learned exceed it wherever S has little or nothing in their directions.

A few unlearned samples that look like much of what was learned pass: no statistics of this kind can
tell them apart. Where the samples are kept, they are compared instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy

from klda.engine.arrays import Array, product
from klda.engine.model import Model
from klda.engine.rows import TOLERANCE, NotLearnedError
from klda.engine.rule import Rule
from klda.labels import Label, group_labels

ROWS_AT_ONCE = 1024


def check_learned(model: Model, rule: Rule, samples: Array, labels: Sequence[Label]) -> None:
    """Raise if samples, row i of the class ``labels[i]``, can't have been learned.

    There are no more of a class than it has; ``rule`` is the model's.
    """
    names, groups = group_labels(np.asarray(labels))
    order = np.argsort(groups, kind="stable")
    _check_means(model, samples, np.split(order, np.cumsum(np.bincount(groups))[:-1]), names)
    for start in range(0, len(order), ROWS_AT_ONCE):
        chosen = order[start : start + ROWS_AT_ONCE]
        _check_scatter(model, rule, samples[chosen], [names[i] for i in groups[chosen]])


def _check_means(
    model: Model, samples: Array, by_class: Sequence[np.ndarray], names: Sequence[Label]
) -> None:
    """Compare the mean of the samples of each whole class with that of the class."""
    statistics, to_numpy = model.statistics, model.backend.to_numpy
    for label, at, rows in zip(names, statistics.locate(names), by_class, strict=True):
        if len(rows) != statistics.counts[at]:
            continue
        total = np.zeros(model.map.n_components)
        for start in range(0, len(rows), ROWS_AT_ONCE):
            total += to_numpy(model.map.lift(samples[rows[start : start + ROWS_AT_ONCE]]).sum(0))
        learned = to_numpy(statistics.means[int(at)], np.float64)
        usual = np.sqrt(statistics.scatter.trace / max(statistics.n_scattered, 1))
        limit = TOLERANCE * max(float(np.linalg.norm(learned)), float(usual))
        if np.linalg.norm(total / len(rows) - learned) > limit:
            raise NotLearnedError(label)


def _check_scatter(model: Model, rule: Rule, samples: Array, labels: Sequence[Label]) -> None:
    """Look whether what is to be removed is in the scatter."""
    present, counts = np.unique(np.asarray(labels), return_counts=True)
    change = model.statistics.rows_of_removal(model.map.lift(samples), counts, present.tolist())
    backend, inverse = model.backend, rule.inverse
    largest = float(backend.to_numpy((change * change).sum(1)).max())
    # How much of the scatter the rows make up.
    overlap = backend.to_numpy(product(inverse.apply(change), change.T), np.float64)
    # A row that is off by e adds at most ``|e| / sqrt(rho)`` to the root of an eigenvalue.
    limit = float((1 + TOLERANCE * (1 + np.sqrt(largest / inverse.rho))) ** 2)
    try:
        system = limit * np.eye(len(overlap)) - overlap
        scipy.linalg.cholesky(system, lower=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        raise NotLearnedError(labels[int(overlap.diagonal().argmax())]) from None
