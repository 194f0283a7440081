"""The samples of a change, followed through the changes after it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from klda.engine.model import Model
from klda.engine.rows import Rows
from klda.engine.statistics import Scatter
from klda.errors import KldaError
from klda.inspection.refusal import Refusal
from klda.labels import Label
from klda.undo.change import UndoableChange


class UndoError(KldaError):
    """A change can't be undone: it is unknown, too old, undone already, or others depend on it."""


def follow(
    changes: Sequence[UndoableChange],
    change: UndoableChange,
    part: Model,
    model: Model,
    *,
    adds: bool,
) -> tuple[tuple[UndoableChange, ...], Model]:
    """Give the samples of a change the labels that they have by now, through later renames.

    They are about to be added to the model, or taken from it, and so they are to the parts of these
    renames: the changes are returned, too. Raises if a later change stands in the way.
    """
    found = list(changes)
    for i, later in enumerate(changes):
        if later.number <= change.number:
            continue
        if not later.is_active:  # made again, it takes these samples along
            for label in later.renamed[:1] if later.renamed else later.dropped:
                found[i] = _with_samples(found[i], part, label, model, adds=adds)
            continue
        if later.kind == "forget" and (obstacle := _forgotten(later, part, model, adds=adds)):
            raise UndoError(
                f"Change {change.number} can't be undone: {obstacle} since, by change "
                f"{later.number}. Undo that first."
            )
        if later.renamed is None:
            continue
        old, new = later.renamed
        if old in part.counts:
            found[i] = _with_samples(later, part, old, model, adds=adds)
            part = part.rename(old, new)
        elif adds and new in part.counts and not later.joined:
            raise UndoError(
                f"Change {change.number} can't be undone: another class was named {new!r} by "
                f"change {later.number}. Undo that first, or rename the class."
            )
    return tuple(found), part


def rename_later(
    changes: Sequence[UndoableChange], number: int, old: Label, new: Label
) -> Iterator[UndoableChange]:
    """Yield changes with a class renamed in thresholds that were set after a change."""
    for each in changes:
        if each.refusal and each.number > number:
            renamed = Refusal.unpack(each.refusal).rename(old, new)
            each = replace(each, refusal=renamed.pack())
        yield each


def not_new_later(
    changes: Sequence[UndoableChange], number: int, labels: Collection[Label]
) -> Iterator[UndoableChange]:
    """Yield changes where classes are no longer new after a change, which brings them back."""
    for each in changes:
        if each.number > number:
            new = [label for label in each.new_classes if label not in labels]
            each = replace(each, new_classes=new)
        yield each


def _forgotten(later: UndoableChange, part: Model, model: Model, *, adds: bool) -> str:
    """Say what was forgotten that is needed to add or remove samples; "" if nothing was."""
    for label in part.counts:
        if label in later.dropped:
            return f"the class {label!r} was forgotten"
    # Where the model has its rows, these tell.
    if not adds and later.part is not None and model.rows is None:
        removed = Model.unpack(*later.part, model.backend, model.map)
        for label in removed.counts.keys() & part.counts.keys():
            if _may_share(removed.rows, part.rows, label):
                return f"samples of class {label!r} were forgotten"
    return ""


def _may_share(some: Rows | None, others: Rows | None, label: Label) -> bool:
    """Whether two parts may have samples of a class in common."""
    if some is None or others is None:
        return True
    own = some.at(some.of_class(label))
    return bool((others.match(own.values, own.labels.tolist()) >= 0).any())


def _with_samples(
    change: UndoableChange, moved: Model, label: Label, model: Model, *, adds: bool
) -> UndoableChange:
    """Return a change of a whole class after samples were added to that class, or taken from it."""
    own = moved.split(label)[1] if label in moved.counts else moved.empty()
    if change.part is None or not own.counts.get(label):
        return change
    part = Model.unpack(*change.part, model.backend, model.map)
    if part.rows is None and own.rows is not None:
        own = replace(own, rows=None, counted=own.statistics)
    if part.rows is not None and own.rows is None:
        part = replace(part, rows=None, counted=part.statistics)
    part = part.merge(own) if adds else part.subtract(own)
    if part.rows is None:  # such a change leaves the scatter as it is
        nothing = Scatter(model.backend, model.map.n_components)
        part = replace(part, counted=replace(part.statistics, scatter=nothing, n_scattered=0))
    return replace(change, part=part.pack(with_map=False))
