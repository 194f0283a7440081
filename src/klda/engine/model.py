"""The model: all that was learned, as one value with verbs.

A model is one or more members (feature map, statistics) and leave-one-out evidence for calibration.
While it has learned no more than half as many samples as there are random features, it may hold
the samples instead: the kernel between them is exact then (`klda.engine.few_samples`).
The statistics are exact: order and batches make no difference, removing samples undoes learning
them, and merging two models is the same as learning the samples of both. Calibration also depends
on when it was asked for: samples are left out of the model as it is at that moment.

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
    NumpyBackend,
    inside,
    is_torch,
    under,
)
from klda.engine.evidence import Evidence
from klda.engine.feature_map import FeatureMap
from klda.engine.held_rows import LabelledRows
from klda.engine.interrupts import held_back, let_interrupts_through
from klda.engine.rule import RuleTerms
from klda.engine.shrinkage import MOST_ANCHORS
from klda.engine.solution import row_blocks
from klda.engine.solve import PlainWeights, Precision
from klda.engine.statistics import ClassStatistics
from klda.errors import KldaError
from klda.labels import Label

# Rows on the device, class by class, how many there are of each class, and their labels.
Batch = tuple[Array, np.ndarray, list[Label]]
MOST_WAITING = 1024  # samples learned since evidence was last gathered
ENOUGH_SAMPLES = 10  # of a class, from which on its hint does not count
LEAST_HITS = 0.2  # of the hints, beyond those by chance
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
    """A feature map with the statistics of what was learned through it.

    Attributes
    ----------
    precision : Precision or None
        Their factor and the changes since; None until it is needed.
    solved : tuple or None
        What the last solution was made of; leaving samples out needs it.
    """

    def __init__(self, own_map: FeatureMap, statistics: ClassStatistics) -> None:
        self.map = own_map
        self.statistics = statistics
        self.precision: Precision | None = None
        self.solved: tuple[PlainWeights, RuleTerms] | None = None

    def change(
        self, rows: Array, counts: np.ndarray, labels: list[Label], sign: int, room: Array | None
    ) -> None:
        """Add or remove samples, all in memory at once; the room is for their lifted features."""
        known = len(self.statistics.labels)
        lifted = self.statistics.change(self.map.lift(rows, room), counts, labels, sign)
        if self.precision is None:
            return
        if sign < 0 and len(self.statistics.labels) < known:
            self.precision.note_reorder()
            labels = [label for label in labels if label in self.statistics.positions]
        if not self.precision.note_change(lifted, sign, labels):
            self.precision = None


class Model:
    """All that was learned."""

    def __init__(
        self,
        members: Sequence[Member],  # several for an ensemble; they share the classes and counts
        evidence: Evidence | None = None,  # what leaving samples out has told
        waiting: LabelledRows | None = None,  # samples that are yet to be left out
        held: LabelledRows | None = None,  # samples that are not in the statistics
        # One row per class, what its name says; not among the counts.
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
        self.waiting = waiting or LabelledRows(none)
        self.holds = holds
        self.held, self.hints = held or LabelledRows(none), hints or LabelledRows(none)
        self.is_half_changed = False  # and must not be used any more
        self._classes: tuple[Any, LabelledRows, np.ndarray] | None = None

    @classmethod
    def of_maps(cls, maps: Sequence[FeatureMap], *, with_scatter: bool = True) -> Model:
        """Return a model with these feature maps that has learned nothing.

        Without a scatter it is made of counts and means alone, and never holds samples.
        """
        members = [
            Member(
                each, ClassStatistics(each.n_components, each.backend, with_scatter=with_scatter)
            )
            for each in maps
        ]
        return cls(members, holds=with_scatter)

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
    def weighed_counts(self) -> np.ndarray:
        """Samples of each class that has some, as the ridge depends on them; in any order.

        While samples are held, the hints that count are samples too.
        """
        if self.is_holding:
            return np.array([*self.held.join(self.useful_hints).counts.values()], np.int64)
        return self.statistics.counts

    @property
    def keeps(self) -> dict[str, int]:
        """How many rows of single samples it keeps, and up to how many samples it keeps them all.

        With more, a few wait until they have been left out once.
        """
        if self.is_holding:
            return {"rows": len(self.held), "most_rows": self.statistics.n_components // 2}
        return {"waiting": len(self.waiting.labels)} if self.waiting.labels else {}

    @property
    def useful_hints(self) -> LabelledRows:
        """The hints that count now: a function of what was learned alone.

        A name such as ``card_arrival``, encoded like a text, is worth about a sample of its class:
        much while there are none or few, nothing once there are ten. Names may also be codes that
        say nothing. So hints count only where they have proved themselves. A class that has no
        sample has its hint alone, whatever the others say. In a model that no longer holds its
        samples, only the hints of such classes count: a hint does not help a few rare classes.
        """
        if not len(self.hints):
            return self.hints
        most = ENOUGH_SAMPLES if self.is_holding and self._hints_tell_classes_apart() else 1
        return self.hints.drop({label for label, n in self.counts.items() if n >= most})

    def _hints_tell_classes_apart(self) -> bool:
        """Whether the class mean nearest to a hint is its own class's more often than by chance."""
        known = self.hints.drop({label for label, n in self.counts.items() if not n})
        if not len(known):
            return True
        held, groups, labels = self.held.grouped()
        sums = np.add.reduceat(held, np.searchsorted(groups, np.arange(len(labels))), axis=0)
        means = sums / np.bincount(groups)[:, None]
        centred = means - means.mean(axis=0)
        gaps = (centred**2).sum(axis=1) - 2 * (known.rows - means.mean(axis=0)) @ centred.T
        nearest = [labels[at] for at in gaps.argmin(1)]
        hits = np.mean([one == own for one, own in zip(nearest, known.labels, strict=True)])
        chance = 1 / len(labels)
        return bool(hits >= chance + LEAST_HITS * (1 - chance)) or len(labels) == 1

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
                rows, groups, labels = held.add(rows, groups, labels).grouped()
                held = held.empty()
        if rows.nbytes <= MOVED_AT_ONCE:
            rows = self.backend.asarray(rows)
        waiting = self.waiting
        if gather:
            waiting = waiting.add(rows, groups, labels, MOST_WAITING)
        self.change(rows, groups, labels, 1)
        self.waiting, self.held = waiting, held

    def hint(self, batch: tuple[Array, np.ndarray, list[Label]] | None) -> None:
        """Take other hints, one row per class, or none."""
        none = self.hints.empty()
        self.hints = none if batch is None else none.add(*batch)

    def folded(self, *, gather: bool = False) -> Model:
        """Return a model with all samples in the statistics: itself, or a copy.

        ``gather`` as for `add`.
        """
        if not len(self.held):
            return self
        twin = self.copy()
        twin.holds, twin.held = False, self.held.empty()
        twin.add(*self.held.grouped(), gather=gather)
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
        waiting = waiting.discard(rows, [labels[group] for group in groups.tolist()])
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
        room = self.backend.empty((blocks[0].stop, size)) if lifts else None

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
        own, here = groups[block], self.backend.asarray(rows[block])
        if (np.diff(own) < 0).any():
            here = here[self.backend.index(np.argsort(own, kind="stable"))]
        counts = np.bincount(own)
        present = np.flatnonzero(counts)
        return here, counts[present], [labels[i] for i in present]

    def merge(self, other: Model, *, gather: bool = True) -> None:
        """Add all that another model with the same maps learned; ``gather`` as for `add`."""
        hints = self.hints.join(other.hints.drop(self.hints.counts))
        if len(other.held):
            self.add(*other.held.grouped(), gather=gather)
        elif len(self.held) and not other.is_holding:
            folded = self.folded(gather=gather)
            folded.merge(other, gather=gather)
            vars(self).update(vars(folded))
        elif not other.is_holding:
            merged = [Member(each.map, each.statistics.copy()) for each in self.members]
            for member, added in zip(merged, other.members, strict=True):
                member.statistics.merge(added.statistics)
            waiting = self.waiting
            if gather:
                waiting = waiting.join(other.waiting, MOST_WAITING)
            self.evidence = self.evidence.merge(other.evidence)
            self.members, self.waiting = merged, waiting
        self.hints = hints

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
        gone, hint, hints = self.empty(), self.hints.only(label), self.hints.drop({label})
        if self.is_holding:
            gone.held, self.held = self.held.only(label), self.held.drop({label})
        elif label in self.statistics.positions:
            parts = [Member(each.map, each.statistics.only(label)) for each in self.members]
            gone = Model(parts, self.evidence.only(label), self.waiting.only(label))
            drops = [member.statistics.prepare_drop([label]) for member in self.members]
            for member, drop in zip(self.members, drops, strict=True):
                drop()
                if member.precision is not None:
                    member.precision.note_reorder()
            self.evidence = self.evidence.drop({label: 1.0})
            self.waiting = self.waiting.drop({label})
        gone.hints, self.hints = hint, hints
        return gone

    def empty(self) -> Model:
        """Return a model with the same feature maps that has learned nothing."""
        twin = Model.of_maps(self.maps, with_scatter=self.statistics.with_scatter)
        twin.holds = self.holds  # not in folders of old versions
        return twin

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
        held, hints = (
            LabelledRows(np.array(arrays[f"learn/{name}"]), list(meta[name]))
            if name in meta
            else None
            for name in ("held", "hints")
        )
        pairs = zip(meta["classes"], meta["counts"], strict=True)
        counts = {} if held else {label: n for label, n in pairs if n}
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
            waiting = LabelledRows(np.array(arrays["learn/pending"]), list(labels))
        # While it holds its samples, what they tell is found again with each solution.
        evidence = None if held else Evidence.unpack(arrays, meta["classes"])
        return cls(members, evidence, waiting, held, hints, holds="held" in meta)
