"""Which hints count: what a class's name says, as a sample of the class.

A name such as ``card_arrival``, encoded like a text, is worth about a sample of its class: much
while there are none or few, nothing once there are ten. Names may also be codes that say nothing.
So hints count only where they have proved themselves: among the classes that have samples, the
class mean nearest to a hint must be that of its own class more often than by chance. A class that
has no sample has its hint alone, whatever the others say. In a model that no longer holds its
samples, only the hints of such classes count: a hint does not help a few rare classes.
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
    most = ENOUGH_SAMPLES if model.is_holding and _tell_classes_apart(model, counts) else 1
    return model.hints.drop({label for label, n in counts.items() if n >= most})


def _tell_classes_apart(model: Model, counts: dict[Label, int]) -> bool:
    """Whether hints are near the means of their own classes, as far as there are samples."""
    tested = [i for i, label in enumerate(model.hints.labels) if counts[label]]
    if not tested:
        return True
    rows, own = model.hints.rows[tested], [model.hints.labels[i] for i in tested]
    held, groups, labels = model.held.in_order().grouped()
    sums = np.add.reduceat(held, np.searchsorted(groups, np.arange(len(labels))), axis=0)
    means = sums / np.bincount(groups)[:, None]
    centred = means - means.mean(axis=0)
    gaps = (centred**2).sum(axis=1) - 2 * (rows - means.mean(axis=0)) @ centred.T
    chance = 1 / len(labels)
    hits = np.mean([labels[at] == label for at, label in zip(gaps.argmin(1), own, strict=True)])
    return bool(hits >= chance + LEAST_HITS * (1 - chance)) or len(labels) == 1
