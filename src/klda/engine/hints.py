"""Which hints count: what a class's name says, as a sample of the class.

A name such as ``card_arrival``, encoded like a text, is worth about a sample of its class: much
while there are none or few, nothing once there are ten. Names may also be codes that say nothing.
So hints count only where they have proved themselves: among the classes that have samples, the
class mean nearest to a hint must be that of its own class more often than by chance. A class that
has no sample has its hint alone, whatever the others say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from klda.engine.held_rows import LabelledRows
from klda.labels import Label

if TYPE_CHECKING:
    from klda.engine.model import Model

ENOUGH_SAMPLES = 10  # of a class, from which on its hint does not count
LEAST_HITS = 0.2  # of the hints, beyond those by chance


def useful_hints(model: Model) -> LabelledRows:
    """Return the hints that count now: a function of what was learned alone."""
    if not len(model.hints):
        return model.hints
    counts = model.counts
    most = ENOUGH_SAMPLES if _tell_classes_apart(model, counts) else 1
    return model.hints.drop({label for label, n in counts.items() if n >= most})


def _tell_classes_apart(model: Model, counts: dict[Label, int]) -> bool:
    """Whether hints are near the means of their own classes, as far as there are samples."""
    tested = [i for i, label in enumerate(model.hints.labels) if counts[label]]
    if not tested:
        return True
    rows, own = model.hints.rows[tested], [model.hints.labels[i] for i in tested]
    labels, gaps = _squared_distances(model, rows)
    chance = 1 / len(labels)
    hits = np.mean([labels[at] == label for at, label in zip(gaps.argmin(1), own, strict=True)])
    return bool(hits >= chance + LEAST_HITS * (1 - chance)) or len(labels) == 1


def _squared_distances(model: Model, rows: np.ndarray) -> tuple[list[Label], np.ndarray]:
    """Return the classes that have samples, and how far rows are from their means."""
    if model.is_holding:
        held, groups, labels = model.held.in_order().grouped()
        sums = np.add.reduceat(held, np.searchsorted(groups, np.arange(len(labels))), axis=0)
        means = sums / np.bincount(groups)[:, None]
    else:
        statistics, counts = model.statistics, model.sample_counts
        labels = list(counts)
        places = {label: i for i, label in enumerate(labels)}
        means = model.backend.to_numpy(statistics.means)[statistics.locate(labels)]
        rows = _lifted(model, rows)
        for label, hint in zip(model.hinted.labels, _lifted(model, model.hinted.rows), strict=True):
            if counts.get(label):  # its mean without the hint
                i = places[label]
                means[i] += (means[i] - hint) / counts[label]
    centred = means - means.mean(axis=0)
    return labels, (centred**2).sum(axis=1) - 2 * (rows - means.mean(axis=0)) @ centred.T


def _lifted(model: Model, rows: np.ndarray) -> np.ndarray:
    return model.backend.to_numpy(model.maps[0].lift(rows))
