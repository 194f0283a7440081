"""What undoes a change of a model.

A model is a set of samples with labels. Learning and merging add samples, forgetting removes some,
and a rename moves the samples of one class to another. The *part* of a change is a model of these
samples alone, with the labels that they had before, as rows or as statistics, whichever is smaller.
Names and thresholds need no part: they follow from the changes that are active.

A change can be undone and made again, any number of times. `toggles` has the numbers of the entries
in the history that did so. With ``()``, change 4 is active. If entry 7 undoes it, it has ``(7,)``
and is not active. If entry 9 undoes entry 7, it has ``(7, 9)`` and is active again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import reduce
from typing import Any

import numpy as np

from klda.engine.arrays import Packed
from klda.engine.model import Model
from klda.engine.rows import Rows
from klda.inspection.refusal import Refusal
from klda.labels import Label

MAPPINGS = ("declared", "encoded")  # with labels for keys, which JSON would turn into texts
WITHOUT_PART = ("declare", "tune")  # changes that have no samples and no feature map


@dataclass(frozen=True)
class Named:
    """What is said of classes by name: which are declared, and thresholds of unknown inputs."""

    declared: Mapping[Label, str | None] = field(default_factory=dict)  # with descriptions, if any
    refusal: Refusal | None = None

    def without(self, labels: Collection[Label]) -> Named:
        """Return what is said of all other classes."""
        declared = {label: text for label, text in self.declared.items() if label not in labels}
        return Named(declared, self.refusal and self.refusal.without(labels))

    def rename(self, old: Label, new: Label) -> Named:
        """Return what is said after a class was given another name."""
        declared = {new if label == old else label: text for label, text in self.declared.items()}
        return Named(declared, self.refusal and self.refusal.rename(old, new))


@dataclass(frozen=True, eq=False, kw_only=True)
class UndoableChange:
    """What undoes one change, and what has to be known of it."""

    kind: str  # learn (or merge), declare, forget, rename, tune or rebuild
    number: int = 0  # of its entry in the history
    when: float = 0.0  # seconds since 1970
    toggles: tuple[int, ...] = ()  # numbers of the changes that undid it and did it again, in turn
    # The samples that it added, removed or renamed; of a rebuild, the feature map before it. None
    # if there is none, or it is too large to be kept.
    part: Packed | None = None
    encoded: Mapping[Label, str] = field(
        default_factory=dict
    )  # the texts of the name rows in the part
    new_classes: Sequence[Label] = ()  # that the model did not have before
    dropped: Sequence[Label] = ()  # classes that were forgotten, or joined to others
    declared: Mapping[Label, str | None] = field(default_factory=dict)  # that came with it
    renamed: tuple[Label, Label] | None = None  # the old name and the new one
    joined: bool = False  # whether there was a class of the new name
    refusal: Mapping[str, Any] | None = None  # packed thresholds that were set
    # Those before a rebuild, as they are stored, or once it is undone, those after it.
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether the model has the change: it was not undone, or done again."""
        return len(self.toggles) % 2 == 0

    @property
    def latest(self) -> int:
        """The number whose undo turns it: its own, or that of its last undo."""
        return self.number if self.is_active else self.toggles[-1]

    @property
    def is_kept(self) -> bool:
        """Whether all that undoes it is there."""
        return self.part is not None or self.kind in WITHOUT_PART

    def after(self, before: Named) -> Named:
        """Return what is said of classes after the change."""
        if self.kind == "tune":
            return Named(before.declared, Refusal.unpack(self.refusal) if self.refusal else None)
        # What was said of others with the names of new classes does not hold for these.
        named = before.without({*self.new_classes, *self.dropped})
        if self.renamed and not self.joined:
            named = named.rename(*self.renamed)
        declared = {**named.declared, **self.declared}
        if self.kind != "declare":  # a merge says nothing new of classes that are declared already
            declared |= named.declared
        return replace(named, declared=declared)

    def sides(self, model: Model) -> tuple[Model | None, Model | None]:
        """Return the samples that it removed from the model, and those that it added."""
        if self.part is None or self.kind == "rebuild":
            return None, None
        part = Model.unpack(*self.part, model.backend, model.map)
        if self.renamed is None:
            return (part, None) if self.kind == "forget" else (None, part)
        added = replace(part, name_rows=Rows())
        return part, added.rename(*self.renamed) if added.counts else added

    def pack(self) -> dict[str, Any]:
        """Return JSON-able values of all but the part."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "part"}
        return values | {name: list(values[name].items()) for name in MAPPINGS}

    @staticmethod
    def unpack(values: Mapping[str, Any], part: Packed | None) -> UndoableChange:
        """Return what `pack` described."""
        read = {name: dict(values[name]) for name in MAPPINGS}
        return UndoableChange(
            **{**values, **read, "toggles": tuple(values["toggles"]), "part": part}
        )


# ---------------------------------------------------------------- parts


def part_of(
    model: Model, rows: np.ndarray, labels: Sequence[Label], ids: Sequence[str | None] | None = None
) -> Model:
    """Return the part of a model that some samples are."""
    own = Rows.halved() if model.keeps_all else Rows()
    return replace(model.empty(), rows=own.add(rows, labels, ids))


def part_of_classes(model: Model, labels: Sequence[Label]) -> Model:
    """Return the part of a model that some classes are, their name rows included."""
    if model.rows is None:
        return reduce(Model.merge, [model.split(label)[1] for label in labels])
    rows, names = model.rows, model.name_rows
    own, named = (np.isin(some.labels.tolist(), labels) for some in (rows, names))
    return replace(
        model.empty(), rows=rows.at(own.nonzero()[0]), name_rows=names.at(named.nonzero()[0])
    )


def are_few(model: Model, n_rows: int) -> bool:
    """Whether so many rows take less than the statistics of a model do."""
    limit = model.map.n_components * (model.map.n_components / 2 + len(model.counts))
    return model.keeps_all or n_rows * model.n_features <= limit


def size_of(packed: Packed | None) -> int:
    """Return the bytes that a packed part takes."""
    return sum(array.nbytes for array in packed.arrays.values()) if packed else 0


def learned_again(model: Model, empty: Model) -> Model:
    """Return a model of another feature map with all samples of one that keeps them."""
    assert model.rows is not None
    for rows, labels, ids in model.rows.columns():
        empty = empty.add(rows, labels, ids)
    return replace(empty, rows=model.rows, name_rows=model.name_rows)  # running numbers stay
