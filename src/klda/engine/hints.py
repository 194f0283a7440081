"""What the names of classes say: a row per class, encoded like a sample, called a hint.

A name is not written like a text. In the earlier layers of a network it says little of what its
class is about, so a hint speaks in the last block, from column `start` on, and the features before
it are missing: they are filled with those of the class's own samples, or of all samples while it
has none. In the others it is moved by how the means of classes that were taught differ from their
names.

A class without samples has its hint alone, which counts as one sample in a model of any size.
While samples are few, the hint of a class that has some counts as one more of them until there are
ten, if hints prove themselves: names may also be codes that say nothing.
"""

from __future__ import annotations

import numpy as np

from klda.engine.model import Model
from klda.engine.rows import Rows
from klda.engine.solve import Declared
from klda.engine.statistics import ClassStatistics
from klda.labels import Label

ENOUGH_SAMPLES = 10  # of a class, from which on its hint does not count
LEAST_HITS = 0.2  # of the hints, beyond those by chance: what proves them


def as_samples(model: Model, start: int) -> Rows:
    """Return the samples of a model that keeps them, with the hints that count beside them."""
    rows, hints = model.rows or Rows(), model.hints
    if not len(hints):
        return rows
    values, labels = np.array(hints.values, np.float64), hints.labels.tolist()
    counts = model.counts
    taught = [i for i, label in enumerate(labels) if counts[label]]
    if not len(rows):
        values[:, :start] = 0.0
        return Rows.of(values.astype(hints.values.dtype), labels)
    means = np.stack([rows.rows_at(rows.of_class(labels[i])).mean(axis=0) for i in taught] or [[]])
    overall = rows.values.mean(axis=0)
    proved = _tell_classes_apart(model, values, labels, start)
    shift = np.zeros(values.shape[1])
    if taught:
        shift[start:] = (means - values[taught])[:, start:].mean(axis=0)
    values[:, :start] = overall[:start]
    if taught:
        values[taught, :start] = means[:, :start]
    values += shift
    used = [
        i
        for i, label in enumerate(labels)
        if not counts[label] or (proved and counts[label] < ENOUGH_SAMPLES)
    ]
    chosen = values[used].astype(rows.values.dtype)
    return Rows.of(rows.values, rows.labels.tolist()).add(chosen, [labels[i] for i in used])


def _tell_classes_apart(model: Model, hints: np.ndarray, labels: list[Label], start: int) -> bool:
    """Whether the class mean nearest to a hint is its own class's more often than by chance."""
    rows = model.rows
    assert rows is not None
    classes = [label for label, n in model.counts.items() if n]
    means = np.stack([rows.rows_at(rows.of_class(label)).mean(axis=0) for label in classes])
    own, hints = means[:, start:], hints[:, start:]
    known = [i for i, label in enumerate(labels) if model.counts[label]]
    if len(classes) < 2 or not known:
        return True
    centred, given = own - own.mean(axis=0), hints[known] - hints[known].mean(axis=0)
    gaps = (centred**2).sum(axis=1) - 2 * given @ centred.T
    hits = np.mean([classes[at] == labels[i] for at, i in zip(gaps.argmin(1), known, strict=True)])
    chance = 1 / len(classes)
    return bool(hits >= chance + LEAST_HITS * (1 - chance))


def lifted_hints(model: Model, statistics: ClassStatistics, start: int) -> Declared:
    """Return the classes of a model that are known by their hints alone."""
    hints, counts = model.hints, model.counts
    labels = hints.labels.tolist()
    declared = [i for i, label in enumerate(labels) if not counts[label]]
    if not declared:
        return Declared()
    values = np.array(hints.values)
    values[:, :start] = values[:, :start].mean(axis=0)
    lifted, backend = model.map.lift(values), model.backend
    taught = [i for i, label in enumerate(labels) if counts[label]]
    found, places = lifted[backend.index(np.array(declared))], statistics.locate([])
    others = lifted[backend.index(np.array(taught, np.int64))]
    if taught:
        places = statistics.locate([labels[i] for i in taught])
        shift = (statistics.means[backend.index(places)] - others).mean(0)
        found, others = found + shift, others + shift
    return Declared([labels[i] for i in declared], found, places, others)
