"""The model: all that was learned, as one value with verbs.

A model is one or more members (feature map, statistics) and leave-one-out evidence for calibration.
All its verbs are exact: order, batches, removal and merging leave the same statistics behind.

Each verb happens completely or not at all. Adding and removing samples changes the scatter, D x D
numbers, in place, because a copy would cost more than the change: `Model.change` says how that is
undone. All other verbs make what is new first and take it over at once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from klda.engine.arrays import (
    Array,
    Backend,
    Grouping,
    NumpyBackend,
    Steps,
    held_back,
    is_torch,
    let_interrupts_through,
    on_cpu,
)
from klda.engine.evidence import Evidence
from klda.engine.feature_map import FeatureMap
from klda.engine.solution import row_blocks
from klda.engine.solve import Solver
from klda.engine.statistics import ClassStatistics
from klda.errors import KldaError
from klda.labels import Label

MOST_WAITING = 1024
HASHED_AT_ONCE = 1 << 22  # values


def choose_backend(device: str, dtype: str, values: Any = None) -> Backend:
    """Return the backend for a device.

    Parameters
    ----------
    device : str
        ``"cpu"``, a torch device such as ``"cuda"`` or ``"cuda:1"``, or ``"auto"``: the device of
        ``values`` if they are a tensor on a GPU, else the GPU if torch is already imported and
        sees one, else the CPU.
    dtype : str
        ``"float32"`` or ``"float64"``.
    values : array-like, optional
        The first input, whose device ``"auto"`` follows.
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


@dataclass(frozen=True, eq=False)
class Waiting:
    """Samples learned since evidence was last gathered: at most 1,024 of them, never changed.

    Those with the smallest hashes of their features are kept, so that which ones they are does not
    depend on order, batches or merging.
    """

    rows: np.ndarray
    labels: list[Label] = field(default_factory=list)

    @cached_property
    def hashes(self) -> np.ndarray:
        """A hash of each row."""
        return _hashes(self.rows)

    def add(self, rows: Array, groups: np.ndarray, labels: Sequence[Label]) -> Waiting:
        """Return the samples that wait once these are learned, row i of ``labels[groups[i]]``."""
        known, total = len(self.labels), len(self.labels) + len(rows)
        chosen = np.arange(total)
        if total > MOST_WAITING:
            hashes = np.concatenate([self.hashes, _hashes(rows)])
            chosen = np.flatnonzero(hashes <= np.sort(hashes)[MOST_WAITING - 1])
            if len(chosen) > MOST_WAITING:  # equal rows, maybe of several classes
                names = [*self.labels, *(labels[group] for group in groups)]
                ranked = sorted((int(hashes[i]), names[i], i) for i in chosen.tolist())
                chosen = np.sort([i for _, _, i in ranked[:MOST_WAITING]])
        old, new = chosen[chosen < known], chosen[chosen >= known] - known
        if not len(new):
            return self
        kept = [self.labels[i] for i in old] + [labels[i] for i in groups[new]]
        waiting = Waiting(np.concatenate([self.rows[old], on_cpu(rows[new])]), kept)
        if total > MOST_WAITING:
            vars(waiting)["hashes"] = hashes[chosen]  # known already
        return waiting

    def remove(self, rows: Array, labels: Sequence[Label]) -> Waiting:
        """Return those that wait without these samples."""
        known = set(self.labels)
        chosen = [i for i, label in enumerate(labels) if label in known]
        rows = on_cpu(rows[chosen])
        gone = Counter((labels[i], row.tobytes()) for i, row in zip(chosen, rows, strict=True))
        kept = []
        for i, label in enumerate(self.labels):
            key = (label, self.rows[i].tobytes())
            if gone[key] > 0:
                gone[key] -= 1
            else:
                kept.append(i)
        return self._at(kept)

    def drop(self, labels: Collection[Label]) -> Waiting:
        """Return those that wait without the samples of some classes."""
        return self._at([i for i, label in enumerate(self.labels) if label not in labels])

    def only(self, label: Label) -> Waiting:
        """Return those of one class."""
        return self._at([i for i, own in enumerate(self.labels) if own == label])

    def rename(self, old: Label, new: Label) -> Waiting:
        """Return the same samples, a class having another name."""
        return Waiting(self.rows, [new if label == old else label for label in self.labels])

    def _at(self, chosen: list[int]) -> Waiting:
        return Waiting(self.rows[chosen], [self.labels[i] for i in chosen])


def _hashes(rows: Array) -> np.ndarray:
    """Return a hash of each row, the same on every machine; only hashes leave a GPU."""
    integers = sys.modules["torch"] if is_torch(rows) else np
    width = rows.shape[1]
    factors = np.random.RandomState(0).randint(1, 1 << 62, width, np.int64) | 1
    if is_torch(rows):
        factors = integers.from_numpy(factors).to(rows.device)
    hashes = np.empty(len(rows), np.uint64)
    step = max(1, HASHED_AT_ONCE // width)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        part = part.contiguous() if is_torch(part) else np.ascontiguousarray(part)
        words = part.view(integers.int32 if part.itemsize == 4 else integers.int64)
        mixed = on_cpu((words * factors).sum(1)).view(np.uint64)  # modulo 2^64
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        hashes[start : start + step] = mixed ^ (mixed >> np.uint64(32))
    return hashes


class Member:
    """A feature map with the statistics of what was learned through it.

    Attributes
    ----------
    map : FeatureMap
        Lifts features.
    statistics : ClassStatistics
        Of the lifted features.
    solver : Solver
        Solves for their classifier.
    """

    def __init__(self, own_map: FeatureMap, statistics: ClassStatistics) -> None:
        self.map = own_map
        self.statistics = statistics
        self.solver = Solver(statistics)

    def change(
        self, rows: Array, groups: Grouping, labels: list[Label], sign: int, room: Array | None
    ) -> Steps[None]:
        """Add or remove samples, all in memory at once; the room is for their lifted features."""
        yield from ()  # no step of it waits for a GPU
        known = len(self.statistics.labels)
        lifted = self.statistics.change(self.map.lift(rows, room), groups, labels, sign)
        if sign < 0 and len(self.statistics.labels) < known:
            self.solver.note_reorder()
            labels = [label for label in labels if label in self.statistics.positions]
        self.solver.note_change(lifted, sign, labels)


class Model:
    """All that was learned.

    Parameters
    ----------
    members : sequence of Member
        One, or several for an ensemble; they share the classes and counts.
    evidence : Evidence, optional
        What leaving samples out has told.
    waiting : Waiting, optional
        Samples that are yet to be left out.
    """

    def __init__(
        self,
        members: Sequence[Member],
        evidence: Evidence | None = None,
        waiting: Waiting | None = None,
    ) -> None:
        self.members = list(members)
        self.backend = self.members[0].map.backend
        self.n_features = self.members[0].map.n_features
        self.evidence = Evidence() if evidence is None else evidence
        empty = np.empty((0, self.n_features), self.backend.dtype)
        self.waiting = Waiting(empty) if waiting is None else waiting
        self._classes: tuple[Any, np.ndarray] | None = None

    @classmethod
    def of_maps(cls, maps: Sequence[FeatureMap], *, with_scatter: bool = True) -> Model:
        """Return a model with these feature maps that has learned nothing."""
        return cls(
            [
                Member(
                    each,
                    ClassStatistics(each.n_components, each.backend, with_scatter=with_scatter),
                )
                for each in maps
            ]
        )

    # ---------------------------------------------------------------- what it knows

    @property
    def statistics(self) -> ClassStatistics:
        """Statistics of the first member; all members have the same classes and counts."""
        return self.members[0].statistics

    @property
    def maps(self) -> list[FeatureMap]:
        """The feature map of each member."""
        return [member.map for member in self.members]

    @property
    def counts(self) -> dict[Label, int]:
        """Samples of each class."""
        return dict(zip(self.statistics.labels, self.statistics.counts.tolist(), strict=True))

    @property
    def classes(self) -> np.ndarray:
        """Labels, sorted; made again only when the set of labels changed."""
        order = self.statistics.order
        if self._classes is None or self._classes[0] is not order:
            self._classes = (order, np.array(sorted(self.statistics.labels)))
        return self._classes[1]

    @property
    def class_counts(self) -> np.ndarray:
        """Samples of each class, in the order of ``classes``."""
        return self.statistics.counts[self.statistics.order]

    # ---------------------------------------------------------------- verbs

    def add(
        self, rows: Array, groups: np.ndarray, labels: list[Label], *, gather: bool = True
    ) -> None:
        """Learn samples, row i of the class ``labels[groups[i]]``.

        With ``gather``, some of them wait to be left out once, for the evidence.
        """
        waiting = self.waiting.add(rows, groups, labels) if gather else self.waiting
        self.change(rows, groups, labels, 1)
        self.waiting = waiting

    def remove(self, rows: Array, groups: np.ndarray, labels: list[Label]) -> None:
        """Undo what learning these samples did; a class without samples left is dropped."""
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
        that were done are undone by the opposite change of the same rows.
        """
        done: list[tuple[Member, slice]] = []
        size = self.statistics.n_components
        blocks = row_blocks(len(groups), size, self.backend)
        lifts = self.members[0].map.frequencies is not None
        room = self.backend.room(blocks[0].stop, size) if lifts else None
        with held_back():
            try:
                for block in blocks:
                    let_interrupts_through()
                    self._change_block(rows, groups, labels, sign, room, block, done)
                let_interrupts_through()
            except BaseException:
                for member, block in reversed(done):
                    batch = self._batch(rows, groups, labels, block)
                    self.backend.each([member.change(*batch, -sign, room)])
                raise

    def _change_block(
        self,
        rows: Array,
        groups: np.ndarray,
        labels: list[Label],
        sign: int,
        room: Array | None,
        block: slice,
        done: list[tuple[Member, slice]],
    ) -> None:
        batch = self._batch(rows, groups, labels, block)

        def change(member: Member) -> Steps[None]:
            yield from member.change(*batch, sign, room)
            done.append((member, block))

        self.backend.each([change(member) for member in self.members])

    def _batch(
        self, rows: Array, groups: np.ndarray, labels: list[Label], block: slice
    ) -> tuple[Array, Grouping, list[Label]]:
        """Return a block of rows on the device, and which of the classes in it each belongs to."""
        present, own = np.unique(groups[block], return_inverse=True)
        grouping = self.backend.grouping(own, len(present))
        return self.backend.asarray(rows[block]), grouping, [labels[i] for i in present]

    def merge(self, other: Model) -> None:
        """Add all that another model with the same feature maps learned."""
        merged = [Member(each.map, each.statistics.copy()) for each in self.members]
        for member, added in zip(merged, other.members, strict=True):
            member.statistics.merge(added.statistics)
        theirs = other.waiting
        waiting = self.waiting.add(theirs.rows, np.arange(len(theirs.rows)), theirs.labels)
        self.evidence = self.evidence.merge(other.evidence)
        self.members, self.waiting = merged, waiting

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name."""
        for member in self.members:
            member.statistics.rename(old, new)
        self.evidence = self.evidence.rename(old, new)
        self.waiting = self.waiting.rename(old, new)

    def drop(self, label: Label) -> Model:
        """Drop a class from the answers; the shared scatter keeps its trace.

        Returns
        -------
        Model
            The class alone, without scatter: merging it undoes the drop exactly.
        """
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
        return Model.of_maps(self.maps, with_scatter=with_scatter)

    def copy(self) -> Model:
        """Return an independent copy; feature maps, which never change, are shared."""
        members = [Member(member.map, member.statistics.copy()) for member in self.members]
        return Model(members, self.evidence, self.waiting)

    # ---------------------------------------------------------------- storage

    def pack(self, *, maps: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all of it as named arrays and JSON-able values; later changes leave them alone.

        Without ``maps``, the feature maps have to be given when it is unpacked.
        """
        arrays: dict[str, np.ndarray] = {}
        members = []
        for i, member in enumerate(self.members):
            of_map, map_meta = member.map.pack(f"predict/{i}/") if maps else ({}, {})
            learned, meta = member.statistics.pack(f"learn/{i}/")
            arrays |= of_map | learned
            members.append(map_meta | meta)
        classes = self.classes.tolist()
        arrays |= self.evidence.pack(classes)
        meta = {
            "n_features": self.n_features,
            "classes": classes,
            "counts": self.class_counts.tolist(),
            "members": members,
        }
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
        counts = dict(zip(meta["classes"], meta["counts"], strict=True))
        members = []
        for i, entry in enumerate(meta["members"]):
            size = meta["n_features"]
            unpacked = maps or [FeatureMap.unpack(f"predict/{i}/", arrays, entry, size, backend)]
            own_map = unpacked[i if maps else 0]
            own = ClassStatistics.unpack(f"learn/{i}/", arrays, entry, counts, backend)
            members.append(Member(own_map, own))
        waiting = None
        labels = meta.get("waiting", {}).get("pending", [])
        if labels:
            waiting = Waiting(np.array(arrays["learn/pending"]), list(labels))
        return cls(members, Evidence.unpack(arrays, meta["classes"]), waiting)
