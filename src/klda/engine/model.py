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

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from klda.engine import sizes
from klda.engine.arrays import (
    Array,
    Arrays,
    Backend,
    Meta,
    Packed,
    add_prefix,
    is_finite,
    row_blocks,
    strip_prefix,
)
from klda.engine.calibration import Evidence
from klda.engine.feature_map import FeatureMap, IdentityMap, unpack_map
from klda.engine.rows import Rows
from klda.engine.statistics import Batch, ClassStatistics
from klda.errors import KldaError
from klda.labels import Label, group_labels

ALL = 1 << 62  # as the most rows to keep
COMPARED_AT_ONCE = 4096  # rows


class DamagedModelError(KldaError):
    """What was stored for learning is damaged."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"What was stored for learning is damaged: {reason}. Restore the model from a copy."
        )


@dataclass(frozen=True, eq=False)
class Model:
    """All that was learned."""

    map: FeatureMap  # from a row to its features
    # Rows are kept while there are at most this many samples; `ALL` keeps them always.
    most_rows: int
    rows: Rows | None  # the samples, if all that were learned are kept
    # Features of the names of classes, one row per class; not among the counts.
    name_rows: Rows = field(default_factory=Rows)
    # Of larger models: what leaving samples out has told, and some of the samples learned since,
    # which are yet to be left out.
    evidence: Evidence = field(default_factory=Evidence)
    pending: Rows = field(default_factory=Rows)
    # The statistics; None until they are needed, while the rows say the same.
    counted: ClassStatistics | None = None

    @classmethod
    def new(cls, feature_map: FeatureMap, *, keep_all: bool = False) -> Model:
        """Return a model that has learned nothing.

        It keeps the rows of up to half as many samples as there are components. With ``keep_all``
        it keeps them all, in half precision.
        """
        if keep_all:
            return cls(feature_map, ALL, Rows.halved())
        return cls(feature_map, sizes.most_rows(feature_map.n_components), Rows())

    # ---------------------------------------------------------------- what it knows

    @property
    def statistics(self) -> ClassStatistics:
        """Counts, means and scatter of the lifted samples."""
        if self.counted is None:
            assert self.rows is not None
            nothing = ClassStatistics.empty(self.map.n_components, self.map.backend)
            parts = ((rows, labels) for rows, labels, _ in self.rows.columns())
            object.__setattr__(self, "counted", nothing.change(self._batches(parts), 1))
        assert self.counted is not None
        return self.counted

    @property
    def is_small(self) -> bool:
        """Whether all samples are kept, and few enough to be used themselves whenever it is solved.

        Then the features are the exact kernel between them, unless the rule is LDA's alone, and to
        calibrate it, all of them are left out.
        """
        return self.rows is not None and len(self.rows) <= sizes.EXACT_KERNEL_ROWS

    @property
    def keeps_all(self) -> bool:
        """Whether all samples are kept, however many there are."""
        return self.most_rows == ALL

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class, sorted by label; none of classes known by name alone."""
        none = dict.fromkeys(self.name_rows.labels.tolist(), 0)
        if self.rows is not None:
            return dict(sorted((none | self.rows.counts).items()))
        known = zip(self.statistics.labels, self.statistics.counts.tolist(), strict=True)
        return dict(sorted((none | dict(known)).items()))

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
        """Number of sample rows stored, and the limit up to which all are.

        Beyond that limit, only samples that are yet to be left out for calibration are stored.
        """
        if self.rows is not None:
            return {"rows": len(self.rows), "most_rows": self.most_rows}
        return {"pending": n} if (n := len(self.pending)) else {}

    def has_same_samples(self, other: Model) -> bool:
        """Whether another model has learned the same, to the last bit."""
        mine, theirs = self.rows, other.rows
        if mine is None and theirs is None:
            found, wanted = (one.statistics.pack().arrays for one in (self, other))
            same = ("means", "triangle")
            return all(np.array_equal(found.get(key, ()), wanted.get(key, ())) for key in same)
        if mine is None or theirs is None or mine.labels.tolist() != theirs.labels.tolist():
            return False
        blocks = np.array_split(np.arange(len(mine)), len(mine) // COMPARED_AT_ONCE + 1)
        return all(np.array_equal(mine.rows_at(at), theirs.rows_at(at)) for at in blocks)

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
        if kept is None or len(kept) > sizes.EXACT_KERNEL_ROWS:
            pending = self._all_pending.add_smallest(rows, labels, sizes.MOST_PENDING)
        counted = self.counted if kept is not None else self.statistics
        if counted is not None:
            counted = counted.change(self._batches([(rows, labels)]), 1)
        return replace(self, rows=kept, pending=pending, counted=counted)

    @property
    def _all_pending(self) -> Rows:
        """Some of the samples that were not left out: while they are few, of all of them."""
        if not self.is_small or not self.rows:
            return self.pending
        return Rows().add_smallest(self.rows.values, self.rows.labels.tolist(), sizes.MOST_PENDING)

    def without_evidence(self) -> Model:
        """Return the model for a rule with other parameters: its samples are yet to be left out.

        Without the samples, the evidence of the rule before stays.
        """
        if self.rows is None:
            return self
        pending = Rows()
        if not self.is_small:
            for rows, labels, _ in self.rows.columns():
                pending = pending.add_smallest(rows, labels, sizes.MOST_PENDING)
        return replace(self, evidence=Evidence(), pending=pending)

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
        gone = {label: n / self.counts[label] for label, n in Counter(labels).items()}
        counted = self.statistics.change(self._batches([(rows, labels)]), -1)
        evidence, pending = self.evidence.without(gone), self.pending.discard(rows, labels)
        return replace(self, evidence=evidence, pending=pending, counted=counted)

    def remove_at(self, positions: np.ndarray) -> Model:
        """Return the model without samples given by their positions among those kept."""
        assert self.rows is not None
        kept, counted = self.rows.without(positions), self.counted
        if len(kept) <= sizes.EXACT_KERNEL_ROWS:  # what it would have been, had it never grown
            counted = None
        elif counted is not None:
            gone = self.rows.rows_at(positions), self.rows.labels[positions].tolist()
            counted = counted.change(self._batches([gone]), -1)
        # Samples that were left out beside these tell nothing of the model without them.
        return replace(self, rows=kept, counted=counted).without_evidence()

    def split(self, label: Label) -> tuple[Model, Model]:
        """Return the model without a class, and the class alone: merging the two undoes it.

        Without the samples, the shared scatter keeps a trace of the class.
        """
        own_name = self.name_rows.at(self.name_rows.of_class(label))
        name_rows = self.name_rows.drop({label})
        gone = replace(self.empty(), name_rows=own_name)
        if self.rows is not None:
            at = self.rows.of_class(label)
            gone = replace(gone, rows=self.rows.at(at))
            return replace(self.remove_at(at), name_rows=name_rows), gone
        if not self.counts[label]:
            return replace(self, name_rows=name_rows), gone
        known, at = self.statistics, self.pending.of_class(label)
        left, own = self.evidence.split(label)
        gone = replace(gone, rows=None, evidence=own, pending=self.pending.at(at))
        kept = replace(self, name_rows=name_rows, evidence=left, pending=self.pending.without(at))
        return (
            replace(kept, counted=known.drop([label])),
            replace(gone, counted=known.only(label)),
        )

    def merge(self, other: Model) -> Model:
        """Return the model with all that another one with the same feature map learned."""
        more = other.name_rows.drop(self.name_rows.counts)
        joined = (
            self.name_rows.add(more.values, more.labels.tolist()) if len(more) else self.name_rows
        )
        merged = replace(self, name_rows=joined)
        if not any(other.counts.values()):
            return merged
        if other.rows is None and self.keeps_all:
            raise KldaError(
                "other keeps no ledger, but this learner does: samples would be missing from "
                "it. Merge this learner into the other one instead."
            )
        are_few = other.rows is not None and len(other.rows) <= sizes.MOST_PENDING
        if other.rows is not None and (self.rows is not None or are_few):
            for rows, labels, ids in other.rows.columns():
                merged = merged.add(rows, labels, ids if merged.keeps_all else None)
            return merged
        known, added = self.statistics, other.statistics
        if isinstance(self.map, IdentityMap) and isinstance(other.map, IdentityMap):
            offset = self.backend.asarray(other.map.centre) - self.map.centre
            added = added.shift(offset)
        pending, more = self._all_pending, other._all_pending
        if len(more):
            pending = pending.add_smallest(more.values, more.labels.tolist(), sizes.MOST_PENDING)
        evidence, counted = self.evidence.merge(other.evidence), known.merge(added)
        return replace(merged, rows=None, evidence=evidence, pending=pending, counted=counted)

    def subtract(self, part: Model) -> Model:
        """Return the model without all that another one learned, which it learned too.

        It undoes `merge`, but for name rows.
        """
        if part.rows is not None:
            if self.rows is not None:
                return self.remove_at(self.rows.find_all(part.rows))
            left = self
            for rows, labels, _ in part.rows.columns():
                left = left.remove(rows, labels)
            return left
        counted = self.statistics.merge(part.statistics, -1)
        gone = {label: n / self.counts[label] for label, n in part.counts.items() if n}
        pending = self.pending.discard(part.pending.values, part.pending.labels.tolist())
        evidence = self.evidence.without(gone)
        return replace(self, rows=None, evidence=evidence, pending=pending, counted=counted)

    def beyond(self, other: Model) -> Model:
        """Return what this one has learned beyond another that it was, or will be, made of."""
        if self.rows is not None and other.rows is not None:
            more = ~np.isin(self.rows.numbers, other.rows.numbers)
            return replace(self.empty(), rows=self.rows.at(np.flatnonzero(more)))
        counted = self.statistics.merge(other.statistics, -1)
        pending = self.pending.discard(other.pending.values, other.pending.labels.tolist())
        return replace(self.empty(), rows=None, pending=pending, counted=counted)

    def rename(self, old: Label, new: Label) -> Model:
        """Return the model with a class that has another name; that of another joins the two."""
        joined, counted = new in self.counts, self.counted
        if counted is not None and old in counted.positions:
            counted = counted.rename(old, new)
        return replace(
            self,
            rows=None if self.rows is None else self.rows.rename(old, new),
            name_rows=self.name_rows.drop({old}) if joined else self.name_rows.rename(old, new),
            evidence=self.evidence.rename(old, new),
            pending=self.pending.rename(old, new),
            counted=counted,
        )

    def empty(self) -> Model:
        """Return a model with the same feature map that has learned nothing."""
        return Model.new(self.map, keep_all=self.keeps_all)

    # ---------------------------------------------------------------- storage

    def pack(self, *, with_map: bool = True) -> Packed:
        """Return all of it as named arrays and JSON-able values.

        Without the feature map, which has to be given when the model is unpacked, statistics that
        follow from the rows are left out too.
        """
        arrays, meta = self.map.pack() if with_map else ({}, {})
        classes = list(self.counts)
        meta |= {
            "n_features": self.n_features,
            "classes": classes,
            "counts": list(self.counts.values()),
            "most_rows": self.most_rows,
        }
        evidence = add_prefix("evidence/", self.evidence.pack(classes))
        packed = Packed(add_prefix("map/", arrays) | evidence, meta)
        some = {"rows": self.rows, "name_rows": self.name_rows, "pending": self.pending}
        for name, kept in some.items():
            if kept is not None and (len(kept) or name == "rows"):
                packed.put(name, kept.pack())
        most = sizes.most_rows(self.map.n_components)
        if self.rows is None or (with_map and len(self.rows) > most):
            packed.put("statistics", self.statistics.pack())
        return Packed(add_prefix("learn/", packed.arrays), meta)

    @classmethod
    def unpack(
        cls, arrays: Arrays, meta: Meta, backend: Backend, feature_map: FeatureMap | None = None
    ) -> Model:
        """Return the model that `pack` described; its arrays may have been damaged since."""
        packed = Packed(strip_prefix("learn/", arrays), dict(meta))
        for name, array in packed.arrays.items():
            if not is_finite(array):
                raise DamagedModelError(f"{name!r} holds values that are not finite")
        try:
            return cls._unpacked(packed, backend, feature_map)
        except MemoryError:
            raise
        except Exception as error:  # values that can't be right may raise anything
            raise DamagedModelError(f"{type(error).__name__}: {error}") from error

    @classmethod
    def _unpacked(cls, packed: Packed, backend: Backend, feature_map: FeatureMap | None) -> Model:
        arrays, meta = packed
        if feature_map is None:
            feature_map = unpack_map(
                strip_prefix("map/", arrays), meta, meta["n_features"], backend
            )
        rows, name_rows, pending = (
            Rows.unpack(*packed.part(name)) if name in meta else None
            for name in ("rows", "name_rows", "pending")
        )
        counts = {k: n for k, n in zip(meta["classes"], meta["counts"], strict=True) if n}
        counted = None
        if "statistics" in meta:
            counted = ClassStatistics.unpack(*packed.part("statistics"), counts, backend)
        evidence = Evidence.unpack(strip_prefix("evidence/", arrays), meta["classes"])
        model = cls(
            feature_map,
            meta["most_rows"],
            rows,
            name_rows or Rows(),
            evidence,
            pending or Rows(),
            counted,
        )
        known = counted is not None if rows is None else rows.counts == counts
        chunks = [chunk for kept in (rows, name_rows, pending) if kept for chunk in kept.chunks]
        if not known or any(chunk.shape[1:] != (feature_map.n_features,) for chunk in chunks):
            raise ValueError("the parts of the model do not agree with each other")
        return model
