"""What undoes changes, kept for a while.

The part of a change undoes it: its samples are subtracted if the change added them, and merged if
it removed them. So the model becomes what it would be had the change never been made, whatever came
after. A part follows its samples through later renames. If a later change makes an undo impossible,
for example because the class was forgotten since, that change has to be undone first.

A part is the feature rows themselves, or statistics where these are smaller. So undo keeps features
of what was learned and of what was forgotten: for the stated time and no longer.

Thresholds and parameters are set, not learned: the latest is undone first.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from klda.engine.arrays import Arrays, Meta, Packed, add_prefix, strip_prefix
from klda.engine.model import Model
from klda.engine.rows import NotLearnedError
from klda.errors import KldaError
from klda.inspection.refusal import Refusal
from klda.labels import check_label_kind
from klda.undo.change import Named, UndoableChange, learned_again, size_of
from klda.undo.follow import UndoError, follow, not_new_later, rename_later
from klda.undo.kept_rows import KeptRows, active

KEPT_SECONDS = 24 * 3600.0
MOST_CHANGES = 200
FORMAT = 2  # of what is stored
MOST_BYTES = 256 << 20  # of all that is kept; a single change may take half of it


@dataclass(frozen=True, eq=False)
class UndoLog:
    """The latest changes with what undoes each; never changed, each verb returns another."""

    seconds: float = KEPT_SECONDS  # how long changes can be undone
    changes: tuple[UndoableChange, ...] = ()
    first: Named = field(default_factory=Named)  # what was said of classes before them
    kept: KeptRows | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.seconds, int | float) and 0 <= self.seconds < float("inf")):
            raise KldaError(f"undo={self.seconds!r} can't be used; give seconds, or 0 for no undo.")

    # ---------------------------------------------------------------- what can be undone

    def find(self, number: int | None) -> UndoableChange:
        """Return the change that is undone by undoing an entry of the history, or the last one."""
        for each in reversed(self.changes):
            if number in (each.number, *each.toggles) or (number is None and each.is_active):
                break
        else:
            if number is None:
                raise UndoError(f"There is nothing to undo: {self.limits}.")
            raise UndoError(f"There is no change {number} to undo: {self.limits}.")
        if not each.is_kept:
            raise UndoError(f"Change {each.number} is too large to be undone: {self.limits}.")
        if number not in (None, each.latest, *each.toggles[-1:]):  # or a redo
            again = f"; undo change {each.latest} to do it again" if number == each.number else ""
            raise UndoError(f"Change {number} was undone already{again}.")
        return each

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
        kept = [each for each in self.changes if each.is_kept]
        found = {each.number for each in kept if each.is_active}
        return found | {each.toggles[-1] for each in kept if each.toggles}

    @property
    def named(self) -> Named:
        """What is said of classes after all changes but those undone."""
        return reduce(
            lambda named, each: each.after(named) if each.is_active else named,
            self.changes,
            self.first,
        )

    # ---------------------------------------------------------------- what is kept

    def add(self, change: UndoableChange, before: Model | None, after: Model) -> UndoLog:
        """Return the log with a change that made one model of another."""
        if not self.seconds:
            return replace(self, first=change.after(self.first))
        if size_of(change.part) > MOST_BYTES // 2:
            change = replace(change, part=None)
        log = self if before is None else self._keeping_rows(change.number, before, after)
        return replace(log, changes=(*log.changes, replace(change, when=time.time()))).expired()

    def _keeping_rows(self, number: int, before: Model, after: Model) -> UndoLog:
        """Return the log with the samples of a model that a change made too large to keep them."""
        if before.rows is None or after.rows is not None:
            return self
        part = replace(before.empty(), rows=before.rows).pack(with_map=False)
        return replace(self, kept=KeptRows(number, part, active(self.changes)))

    def expired(self, before: float | None = None) -> UndoLog:
        """Return the log without changes that are too old, too many or too large together.

        `before` is a time in seconds since 1970; by default as long ago as changes are kept.
        """
        limit = time.time() - self.seconds if before is None else before
        sizes = [size_of(each.part) for each in self.changes]
        room = MOST_BYTES - (0 if self.kept is None else size_of(self.kept.part))
        start = max(0, len(sizes) - MOST_CHANGES)
        while start < len(sizes) and (
            self.changes[start].when < limit or sum(sizes[start:]) > room
        ):
            start += 1
        if not start:
            return self
        first = replace(self, changes=self.changes[:start]).named
        left, kept = self.changes[start:], self.kept
        if kept is not None and not any(kept.number in (c.number, *c.toggles) for c in left):
            kept = None
        return replace(self, changes=left, first=first, kept=kept)

    # ---------------------------------------------------------------- undoing

    def undo_or_redo(
        self, change: UndoableChange, number: int, model: Model, parameters: Mapping[str, Any]
    ) -> tuple[UndoLog, Model]:
        """Undo a change, or do it again if it was undone; return the log and the model after.

        `number` is that of the entry in the history that this makes, and `parameters` are those
        that the learner has now.
        """
        turned = replace(change, toggles=(*change.toggles, number))
        log, found = self._with(turned), model
        if change.kind in ("tune", "rebuild"):
            self._check_latest(change)
        if change.kind == "rebuild":
            return log._exchange(turned, model, parameters)
        if change.renamed and not change.joined:
            names = change.renamed[::-1] if change.is_active else change.renamed
            later = rename_later(log.changes, change.number, *names)
            log = replace(log, changes=tuple(later))
        removed, added = change.sides(model)
        gone, back = (added, removed) if change.is_active else (removed, added)
        said = change.dropped if change.is_active else change.declared
        labels = {*said, *(back.counts if back is not None else ())}
        log = replace(log, changes=tuple(not_new_later(log.changes, change.number, labels)))
        try:
            if gone is not None and any(gone.counts.values()):
                changes, gone = follow(log.changes, change, gone, model, adds=False)
                log, found = replace(log, changes=changes), found.subtract(gone)
            if back is not None:
                changes, back = follow(log.changes, change, back, model, adds=True)
                check_label_kind(found.counts, back.counts, f"change {change.number}")
                _check_ids_are_free(change, found, back)
                log, found = replace(log, changes=changes), found.merge(back)
        except NotLearnedError:
            raise UndoError(
                f"Change {change.latest} can't be undone: some of its samples were taken out "
                "since, by a forget or an undo. Undo that first."
            ) from None
        is_small = found.rows is None and 0 < sum(found.counts.values()) <= found.most_rows
        if is_small and log.kept is not None:
            found = log.kept.restored(found, log.changes)
        log = log._keeping_rows(number, model, found)
        # Samples that were left out with others beside them than it has now tell nothing of it.
        return log, found.without_evidence()

    def _check_latest(self, change: UndoableChange) -> None:
        for later in self.changes:
            if later.kind == change.kind and later.is_active and later.number > change.number:
                what = "thresholds" if change.kind == "tune" else "parameters"
                raise UndoError(
                    f"Change {change.number} can't be undone: other {what} were set since, by "
                    f"change {later.number}. Undo that first."
                )

    def _exchange(
        self, change: UndoableChange, model: Model, now: Mapping[str, Any]
    ) -> tuple[UndoLog, Model]:
        """Return the log with the parameters of now, and the model with those of a change."""
        assert change.part is not None
        found = learned_again(model, Model.unpack(*change.part, model.backend))
        return self._with(replace(change, parameters=now, part=model.empty().pack())), found

    def _with(self, change: UndoableChange) -> UndoLog:
        """Return the log with a change in the place of the one with its number."""
        same = change.number
        changes = tuple(change if each.number == same else each for each in self.changes)
        return replace(self, changes=changes)

    # ---------------------------------------------------------------- storage

    def pack(self) -> Packed:
        """Return named arrays and JSON-able values."""
        arrays: dict[str, Any] = {}
        changes = []
        for each in self.changes:
            values = each.pack()
            if each.part is not None:
                values["part"] = each.part.meta
                arrays |= add_prefix(f"{each.number}/", each.part.arrays)
            changes.append(values)
        meta = {
            "format": FORMAT,
            "seconds": self.seconds,
            "changes": changes,
            "declared": list(self.first.declared.items()),
            "refusal": self.first.refusal and self.first.refusal.pack(),
        }
        if (kept := self.kept) is not None:
            arrays |= add_prefix("kept/", kept.part.arrays)
            numbers = {"number": kept.number, "active": sorted(kept.active)}
            meta["kept"] = numbers | {"part": kept.part.meta}
        return Packed(arrays, meta)

    @classmethod
    def unpack(cls, arrays: Arrays, meta: Meta, named: Named) -> UndoLog:
        """Return what `pack` described; an empty log if another version wrote it."""
        if meta.get("format") != FORMAT:
            return cls(float(meta.get("seconds", KEPT_SECONDS)), first=named)

        def part(prefix: str, values: Meta) -> Packed | None:
            return (
                Packed(strip_prefix(prefix, arrays), values["part"]) if "part" in values else None
            )

        changes = tuple(
            UndoableChange.unpack(one, part(f"{one['number']}/", one)) for one in meta["changes"]
        )
        kept, refusal = meta.get("kept"), meta["refusal"]
        if kept is not None:
            rows = part("kept/", kept)
            assert rows is not None
            kept = KeptRows(kept["number"], rows, frozenset(kept["active"]))
        first = Named(dict(meta["declared"]), refusal and Refusal.unpack(refusal))
        return cls(float(meta["seconds"]), changes, first, kept)


def _check_ids_are_free(change: UndoableChange, model: Model, back: Model) -> None:
    """Refuse to bring back a sample whose id was given to another one since."""
    if not model.keeps_all or model.rows is None or back.rows is None:
        return
    if twice := model.rows.numbers_by_id.keys() & back.rows.numbers_by_id.keys():
        raise UndoError(
            f"Change {change.latest} can't be undone: the id {min(twice)!r} was given to another "
            "sample since. Forget that one, or undo its change first."
        )
