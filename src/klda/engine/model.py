"""The model: everything learned, as one immutable value with verbs.

A model consists of a feature map and the statistics of the samples learned through it. While there
are at most D / 2 samples (2,500 by default), or always if it is asked to, it also keeps the samples
themselves. Then they are the model: statistics are computed from them when needed, and forgetting
leaves no trace. Beyond that number the rows are dropped and the statistics are all there is. Each
verb returns another model, which shares whatever stayed the same.

The statistics are exact: they do not depend on order or batches, removing samples undoes learning
them, and merging two models equals learning the samples of both. Calibration depends on when it was
asked for, because samples are left out of the model as it is at that moment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Backend, add_prefix, row_blocks, strip_prefix
from klda.engine.calibration import Evidence
from klda.engine.feature_map import FeatureMap, IdentityMap, unpack_map
from klda.engine.rows import Rows
from klda.engine.statistics import Batch, ClassStatistics
from klda.errors import KldaError
from klda.labels import Label, group_labels

# Up to how many samples the exact kernel is used. Solving takes the cube of their number, here as
# long as an update of the random features' statistics; beyond, it gains less than 0.2 points.
EXACT_KERNEL_ROWS = 512
MOST_PENDING = 1024  # samples learned since evidence was last gathered
ALL = 1 << 62


@dataclass(frozen=True, eq=False)
class Model:
    """All that was learned.

    Attributes
    ----------
    map : FeatureMap
        From a row to its features.
    most_rows : int
        Up to how many samples the rows are kept; `ALL` keeps them all.
    rows : Rows or None
        The samples, if all that were learned are kept.
    hints : Rows
        One row per class, what its name says; not among the counts.
    pending : Rows
        Samples that are yet to be left out.
    evidence : Evidence
        What leaving samples out has told.
    counted : ClassStatistics or None
        The statistics; None while the rows say the same.
    """

    map: FeatureMap
    most_rows: int
    rows: Rows | None
    hints: Rows = field(default_factory=Rows)
    pending: Rows = field(default_factory=Rows)
    evidence: Evidence = field(default_factory=Evidence)
    counted: ClassStatistics | None = None

    @classmethod
    def new(cls, own_map: FeatureMap, *, keep_all: bool = False) -> Model:
        """Return a model that has learned nothing.

        It keeps up to half as many samples as there are components; to ``keep_all`` takes less
        memory each, in half precision.
        """
        if keep_all:
            return cls(own_map, ALL, Rows.halved())
        return cls(own_map, own_map.n_components // 2, Rows())

    # ---------------------------------------------------------------- what it knows

    @cached_property
    def statistics(self) -> ClassStatistics:
        """Counts, means and scatter of the lifted samples."""
        if self.counted is not None:
            return self.counted
        nothing = ClassStatistics.empty(self.map.n_components, self.map.backend)
        assert self.rows is not None
        parts = ((rows, labels) for rows, labels, _ in self.rows.columns())
        return nothing.change(self._batches(parts), 1)

    @property
    def _made(self) -> ClassStatistics | None:
        """The statistics, if they were made already."""
        return vars(self).get("statistics", self.counted)

    @property
    def is_few(self) -> bool:
        """Whether all samples can be left out at once, whenever that is asked for."""
        return self.rows is not None and len(self.rows) <= EXACT_KERNEL_ROWS

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class, sorted by label; none of classes known by a hint alone."""
        none = dict.fromkeys(self.hints.labels.tolist(), 0)
        if self.rows is not None:
            return dict(sorted((none | self.rows.counts).items()))
        known = zip(self.statistics.labels, self.statistics.counts.tolist(), strict=True)
        return dict(sorted((none | dict(known)).items()))

    @cached_property
    def classes(self) -> np.ndarray:
        """Labels, sorted."""
        return np.array(list(self.counts))

    @property
    def class_counts(self) -> np.ndarray:
        """Samples of each class, in the order of ``classes``."""
        return np.array(list(self.counts.values()), np.int64)

    @property
    def n_features(self) -> int:
        """Length of a row."""
        return self.map.n_features

    @property
    def backend(self) -> Backend:
        """Where the arrays are."""
        return self.map.backend

    @property
    def keeps(self) -> dict[str, int]:
        """How many rows of single samples it keeps, and up to how many samples it keeps them all.

        With more, a few wait until they have been left out once.
        """
        if self.rows is not None:
            return {"rows": len(self.rows), "most_rows": self.most_rows}
        return {"pending": len(self.pending)} if len(self.pending) else {}

    # ---------------------------------------------------------------- verbs

    def add(
        self, rows: Array, labels: Sequence[Label], ids: Sequence[str | None] | None = None
    ) -> Model:
        """Return the model with samples learned, row i of the class ``labels[i]``."""
        kept, pending = None, self.pending
        if self.rows is not None and len(self.rows) + len(labels) <= self.most_rows:
            kept = self.rows.add(rows, labels, ids)
            if kept.exponents is not None:  # learned as they are kept
                rows = kept.rows_at(np.arange(len(self.rows), len(kept)))
        if kept is None or len(kept) > EXACT_KERNEL_ROWS:
            pending = self._not_left_out.add_smallest(rows, labels, MOST_PENDING)
        counted = self._made
        if kept is None or counted is not None:
            known = self.statistics if counted is None else counted
            counted = known.change(self._batches([(rows, labels)]), 1)
        return replace(self, rows=kept, pending=pending, counted=counted)

    @property
    def _not_left_out(self) -> Rows:
        """Samples that no evidence was gathered from: all of them while they are few."""
        if not self.is_few:
            return self.pending
        assert self.rows is not None
        return Rows.of(self.rows.values, self.rows.labels.tolist()) if len(self.rows) else Rows()

    def _batches(self, parts: Any) -> Iterator[Batch]:
        """Lift samples block by block, class by class."""
        for rows, labels in parts:
            names, groups = group_labels(np.asarray(labels))
            for block in row_blocks(len(groups), self.map.n_components, self.backend):
                own = groups[block]
                lifted, order = self.map.lift(rows[block]), np.argsort(own, kind="stable")
                counts = np.bincount(own)
                present = np.flatnonzero(counts)
                if (np.diff(own) < 0).any():
                    lifted = lifted[self.backend.index(order)]
                yield lifted, counts[present], [names[i] for i in present]

    def remove(self, rows: Array, labels: Sequence[Label]) -> Model:
        """Return the model without samples that it has learned.

        A class without samples left is dropped.
        """
        if self.rows is not None:
            return self.remove_at(self.rows.find(rows, labels))
        return self._without(rows, labels, None)

    def remove_at(self, positions: np.ndarray) -> Model:
        """Return the model without samples given by their positions among those kept."""
        assert self.rows is not None
        rows, labels = self.rows.rows_at(positions), self.rows.labels[positions].tolist()
        return self._without(rows, labels, self.rows.without(positions))

    def _without(self, rows: Array, labels: Sequence[Label], kept: Rows | None) -> Model:
        counted, evidence, pending = self._made, self.evidence, self.pending
        if counted is not None:
            counted = counted.change(self._batches([(rows, labels)]), -1)
        if kept is not None and len(kept) <= EXACT_KERNEL_ROWS:
            counted = None  # what it would have been, had it never grown
            evidence, pending = Evidence(), Rows()
        else:
            names, gone = np.unique(np.asarray(labels), return_counts=True)
            pairs = zip(names.tolist(), gone.tolist(), strict=True)
            evidence = evidence.drop({label: n / self.counts[label] for label, n in pairs})
            pending = pending.discard(rows, labels) if len(pending) else pending
        return replace(self, rows=kept, pending=pending, evidence=evidence, counted=counted)

    def drop(self, label: Label) -> tuple[Model, Model]:
        """Return the model without a class, and the class alone: merging it undoes the drop.

        Without the samples, the shared scatter keeps a trace of the class.
        """
        own_hint, hints = self.hints.at(self.hints.of_class(label)), self.hints.drop({label})
        gone = replace(self.empty(), hints=own_hint)
        if self.rows is not None:
            at = self.rows.of_class(label)
            gone = replace(gone, rows=self.rows.at(at))
            return replace(self.remove_at(at), hints=hints), gone
        if not self.counts[label]:
            return replace(self, hints=hints), gone
        known, own = self.statistics, self.pending.of_class(label)
        part = replace(
            gone,
            rows=None,
            pending=self.pending.at(own),
            evidence=self.evidence.only(label),
            counted=known.only(label),
        )
        return (
            replace(
                self,
                hints=hints,
                pending=self.pending.without(own),
                evidence=self.evidence.drop({label: 1.0}),
                counted=known.drop([label]),
            ),
            part,
        )

    def merge(self, other: Model) -> Model:
        """Return the model with all that another one with the same feature map learned."""
        hints = other.hints.drop(self.hints.counts)
        joined = self.hints.add(hints.values, hints.labels.tolist()) if len(hints) else self.hints
        merged = replace(self, hints=joined)
        if not any(other.counts.values()):
            return merged
        if other.rows is None and self.most_rows == ALL:
            raise KldaError(
                "other keeps no ledger, but this learner does: samples would be missing from "
                "it. Merge this learner into the other one instead."
            )
        if other.rows is not None and (self.rows is not None or len(other.rows) <= MOST_PENDING):
            for rows, labels, ids in other.rows.columns():
                merged = merged.add(rows, labels, ids if merged.most_rows == ALL else None)
            return merged
        known, added = self.statistics, other.statistics
        if isinstance(self.map, IdentityMap) and isinstance(other.map, IdentityMap):
            offset = self.backend.asarray(other.map.centre) - self.map.centre
            added = added.shift(offset)
        mine, theirs = self._not_left_out, other._not_left_out
        if len(theirs):
            mine = mine.add(theirs.values, theirs.labels.tolist()).smallest(MOST_PENDING)
        evidence = self.evidence.merge(other.evidence)
        return replace(
            merged, rows=None, pending=mine, evidence=evidence, counted=known.merge(added)
        )

    def subtract(self, part: Model) -> Model:
        """Return the model without all that another one learned, which it learned too.

        It undoes `merge`, but for hints.
        """
        if part.rows is not None:
            if self.rows is not None:
                return self.remove_at(self.rows.find_all(part.rows))
            left = self
            for rows, labels, _ in part.rows.columns():
                left = left.remove(rows, labels)
            return left
        counted = self.statistics.subtract(part.statistics)
        gone = {label: n / self.counts[label] for label, n in part.counts.items() if n}
        pending, own = self.pending, part.pending
        if len(pending) and len(own):
            pending = pending.discard(own.values, own.labels.tolist())
        evidence = self.evidence.drop(gone)
        return replace(self, rows=None, pending=pending, evidence=evidence, counted=counted)

    def since(self, before: Model) -> Model:
        """Return what was learned since: the part that `subtract` takes away again."""
        if self.rows is not None and before.rows is not None:
            new = np.flatnonzero(self.rows.numbers >= before.rows.next_number)
            return replace(self.empty(), rows=self.rows.at(new))
        counted = self.statistics.subtract(before.statistics)
        pending = self.pending
        if len(pending) and len(before.pending):
            known = before.pending
            pending = pending.discard(known.values, known.labels.tolist())
        return replace(self.empty(), rows=None, pending=pending, counted=counted)

    def rename(self, old: Label, new: Label) -> Model:
        """Return the model with a class that has another name; that of another joins the two."""
        joined = new in self.counts
        return replace(
            self,
            rows=None if self.rows is None else self.rows.rename(old, new),
            hints=self.hints.drop({old}) if joined else self.hints.rename(old, new),
            pending=self.pending.rename(old, new),
            evidence=self.evidence.rename(old, new),
            counted=_renamed(self._made, old, new),
        )

    def empty(self) -> Model:
        """Return a model with the same feature map that has learned nothing."""
        return Model.new(self.map, keep_all=self.most_rows == ALL)

    # ---------------------------------------------------------------- storage

    def pack(self, *, with_map: bool = True) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all of it as named arrays and JSON-able values.

        Without the feature map, which has to be given when the model is unpacked, statistics that
        follow from the rows are left out too.
        """
        arrays, meta = self.map.pack() if with_map else ({}, {})
        arrays = add_prefix("map/", arrays)
        classes = list(self.counts)
        meta |= {
            "n_features": self.n_features,
            "classes": classes,
            "counts": list(self.counts.values()),
            "most_rows": self.most_rows,
        }
        for name in ("rows", "hints", "pending"):
            kept: Rows | None = getattr(self, name)
            if kept is not None and (len(kept) or name == "rows"):
                own, meta[name] = kept.pack()
                arrays |= add_prefix(f"{name}/", own)
        if self.rows is None or (with_map and len(self.rows) > self.map.n_components // 2):
            own, meta["statistics"] = self.statistics.pack()
            arrays |= add_prefix("statistics/", own)
        arrays |= add_prefix("evidence/", self.evidence.pack(classes))
        return add_prefix("learn/", arrays), meta

    @classmethod
    def unpack(
        cls,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        backend: Backend,
        own_map: FeatureMap | None = None,
    ) -> Model:
        """Return the model that `pack` described."""
        arrays = strip_prefix("learn/", arrays)
        if own_map is None:
            own_map = unpack_map(strip_prefix("map/", arrays), meta, meta["n_features"], backend)
        rows, hints, pending = (
            Rows.unpack(strip_prefix(f"{name}/", arrays), meta[name]) if name in meta else None
            for name in ("rows", "hints", "pending")
        )
        counts = {k: n for k, n in zip(meta["classes"], meta["counts"], strict=True) if n}
        counted = None
        if "statistics" in meta:
            own = strip_prefix("statistics/", arrays)
            counted = ClassStatistics.unpack(own, meta["statistics"], counts, backend)
        evidence = Evidence.unpack(strip_prefix("evidence/", arrays), meta["classes"])
        model = cls(
            own_map,
            meta["most_rows"],
            rows,
            hints or Rows(),
            pending or Rows(),
            evidence,
            counted,
        )
        known = counted is not None if rows is None else rows.counts == counts
        chunks = [chunk for kept in (rows, hints, pending) if kept for chunk in kept.chunks]
        if not known or any(chunk.shape[1:] != (own_map.n_features,) for chunk in chunks):
            raise ValueError("the parts of the model do not agree with each other")
        return model


def _renamed(known: ClassStatistics | None, old: Label, new: Label) -> ClassStatistics | None:
    """Rename a class of statistics, if they were made and have samples of it."""
    return known if known is None or old not in known.positions else known.rename(old, new)
