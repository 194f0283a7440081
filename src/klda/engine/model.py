"""The model: all that was learned, as one value with verbs.

A model is one or more members (feature map, statistics) and leave-one-out evidence for calibration.
While it has learned no more than half as many samples as there are random features, it may hold
the samples instead: the kernel between them is exact then (`klda.engine.few_samples`).
All its verbs are exact: order, batches, removal and merging leave the same model behind.

Each verb happens completely or not at all. Adding and removing samples changes the scatter, D x D
numbers, in place, because a copy would cost more than the change: `Model.change` says how that is
undone. All other verbs make what is new first and take it over at once.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from klda.engine.arrays import (
    Array,
    Backend,
    Grouping,
    NumpyBackend,
    inside,
    is_torch,
    under,
)
from klda.engine.evidence import Evidence
from klda.engine.feature_map import FeatureMap
from klda.engine.held_rows import LabelledRows, Waiting
from klda.engine.interrupts import held_back, let_interrupts_through
from klda.engine.shrinkage import MOST_ANCHORS
from klda.engine.solution import row_blocks
from klda.engine.solve import Solver
from klda.engine.statistics import ClassStatistics
from klda.errors import KldaError
from klda.labels import Label

Batch = tuple[Array, Grouping, list[Label]]  # rows on the device, their classes, and labels
MOVED_AT_ONCE = 1 << 30  # bytes of samples; of more, only those that are worked on are on a GPU


def choose_backend(device: str, dtype: str, values: Any = None) -> Backend:
    """Return the backend for a device: ``"cpu"``, a torch device such as ``"cuda:1"``, or "auto".

    ``"auto"`` is the device of ``values``, the first input, if they are a tensor; otherwise the GPU
    if torch is already imported and sees one, else the CPU.
    """
    if dtype not in ("float32", "float64"):
        raise KldaError(f"dtype={dtype!r} is not known; use 'float32' or 'float64'.")
    if device == "auto":
        torch = sys.modules.get("torch")
        if is_torch(values):
            device = "cpu" if values.device.type == "cpu" else str(values.device)
        else:
            device = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return NumpyBackend(dtype)
    from klda.engine.arrays_torch import TorchBackend

    return TorchBackend(device, dtype)


class HalfChangedError(KldaError):
    """A change failed, and so did undoing it."""

    def __init__(self) -> None:
        super().__init__(
            "The model was stopped halfway through a change, and the change could not be undone: "
            "the model in memory is lost. Load it from its folder again, or fit it again."
        )


class Member:
    """A feature map with the statistics of what was learned through it, and their solver."""

    def __init__(self, own_map: FeatureMap, statistics: ClassStatistics) -> None:
        self.map = own_map
        self.statistics = statistics
        self.solver = Solver(statistics)

    def change(
        self, rows: Array, groups: Grouping, labels: list[Label], sign: int, room: Array | None
    ) -> None:
        """Add or remove samples, all in memory at once; the room is for their lifted features."""
        known = len(self.statistics.labels)
        lifted = self.statistics.change(self.map.lift(rows, room), groups, labels, sign)
        if sign < 0 and len(self.statistics.labels) < known:
            self.solver.note_reorder()
            labels = [label for label in labels if label in self.statistics.positions]
        self.solver.note_change(lifted, sign, labels)


class Model:
    """All that was learned."""

    def __init__(
        self,
        members: Sequence[Member],  # several for an ensemble; they share the classes and counts
        evidence: Evidence | None = None,  # what leaving samples out has told
        waiting: Waiting | None = None,  # samples that are yet to be left out
        held: LabelledRows | None = None,  # samples that are not in the statistics
        # One row per class, what its name says (`klda.engine.hints`); not among the counts.
        hints: LabelledRows | None = None,
        *,
        holds: bool = False,  # whether it consists of the samples while they are few
    ) -> None:
        self.members = list(members)
        self.maps = [member.map for member in members]
        self.backend = self.members[0].map.backend
        self.n_features = self.members[0].map.n_features
        self.evidence = Evidence() if evidence is None else evidence
        none = np.empty((0, self.n_features), self.backend.dtype)
        self.waiting = waiting or Waiting(none)
        self.holds = holds
        self.held, self.hints = held or LabelledRows(none), hints or LabelledRows(none)
        self.is_half_changed = False  # and must not be used any more
        self._classes: tuple[Any, LabelledRows, np.ndarray] | None = None

    @classmethod
    def of_maps(
        cls, maps: Sequence[FeatureMap], *, with_scatter: bool = True, holds: bool = False
    ) -> Model:
        """Return a model with these feature maps that has learned nothing."""
        members = [
            Member(
                each, ClassStatistics(each.n_components, each.backend, with_scatter=with_scatter)
            )
            for each in maps
        ]
        return cls(members, holds=holds)

    # ---------------------------------------------------------------- what it knows

    @property
    def statistics(self) -> ClassStatistics:
        """Statistics of the first member; all members have the same classes and counts."""
        return self.members[0].statistics

    @property
    def is_holding(self) -> bool:
        """Whether it consists of samples, not of statistics."""
        return self.holds and not (self.statistics.labels or self.statistics.n_scattered)

    @property
    def counts(self) -> dict[Label, int]:
        """Samples of each class; none of classes that are known by a hint alone."""
        none = dict.fromkeys(self.hints.labels, 0)
        if self.is_holding:
            return none | self.held.counts
        statistics = self.statistics
        return none | dict(zip(statistics.labels, statistics.counts.tolist(), strict=True))

    @property
    def classes(self) -> np.ndarray:
        """Labels, sorted; made again only when the set of labels changed."""
        of, hints = self.held if self.is_holding else self.statistics.order, self.hints
        if self._classes is None or self._classes[0] is not of or self._classes[1] is not hints:
            self._classes = (of, hints, np.array(sorted(self.counts)))
        return self._classes[2]

    @property
    def class_counts(self) -> np.ndarray:
        """Samples of each class, in the order of ``classes``."""
        if len(self.hints) or self.is_holding:
            return np.array([n for _, n in sorted(self.counts.items())], np.int64)
        return self.statistics.counts[self.statistics.order]

    @property
    def keeps(self) -> dict[str, int]:
        """How many rows of single samples it keeps, and up to how many samples it keeps them all.

        With more, a few wait until they have been left out once.
        """
        if self.is_holding:
            return {"rows": len(self.held), "most_rows": self.statistics.n_components // 2}
        return {"waiting": len(self.waiting.labels)} if self.waiting.labels else {}

    # ---------------------------------------------------------------- verbs

    def add(
        self, rows: Array, groups: np.ndarray, labels: list[Label], *, gather: bool = True
    ) -> None:
        """Learn samples, row i of the class ``labels[groups[i]]``.

        With ``gather``, some of them wait to be left out once, for the evidence.
        """
        held = self.held
        if self.is_holding:
            few = len(held) + len(rows) <= self.statistics.n_components // 2
            if few and len({*held.counts, *labels}) <= MOST_ANCHORS:
                self.held = held.add(rows, groups, labels)
                return
            if len(held):
                rows, groups, labels = held.add(rows, groups, labels).in_order().grouped()
                held = held.empty()
        if rows.nbytes <= MOVED_AT_ONCE:
            rows = self.backend.asarray(rows)
        waiting = self.waiting.add(rows, groups, labels) if gather else self.waiting
        self.change(rows, groups, labels, 1)
        self.waiting, self.held = waiting, held

    def hint(self, batch: tuple[Array, np.ndarray, list[Label]] | None) -> None:
        """Take other hints, one row per class, or none."""
        none = self.hints.empty()
        self.hints = none if batch is None else none.add(*batch)

    def folded(self) -> Model:
        """Return a model with all samples in the statistics: itself, or a copy."""
        if not len(self.held):
            return self
        twin = self.copy()
        twin.holds, twin.held = False, self.held.empty()
        twin.add(*self.held.in_order().grouped())
        twin.holds = True
        return twin

    def remove(self, rows: Array, groups: np.ndarray, labels: list[Label]) -> None:
        """Undo what learning these samples did; a class without samples left is dropped."""
        if self.is_holding:
            self.held = self.held.without(rows, [labels[group] for group in groups.tolist()])
            return
        before, pairs = self.counts, zip(labels, np.bincount(groups).tolist(), strict=True)
        fractions = {label: n / before[label] for label, n in pairs}
        evidence = self.evidence.drop(fractions)
        waiting = self.waiting.drop({label for label, part in fractions.items() if part >= 1})
        waiting = waiting.remove(rows, [labels[group] for group in groups.tolist()])
        self.change(rows, groups, labels, -1)
        self.evidence, self.waiting = evidence, waiting

    def change(self, rows: Array, groups: np.ndarray, labels: list[Label], sign: int) -> None:
        """Let all members add or remove samples, block by block, completely or not at all.

        Whatever stops it (an interrupt between two blocks, a lack of memory within one), the blocks
        that were done are undone by the opposite change of the same rows. Raises
        `HalfChangedError` if that fails too.
        """
        done: list[tuple[Member, slice]] = []
        size = self.statistics.n_components
        blocks = row_blocks(len(groups), size, self.backend)
        lifts = self.members[0].map.gamma is not None
        room = self.backend.room(blocks[0].stop, size) if lifts else None

        with held_back():
            try:
                for block in blocks:
                    let_interrupts_through()
                    batch = self._batch(rows, groups, labels, block)
                    for member in self.members:
                        member.change(*batch, sign, room)
                        done.append((member, block))
                let_interrupts_through()
            except BaseException:
                try:
                    for member, block in reversed(done):
                        batch = self._batch(rows, groups, labels, block)
                        member.change(*batch, -sign, room)
                except BaseException as error:  # no memory for that either
                    self.is_half_changed = True
                    raise HalfChangedError from error
                raise

    def _batch(self, rows: Array, groups: np.ndarray, labels: list[Label], block: slice) -> Batch:
        """Return a block of rows on the device, and which of the classes in it each belongs to."""
        counts = np.bincount(groups[block], minlength=len(labels))
        present = np.flatnonzero(counts)
        own = (np.cumsum(counts > 0) - 1)[groups[block]]
        grouping = self.backend.grouping(own, len(present))
        arranged = grouping.arranged(self.backend.asarray(rows[block]))
        return arranged, grouping, [labels[i] for i in present]

    def merge(self, other: Model) -> None:
        """Add all that another model with the same feature maps learned."""
        hints = self.hints.with_missing(other.hints)
        self._merge(other)
        self.hints = hints

    def _merge(self, other: Model) -> None:
        if other.is_holding:
            if len(other.held):
                self.add(*other.held.grouped())
            return
        if len(self.held):
            folded = self.folded()
            folded._merge(other)
            vars(self).update(vars(folded))
            return
        merged = [Member(each.map, each.statistics.copy()) for each in self.members]
        for member, added in zip(merged, other.members, strict=True):
            member.statistics.merge(added.statistics)
        theirs = other.waiting
        waiting = self.waiting.add(theirs.rows, np.arange(len(theirs.rows)), theirs.labels)
        self.evidence = self.evidence.merge(other.evidence)
        self.members, self.waiting = merged, waiting

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name."""
        self.hints, self.held = self.hints.rename(old, new), self.held.rename(old, new)
        if old in self.statistics.positions:
            for member in self.members:
                member.statistics.rename(old, new)
        self.evidence = self.evidence.rename(old, new)
        self.waiting = self.waiting.rename(old, new)

    def drop(self, label: Label) -> Model:
        """Drop a class from the answers; the shared scatter keeps its trace.

        Returns the class alone, without scatter: merging it undoes the drop exactly.
        """
        hint, hints = self.hints.only(label), self.hints.drop({label})
        gone = self._drop(label)
        gone.hints, self.hints = hint, hints
        return gone

    def _drop(self, label: Label) -> Model:
        if label not in self.statistics.positions and not self.is_holding:
            return self.empty()
        if self.is_holding:
            gone = self.empty()
            gone.held, self.held = self.held.only(label), self.held.drop({label})
            return gone
        parts = [Member(each.map, each.statistics.only(label)) for each in self.members]
        gone = Model(parts, self.evidence.only(label), self.waiting.only(label))
        drops = [member.statistics.prepare_drop([label]) for member in self.members]
        for member, drop in zip(self.members, drops, strict=True):
            drop()
            member.solver.note_reorder()
        self.evidence = self.evidence.drop({label: 1.0})
        self.waiting = self.waiting.drop({label})
        return gone

    def empty(self) -> Model:
        """Return a model with the same feature maps that has learned nothing."""
        with_scatter = self.statistics.scatter is not None
        return Model.of_maps(self.maps, with_scatter=with_scatter, holds=self.holds)

    def copy(self) -> Model:
        """Return an independent copy; feature maps, which never change, are shared."""
        members = [Member(member.map, member.statistics.copy()) for member in self.members]
        rows = (self.waiting, self.held, self.hints)
        return Model(members, self.evidence, *rows, holds=self.holds)

    # ---------------------------------------------------------------- storage

    def pack(self, *, maps: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all of it as named arrays and JSON-able values; later changes leave them alone.

        Without ``maps``, the feature maps have to be given when it is unpacked.
        """
        arrays: dict[str, np.ndarray] = {}
        members = []
        for i, member in enumerate(self.members):
            of_map, map_meta = member.map.pack() if maps else ({}, {})
            learned, meta = member.statistics.pack()
            arrays |= under(f"predict/{i}/", of_map) | under(f"learn/{i}/", learned)
            members.append(map_meta | meta)
        classes = self.classes.tolist()
        arrays |= self.evidence.pack(classes)
        meta = {
            "n_features": self.n_features,
            "classes": classes,
            "counts": self.class_counts.tolist(),
            "members": members,
        }
        kept = {"hints": self.hints} if len(self.hints) else {}
        if self.holds:
            kept["held"] = self.held
        arrays |= {f"learn/{name}": own.rows for name, own in kept.items()}
        meta |= {name: own.labels for name, own in kept.items()}
        if self.waiting.labels:
            arrays["learn/pending"] = self.waiting.rows
            meta["waiting"] = {"pending": self.waiting.labels}
        return arrays, meta

    @classmethod
    def unpack(
        cls,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        backend: Backend,
        *,
        maps: Sequence[FeatureMap] = (),
    ) -> Model:
        """Return the model that `pack` described, in memory of its own."""
        held, hints, hinted = (
            LabelledRows(np.array(arrays[f"learn/{name}"]), list(meta[name]))
            if name in meta
            else None
            for name in ("held", "hints", "hinted")
        )
        counts = {} if held else dict(zip(meta["classes"], meta["counts"], strict=True))
        for label in hinted.labels if hinted else ():
            counts[label] += 1
        counts = {label: n for label, n in counts.items() if n}
        members = []
        for i, entry in enumerate(meta["members"]):
            of_map, size = inside(f"predict/{i}/", arrays), meta["n_features"]
            own_map = maps[i] if maps else FeatureMap.unpack(of_map, entry, size, backend)
            learned = inside(f"learn/{i}/", arrays)
            own = ClassStatistics.unpack(learned, entry, counts, backend)
            members.append(Member(own_map, own))
        waiting = None
        labels = meta.get("waiting", {}).get("pending", [])
        if labels:
            waiting = Waiting(np.array(arrays["learn/pending"]), list(labels))
        # While it holds its samples, what they tell is found again with each solution.
        evidence = None if held else Evidence.unpack(arrays, meta["classes"])
        model = cls(members, evidence, waiting, held, hints, holds="held" in meta)
        if hinted:  # statistics were once stored with the hints that counted
            model.change(*hinted.grouped(), -1)
        return model
