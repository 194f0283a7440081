"""Parts of a model: the samples of a change, as rows or as statistics, whichever is smaller."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from klda.engine.engine import DamagedModelError
from klda.engine.model import ALL, Model
from klda.engine.rows import Rows
from klda.labels import Label, label_list

Packed = tuple[Mapping[str, np.ndarray], Mapping[str, Any]]


def part_of(
    model: Model,
    rows: np.ndarray,
    labels: Sequence[Label],
    ids: Sequence[str | None] | None = None,
) -> Model:
    """Return the part of a model that some samples are."""
    own = Rows.halved() if model.most_rows == ALL else Rows()
    return replace(model.empty(), rows=own.add(rows, labels, ids))


def part_of_classes(model: Model, labels: Sequence[Label]) -> Model:
    """Return the part of a model that some classes are, their hints included."""
    first, *others = [model.drop(label)[1] for label in labels]
    if not others:
        return first
    hints = model.hints.at([i for i, one in enumerate(model.hints.labels) if one in labels])
    if model.rows is not None:
        own = [i for i, one in enumerate(model.rows.labels) if one in labels]
        return replace(first, rows=model.rows.at(own), hints=hints)
    for other in others:
        first = first.merge(other)
    return replace(first, hints=hints)


def are_few(model: Model, n_rows: int) -> bool:
    """Whether so many rows take less than the statistics of a model do."""
    limit = model.map.n_components * (model.map.n_components / 2 + len(model.counts))
    return model.most_rows == ALL or n_rows * model.n_features <= limit


def unpacked(packed: Packed, model: Model) -> Model:
    """Return a part of a model."""
    try:
        part = Model.unpack(*packed, model.backend, model.map)
    except MemoryError:
        raise
    except Exception as error:  # values that can't be right may raise anything
        raise DamagedModelError(f"what undoes a change: {error}") from error
    return part


def size_of(packed: Packed) -> int:
    """Return the bytes that a packed part takes."""
    return sum(array.nbytes for array in packed[0].values())


class TaughtRows:
    """The samples of a learn in batches, as long as their rows take less than their statistics."""

    def __init__(self) -> None:
        self.batches: list[tuple] = []
        self.count = 0

    def add(self, model: Model, rows: np.ndarray, labels: Any, ids: Any) -> None:
        """Keep a batch."""
        self.count += len(rows)
        if are_few(model, self.count):
            self.batches.append((rows, label_list(labels), ids or [None] * len(rows)))
        else:
            self.batches = []

    def part(self, before: Model | None, after: Model) -> Model | None:
        """Return the part of a model that was learned; None if it is all of it, and large."""
        known = after.empty() if before is None else before
        if after.rows is not None and known.rows is not None:
            return after.since(known)
        learned = sum(after.counts.values()) - sum(known.counts.values())
        if sum(len(rows) for rows, _, _ in self.batches) == learned:
            rows, labels, ids = zip(*self.batches, strict=True)
            names, given = itertools.chain(*labels), itertools.chain(*ids)
            return part_of(after, np.concatenate(rows), list(names), list(given))
        return after.since(known) if any(known.counts.values()) else None
