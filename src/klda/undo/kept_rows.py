"""The samples of a model that grew too large to keep them, in case an undo makes it small again.

Without them it would answer with random features instead of the exact kernel. A model of 400
samples of CLINC150 that learned 3,000 others by mistake then gave other answers to 2% of new inputs
after the undo, with probabilities that were off by up to 0.13; with them, none and 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from klda.engine.arrays import Packed
from klda.engine.model import Model
from klda.errors import KldaError
from klda.undo.change import UndoableChange

MEANS_DIFFER = 1e-3  # relative: the rows of a class are not those that its statistics were made of


def active(changes: Sequence[UndoableChange]) -> frozenset[int]:
    """Return the numbers of the changes that a model has."""
    return frozenset(each.number for each in changes if each.is_active)


@dataclass(frozen=True, eq=False)
class KeptRows:
    """The samples of a model just before it had too many to keep them."""

    number: int  # of the change that was one too many
    part: Packed
    active: frozenset[int]  # numbers of the changes that the model had

    def restored(self, model: Model, changes: Sequence[UndoableChange]) -> Model:
        """Return a model that has become small again, with its samples if these are known.

        They are the samples kept, without the changes that were undone since, with those that were
        made since.
        """
        now, rows = active(changes), Model.unpack(*self.part, model.backend, model.map)
        try:
            for each in reversed(changes):
                if each.number in self.active - now:
                    removed, added = self._sides(each, changes, model)
                    rows = _moved(rows, added, removed)
            for each in changes:
                if each.number in now - self.active:
                    rows = self._changed(rows, each, changes, model)
                if rows.rows is None:  # there were too many after this change
                    return model
        except KldaError:  # not all samples are known
            return model
        rows = replace(rows, most_rows=model.most_rows, name_rows=model.name_rows)
        return rows if _is_same(rows, model) else model

    def _changed(
        self, rows: Model, change: UndoableChange, changes: Sequence[UndoableChange], model: Model
    ) -> Model:
        """Return samples after a change."""
        if change.renamed and change.renamed[0] in rows.counts:
            return rows.rename(*change.renamed)
        if change.kind == "forget" and change.dropped:
            for label in change.dropped:
                rows = rows.split(label)[0] if label in rows.counts else rows
            return rows
        return _moved(rows, *self._sides(change, changes, model))

    def _sides(
        self, change: UndoableChange, changes: Sequence[UndoableChange], model: Model
    ) -> list[Model | None]:
        """Return what a change removed and added, labelled as when the samples were kept."""
        sides = list(change.sides(model))
        for later in changes:
            was_there = later.number > change.number and later.number in self.active
            if was_there and (names := later.renamed):
                sides = [
                    one.rename(*names) if one and names[0] in one.counts else one for one in sides
                ]
        return sides


def _moved(rows: Model, removed: Model | None, added: Model | None) -> Model:
    """Return samples without some and with others; raise if these are not known row by row."""
    for part in (removed, added):
        if part is not None and any(part.counts.values()):
            if part.rows is None:
                raise KldaError("The rows of a change were not kept.")
            rows = rows.subtract(part) if part is removed else rows.merge(part)
    return rows


def _is_same(rows: Model, model: Model) -> bool:
    """Whether samples are those that a model was made of, as far as its statistics tell."""
    if {k: n for k, n in rows.counts.items() if n} != {k: n for k, n in model.counts.items() if n}:
        return False
    mine, theirs = rows.statistics, model.statistics
    to_numpy = model.backend.to_numpy
    found = to_numpy(mine.means)[mine.order]
    wanted = to_numpy(theirs.means)[theirs.order]
    return bool(np.abs(found - wanted).max() <= MEANS_DIFFER * np.abs(wanted).max())
