"""What undoes changes, kept for a while.

A model is a set of samples with labels. Learning and merging add samples, forgetting removes some,
and a rename moves the samples of one class to another. Whichever a change did, its *part*, a model
of these samples alone, undoes it: it is subtracted where it was added, and merged where it was
removed. So the model becomes what it would be had the change never been made, whatever came after.
A part follows its samples through later renames; where a later change makes an undo impossible, as
when the class was forgotten since, that change has to be undone first.

A part is the feature rows themselves, or statistics where these are smaller. So undo keeps features
of what was learned and of what was forgotten: for the stated time and no longer.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from klda.engine.arrays import add_prefix, strip_prefix
from klda.engine.checks import check_label_kind
from klda.engine.model import Model
from klda.engine.rows import NotLearnedError, Rows
from klda.engine.scatter import Scatter
from klda.errors import KldaError
from klda.labels import Label
from klda.undo.parts import Packed, size_of, unpacked

KEPT_SECONDS = 24 * 3600.0
MOST_CHANGES = 200
MOST_BYTES = 256 << 20  # of all that is kept; a single change may take half of it
MEANS_DIFFER = 1e-3  # relative: the rows of a class are not those that its statistics were made of


class UndoError(KldaError):
    """A change can't be undone: it is unknown, too old, undone already, or others depend on it."""


@dataclass(frozen=True, eq=False)
class Change:
    """A change of a model, with what undoes it.

    Attributes
    ----------
    number : int
        Of its entry in the history.
    when : float
        Seconds since 1970.
    adds, removes : bool
        Whether it added the samples of its part to the model, or removed them; a rename did both.
    part : Packed or None
        The samples, with the labels that they had before the change.
    renamed : tuple or None
        A class's old and new name.
    joined : bool
        Whether the new name was that of another class.
    dropped : tuple of labels
        Classes that were forgotten as a whole.
    declared : mapping
        Classes that were declared, each with its description or None.
    in_use : mapping
        What the hints in the part say.
    can_undo : bool
        Whether its part was small enough to be kept.
    toggles : tuple of int
        Numbers of the changes that undid it and did it again, in turn.
    """

    number: int
    when: float
    adds: bool = False
    removes: bool = False
    part: Packed | None = None
    renamed: tuple[Label, Label] | None = None
    joined: bool = False
    dropped: tuple[Label, ...] = ()
    declared: Mapping[Label, str | None] = field(default_factory=dict)
    in_use: Mapping[Label, str] = field(default_factory=dict)
    can_undo: bool = True
    toggles: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, number: int, *, part: Model | None = None, declared: Any = None, **fields: Any
    ) -> Change:
        """Return a change made now."""
        packed = None if part is None else part.pack(with_map=False)
        can_undo = part is not None or declared is not None
        return cls(
            number, time.time(), part=packed, declared=declared or {}, can_undo=can_undo, **fields
        )

    @property
    def is_active(self) -> bool:
        """Whether the model has it: it was not undone, or done again."""
        return len(self.toggles) % 2 == 0

    @property
    def size(self) -> int:
        """Bytes that its part takes."""
        return 0 if self.part is None else size_of(self.part)

    def declare(self, declared: Mapping[Label, str | None]) -> dict[Label, str | None]:
        """Return the declared classes after the change, given those before."""
        after = dict(declared)
        if self.renamed is not None and self.renamed[0] in after:
            old, new = self.renamed
            text = after.pop(old)
            after |= {} if self.joined else {new: text}
        return {label: text for label, text in after.items() if label not in self.dropped} | dict(
            self.declared
        )

    def sides(self, model: Model) -> tuple[Model | None, Model | None]:
        """Return the samples it removed, with their former labels, and those it added."""
        if self.part is None:
            return None, None
        part = unpacked(self.part, model)
        removed, added = part if self.removes else None, part if self.adds else None
        if self.renamed is not None:
            old, new = self.renamed
            added = replace(part, hints=Rows())
            added = added.rename(old, new) if added.counts else added
        return removed, added


@dataclass(frozen=True, eq=False)
class KeptRows:
    """The samples of a model just before it had too many to keep them."""

    number: int  # of the change that was one too many
    part: Packed
    active: frozenset[int]  # numbers of the changes that the model had


@dataclass(frozen=True, eq=False)
class UndoLog:
    """The latest changes with what undoes each; never changed, each verb returns another."""

    seconds: float = KEPT_SECONDS  # how long changes can be undone
    changes: tuple[Change, ...] = ()
    declared: Mapping[Label, str | None] = field(default_factory=dict)  # before the first of them
    kept: KeptRows | None = None

    def find(self, number: int | None) -> Change:
        """Return the change that is undone by undoing an entry of the history, or the last one."""
        for each in reversed(self.changes):
            if number in (each.number, *each.toggles) or (number is None and each.is_active):
                break
        else:
            if number is None:
                raise UndoError(f"There is nothing to undo: {self.limits}.")
            raise UndoError(
                f"number={number} is none of the changes that can be undone: {self.limits}."
            )
        if not each.can_undo:
            raise UndoError(f"Change {each.number} is too large to be undone: {self.limits}.")
        latest = self.latest(each)
        if number not in (None, latest):
            again = f"; undo change {latest} to do it again" if number == each.number else ""
            raise UndoError(f"Change {number} was undone already{again}.")
        return each

    @staticmethod
    def latest(change: Change) -> int:
        """Return the number whose undo turns a change: its own, or that of its last undo."""
        return change.toggles[-1] if change.toggles and not change.is_active else change.number

    @property
    def limits(self) -> str:
        """How long what undoes changes is kept, in words."""
        if not self.seconds:
            return "this learner was made with undo=0 and keeps nothing to undo changes with"
        return (
            f"what undoes a change is kept for {self.seconds / 3600:g} hours, for at most "
            f"{MOST_CHANGES} changes and {MOST_BYTES >> 20} MiB"
        )

    @property
    def undoable(self) -> set[int]:
        """Numbers that can be undone now, those of undos included."""
        found = {each.number for each in self.changes if each.can_undo and each.is_active}
        return found | {each.toggles[-1] for each in self.changes if each.can_undo and each.toggles}

    # ---------------------------------------------------------------- verbs

    def add(self, change: Change, before: Model | None, after: Model) -> UndoLog:
        """Return the log with a change that made one model of another."""
        if not self.seconds:
            return replace(self, declared=change.declare(self.declared))
        if change.size > MOST_BYTES // 2:
            change = replace(change, part=None, can_undo=False)
        log = self._crossed(change.number, before, after)
        return replace(log, changes=(*log.changes, change)).expired()

    def _crossed(self, number: int, before: Model | None, after: Model) -> UndoLog:
        """Return the log with the samples of a model that a change made too large to keep them."""
        if before is None or before.rows is None or after.rows is not None:
            return self
        packed = replace(before.empty(), rows=before.rows).pack(with_map=False)
        return replace(self, kept=KeptRows(number, packed, self._active))

    @property
    def _active(self) -> frozenset[int]:
        return frozenset(each.number for each in self.changes if each.is_active)

    def expired(self, before: float | None = None) -> UndoLog:
        """Return the log without changes that are too old, too many or too large together.

        `before` is a time in seconds since 1970; by default as long ago as changes are kept.
        """
        limit = time.time() - self.seconds if before is None else before
        sizes = [each.size for each in self.changes]
        room = MOST_BYTES - (0 if self.kept is None else size_of(self.kept.part))
        start = max(0, len(sizes) - MOST_CHANGES)
        while start < len(sizes) and (
            self.changes[start].when < limit or sum(sizes[start:]) > room
        ):
            start += 1
        declared = self.declared
        for each in self.changes[:start]:
            declared = each.declare(declared) if each.is_active else declared
        left, kept = self.changes[start:], self.kept
        if kept is not None and not any(kept.number in (c.number, *c.toggles) for c in left):
            kept = None
        return replace(self, changes=left, declared=declared, kept=kept)

    def declares(self) -> dict[Label, str | None]:
        """Return the classes that are declared, after all changes but those undone."""
        declared = dict(self.declared)
        for each in self.changes:
            declared = each.declare(declared) if each.is_active else declared
        return declared

    def toggle(self, change: Change, number: int, model: Model) -> tuple[UndoLog, Model]:
        """Undo a change, or do it again if it was undone; return the log and the model after.

        `number` is that of the entry in the history that this makes.
        """
        removed, added = change.sides(model)
        taken, given = (added, removed) if change.is_active else (removed, added)
        log, found = self._replaced(replace(change, toggles=(*change.toggles, number))), model
        try:
            if taken is not None and any(taken.counts.values()):
                log, taken = log._follow(change, taken, model, -1)
                found = found.subtract(taken)
            if given is not None:
                log, given = log._follow(change, given, model, 1)
                check_label_kind(found.classes[:1], list(given.counts), f"change {change.number}")
                found = found.merge(given)
        except NotLearnedError:
            raise UndoError(
                f"Change {change.number} can't be undone: some of its samples were forgotten "
                "since. Undo that first."
            ) from None
        if found.rows is None and 0 < sum(found.counts.values()) <= found.most_rows:
            found = log._with_rows(found)
        log = log._crossed(number, model, found)
        return log, found

    def _replaced(self, change: Change) -> UndoLog:
        same = change.number
        changes = tuple(change if each.number == same else each for each in self.changes)
        return replace(self, changes=changes)

    def _follow(
        self, change: Change, part: Model, model: Model, sign: int
    ) -> tuple[UndoLog, Model]:
        """Give the samples of a change the labels that they have by now, through later renames.

        They are about to be added to the model (``sign=1``) or taken from it, and so they are to
        the parts of these renames. Raises if a later change stands in the way.
        """
        log = self
        for later in self.changes:
            if later.number <= change.number or not later.is_active:
                continue
            if later.renamed is None:
                if problem := _obstacle(later, part, model, sign):
                    raise UndoError(f"Change {change.number} can't be undone: {problem}")
                continue
            old, new = later.renamed
            if old in part.counts:
                own = part.drop(old)[1]
                if later.part is not None and own.counts.get(old):
                    log = log._replaced(_adjusted(later, own, model, sign))
                part = part.rename(old, new)
            elif sign > 0 and new in part.counts and not later.joined:
                raise UndoError(
                    f"Change {change.number} can't be undone: another class was named {new!r} by "
                    f"change {later.number}. Undo that first, or rename the class."
                )
        return log, part

    def _with_rows(self, model: Model) -> Model:
        """Return a model that has become small again with its samples, if they can be told."""
        if self.kept is None:
            return model
        kept, active = self.kept, self._active
        found = unpacked(kept.part, model)
        try:
            for each in reversed(self.changes):
                if each.number in kept.active - active:
                    removed, added = self._then(each, *each.sides(model))
                    found = _moved(found, added, removed)
            for each in self.changes:
                if each.number in active - kept.active:
                    removed, added = self._then(each, *each.sides(model))
                    for label in each.dropped:
                        found, removed = found.drop(label)[0], None
                    if each.renamed and each.renamed[0] in found.counts:
                        found, removed, added = found.rename(*each.renamed), None, None
                    found = _moved(found, removed, added)
                if found.rows is None:  # there were too many after this change
                    return model
        except (KldaError, KeyError):  # not all samples are known
            return model
        found = replace(found, most_rows=model.most_rows, hints=model.hints)
        return found if _is_same(found, model) else model

    def _then(self, change: Change, *parts: Model | None) -> list[Model | None]:
        """Return parts of a change with the labels that they had when the samples were kept."""
        assert self.kept is not None
        found = list(parts)
        for later in self.changes:
            if later.number > change.number and later.number in self.kept.active and later.renamed:
                old = later.renamed[0]
                found = [p.rename(*later.renamed) if p and old in p.counts else p for p in found]
        return found

    # ---------------------------------------------------------------- storage

    def pack(self) -> Packed:
        """Return named arrays and JSON-able values."""
        arrays: dict[str, np.ndarray] = {}
        changes = []
        for each in self.changes:
            values = {name: value for name, value in vars(each).items() if name != "part"}
            for name in ("declared", "in_use"):
                values[name] = list(values[name].items())
            if each.part is not None:
                arrays |= add_prefix(f"{each.number}/", each.part[0])
                values["part"] = each.part[1]
            changes.append(values)
        meta: dict[str, Any] = {"seconds": self.seconds, "changes": changes}
        meta["declared"] = list(self.declared.items())
        if self.kept is not None:
            arrays |= add_prefix("kept/", self.kept.part[0])
            kept = {"number": self.kept.number, "active": sorted(self.kept.active)}
            meta["kept"] = kept | {"part": self.kept.part[1]}
        return arrays, meta

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> UndoLog:
        """Return what `pack` described."""
        changes = []
        for values in meta["changes"]:
            values = dict(values)
            if "part" in values:
                own = strip_prefix(f"{values['number']}/", arrays)
                values["part"] = (own, values["part"])
            for name in ("renamed", "dropped", "toggles"):
                values[name] = None if values[name] is None else tuple(values[name])
            for name in ("declared", "in_use"):
                values[name] = dict(values[name])
            changes.append(Change(**values))
        kept = None
        if "kept" in meta:
            packed = (strip_prefix("kept/", arrays), meta["kept"]["part"])
            kept = KeptRows(meta["kept"]["number"], packed, frozenset(meta["kept"]["active"]))
        return cls(float(meta["seconds"]), tuple(changes), dict(meta["declared"]), kept)


def _obstacle(later: Change, part: Model, model: Model, sign: int) -> str:
    """Say why a later change stands in the way of adding or removing samples; "" if it does not."""
    for label in part.counts:
        if label in later.dropped:
            return (
                f"the class {label!r} was forgotten since, by change {later.number}. Undo that "
                "first."
            )
    # Where the model has its rows, these tell.
    if sign < 0 and later.removes and later.part is not None and model.rows is None:
        removed = unpacked(later.part, model)
        for label in removed.counts.keys() & part.counts.keys():
            if _share(removed.rows, part.rows, label):
                return (
                    f"samples of class {label!r} were forgotten since, by change {later.number}. "
                    "Undo that first."
                )
    return ""


def _share(some: Rows | None, others: Rows | None, label: Label) -> bool:
    """Whether two parts may have samples of a class in common."""
    if some is None or others is None:
        return True
    own = some.at(some.of_class(label))
    return bool(others.holds(own.values, own.labels.tolist()).any())


def _adjusted(rename: Change, own: Model, model: Model, sign: int) -> Change:
    """Return a rename after samples were added to the class that it renamed, or taken from it."""
    assert rename.part is not None
    part = unpacked(rename.part, model)
    if part.rows is None and own.rows is not None:
        own = replace(own, rows=None, counted=own.statistics)
    if part.rows is not None and own.rows is None:
        part = replace(part, rows=None, counted=part.statistics)
    part = part.merge(own) if sign > 0 else part.subtract(own)
    if part.counted is not None and part.rows is None:  # a rename leaves the scatter as it is
        nothing = Scatter(model.backend, model.map.n_components)
        part = replace(part, counted=replace(part.counted, scatter=nothing, n_scattered=0))
    return replace(rename, part=part.pack(with_map=False))


def _moved(rows: Model, taken: Model | None, given: Model | None) -> Model:
    """Return samples without some and with others; raise if these are not known row by row."""
    for part, sign in ((taken, -1), (given, 1)):
        if part is not None and any(part.counts.values()):
            if part.rows is None:
                raise UndoError("The rows of a change were not kept.")
            rows = rows.merge(part) if sign > 0 else rows.subtract(part)
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
