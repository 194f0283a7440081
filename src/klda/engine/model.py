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
from klda.engine.calibration import MOST_PENDING, Evidence
from klda.engine.feature_map import FeatureMap, IdentityMap, unpack_map
from klda.engine.rows import Rows
from klda.engine.statistics import Batch, ClassStatistics
from klda.errors import KldaError
from klda.labels import Label, group_labels

# Up to how many samples the exact kernel is used. Within the training rows of fifteen sets it gains
# 0.6 points from 513 to 768 samples, and 0.2 from 769 to 1,300; solving takes the cube of their
# number, at 768 two to three times as long as an update of the random features' statistics.
EXACT_KERNEL_ROWS = 768
ALL = 1 << 62


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
    # One row per class, what its name says; not among the counts.
    hints: Rows = field(default_factory=Rows)
    evidence: Evidence = field(default_factory=Evidence)  # what leaving samples out has told
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
        return cls(feature_map, feature_map.n_components // 2, Rows())

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
    def is_few(self) -> bool:
        """Whether all samples are kept, and few enough for the exact kernel between them."""
        return self.rows is not None and len(self.rows) <= EXACT_KERNEL_ROWS

    @property
    def keeps_all(self) -> bool:
        """Whether all samples are kept, however many there are."""
        return self.most_rows == ALL

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class, sorted by label; none of classes known by a hint alone."""
        none = dict.fromkeys(self.hints.labels.tolist(), 0)
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
        return {"pending": n} if (n := len(self.evidence.pending)) else {}

    def has_same_samples(self, other: Model) -> bool:
        """Whether another model has learned the same, to the last bit."""
        mine, theirs = self.rows, other.rows
        if mine is None and theirs is None:
            found, wanted = (one.statistics.pack().arrays for one in (self, other))
            same = ("means", "triangle")
            return all(np.array_equal(found.get(key, ()), wanted.get(key, ())) for key in same)
        if mine is None or theirs is None or mine.labels.tolist() != theirs.labels.tolist():
            return False
        pairs = zip(mine.columns(), theirs.columns(), strict=False)
        return all(np.array_equal(rows, others) for (rows, _, _), (others, _, _) in pairs)

    # ---------------------------------------------------------------- verbs

    def add(
        self, rows: Array, labels: Sequence[Label], ids: Sequence[str | None] | None = None
    ) -> Model:
        """Return the model with samples learned, row i of the class ``labels[i]``."""
        kept, evidence = None, self.evidence
        if self.rows is not None and len(self.rows) + len(labels) <= self.most_rows:
            kept = self.rows.add(rows, labels, ids)
            if kept.exponents is not None:  # learned as they are kept
                rows = kept.rows_at(np.arange(len(self.rows), len(kept)))
        if kept is None or len(kept) > EXACT_KERNEL_ROWS:
            evidence = self._whole_evidence.learned(rows, labels)
        counted = self.counted if kept is not None else self.statistics
        if counted is not None:
            counted = counted.change(self._batches([(rows, labels)]), 1)
        return replace(self, rows=kept, evidence=evidence, counted=counted)

    @property
    def _whole_evidence(self) -> Evidence:
        """The evidence with all samples that were not left out: while they are few, all of them."""
        if not self.is_few or not self.rows:
            return self.evidence
        return Evidence().learned(self.rows.values, self.rows.labels.tolist())

    def without_evidence(self) -> Model:
        """Return the model for a rule with other parameters: its samples are yet to be left out.

        Without the samples, the evidence of the rule before stays.
        """
        if self.rows is None:
            return self
        evidence = Evidence()
        if not self.is_few:
            for rows, labels, _ in self.rows.columns():
                evidence = evidence.learned(rows, labels)
        return replace(self, evidence=evidence)

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
        return replace(self, evidence=self.evidence.without(gone, rows, labels), counted=counted)

    def remove_at(self, positions: np.ndarray) -> Model:
        """Return the model without samples given by their positions among those kept."""
        assert self.rows is not None
        kept, counted = self.rows.without(positions), self.counted
        if len(kept) <= EXACT_KERNEL_ROWS:  # what it would have been, had it never grown
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
        own_hint, hints = self.hints.at(self.hints.of_class(label)), self.hints.drop({label})
        gone = replace(self.empty(), hints=own_hint)
        if self.rows is not None:
            at = self.rows.of_class(label)
            gone = replace(gone, rows=self.rows.at(at))
            return replace(self.remove_at(at), hints=hints), gone
        if not self.counts[label]:
            return replace(self, hints=hints), gone
        known, (left, own) = self.statistics, self.evidence.drop(label)
        part = replace(gone, rows=None, evidence=own, counted=known.only(label))
        return replace(self, hints=hints, evidence=left, counted=known.drop([label])), part

    def merge(self, other: Model) -> Model:
        """Return the model with all that another one with the same feature map learned."""
        hints = other.hints.drop(self.hints.counts)
        joined = self.hints.add(hints.values, hints.labels.tolist()) if len(hints) else self.hints
        merged = replace(self, hints=joined)
        if not any(other.counts.values()):
            return merged
        if other.rows is None and self.keeps_all:
            raise KldaError(
                "other keeps no ledger, but this learner does: samples would be missing from "
                "it. Merge this learner into the other one instead."
            )
        if other.rows is not None and (self.rows is not None or len(other.rows) <= MOST_PENDING):
            for rows, labels, ids in other.rows.columns():
                merged = merged.add(rows, labels, ids if merged.keeps_all else None)
            return merged
        known, added = self.statistics, other.statistics
        if isinstance(self.map, IdentityMap) and isinstance(other.map, IdentityMap):
            offset = self.backend.asarray(other.map.centre) - self.map.centre
            added = added.shift(offset)
        evidence = self._whole_evidence.merge(other._whole_evidence)
        return replace(merged, rows=None, evidence=evidence, counted=known.merge(added))

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
        counted, pending = self.statistics.merge(part.statistics, -1), part.evidence.pending
        gone = {label: n / self.counts[label] for label, n in part.counts.items() if n}
        evidence = self.evidence.without(gone, pending.values, pending.labels.tolist())
        return replace(self, rows=None, evidence=evidence, counted=counted)

    def beyond(self, other: Model) -> Model:
        """Return what this one has learned beyond another that it was, or will be, made of."""
        if self.rows is not None and other.rows is not None:
            more = ~np.isin(self.rows.numbers, other.rows.numbers)
            return replace(self.empty(), rows=self.rows.at(np.flatnonzero(more)))
        counted = self.statistics.merge(other.statistics, -1)
        known = other.evidence.pending
        pending = self.evidence.pending.discard(known.values, known.labels.tolist())
        evidence = Evidence(pending=pending)
        return replace(self.empty(), rows=None, evidence=evidence, counted=counted)

    def rename(self, old: Label, new: Label) -> Model:
        """Return the model with a class that has another name; that of another joins the two."""
        joined, counted = new in self.counts, self.counted
        if counted is not None and old in counted.positions:
            counted = counted.rename(old, new)
        return replace(
            self,
            rows=None if self.rows is None else self.rows.rename(old, new),
            hints=self.hints.drop({old}) if joined else self.hints.rename(old, new),
            evidence=self.evidence.rename(old, new),
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
        some = {"rows": self.rows, "hints": self.hints, "pending": self.evidence.pending}
        for name, kept in some.items():
            if kept is not None and (len(kept) or name == "rows"):
                packed.put(name, kept.pack())
        if self.rows is None or (with_map and len(self.rows) > self.map.n_components // 2):
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
        rows, hints, pending = (
            Rows.unpack(*packed.part(name)) if name in meta else None
            for name in ("rows", "hints", "pending")
        )
        counts = {k: n for k, n in zip(meta["classes"], meta["counts"], strict=True) if n}
        counted = None
        if "statistics" in meta:
            counted = ClassStatistics.unpack(*packed.part("statistics"), counts, backend)
        evidence = Evidence.unpack(strip_prefix("evidence/", arrays), meta["classes"])
        evidence = replace(evidence, pending=pending or Rows())
        model = cls(feature_map, meta["most_rows"], rows, hints or Rows(), evidence, counted)
        known = counted is not None if rows is None else rows.counts == counts
        chunks = [chunk for kept in (rows, hints, pending) if kept for chunk in kept.chunks]
        if not known or any(chunk.shape[1:] != (feature_map.n_features,) for chunk in chunks):
            raise ValueError("the parts of the model do not agree with each other")
        return model
