"""Samples that a model holds as they came: values that never change, with verbs.

While there are few samples, a model is made of them alone. Later it keeps some for a while, until
they have been left out once for the evidence. The hints of classes are such rows, too.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from klda.engine.arrays import Array, is_torch, on_cpu
from klda.errors import KldaError
from klda.labels import Label, grouped

HASHED_AT_ONCE = 1 << 22  # values
COMPARED_AT_ONCE = 1024  # rows, with as many others
# How far rows may be from those learned, relative to their length: encoded in other batches or on
# another machine, they differ a little.
TOLERANCE = 0.01


class NotLearnedError(KldaError):
    """Samples that are to be forgotten were never learned."""

    def __init__(self, label: Label) -> None:
        super().__init__(
            f"These rows were not learned by this model as class {label!r}: nothing was "
            "forgotten. Give exactly the inputs that were learned, with their labels; or give "
            "the label alone to forget the whole class."
        )


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows with their labels, never changed: each verb returns others."""

    rows: np.ndarray
    labels: list[Label] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def hashes(self) -> np.ndarray:
        """A hash of each row."""
        return _hashes(self.rows)

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class, sorted by label."""
        return dict(sorted(Counter(self.labels).items()))

    @cached_property
    def order(self) -> np.ndarray:
        """An order of the samples that follows from their content: by class, then by hash."""
        keys = zip(self.labels, self.hashes.tolist(), range(len(self)), strict=True)
        return np.array([i for _, _, i in sorted(keys)], np.int64)

    def empty(self) -> LabelledRows:
        """Return no rows, of the same width."""
        return self._at([])

    def grouped(self) -> tuple[np.ndarray, np.ndarray, list[Label]]:
        """Return rows in that order, the class of each as a position, and the classes."""
        labels, groups = grouped(np.array(self.labels)[self.order])
        return self.rows[self.order], groups, labels

    def add(
        self,
        rows: Array,
        groups: np.ndarray,
        labels: Sequence[Label],
        most: int | None = None,
    ) -> LabelledRows:
        """Return these samples and more, row i of ``labels[groups[i]]``.

        With ``most``, at most that many: those with the smallest hashes, so that the choice does
        not depend on order, batches or merging.
        """
        known = len(self)
        if most is None or known + len(rows) <= most:
            more = np.asarray(on_cpu(rows), self.rows.dtype)
            names = [*self.labels, *(labels[group] for group in groups.tolist())]
            return LabelledRows(np.concatenate([self.rows, more]), names)
        hashes = np.concatenate([self.hashes, _hashes(rows)])
        chosen = np.flatnonzero(hashes <= np.partition(hashes, most - 1)[most - 1])
        if len(chosen) > most:  # equal rows, maybe of several classes
            names = [*self.labels, *(labels[group] for group in groups)]
            ranked = sorted((int(hashes[i]), names[i], i) for i in chosen.tolist())
            chosen = np.sort([i for _, _, i in ranked[:most]])
        old, new = chosen[chosen < known], chosen[chosen >= known] - known
        if not len(new):
            return self
        kept = self._at(old).add(rows[new], groups[new], labels)
        vars(kept)["hashes"] = hashes[chosen]  # known already
        return kept

    def join(self, other: LabelledRows, most: int | None = None) -> LabelledRows:
        """Return these samples and others; ``most`` as for `add`."""
        return self.add(other.rows, np.arange(len(other)), other.labels, most)

    def discard(self, rows: Array, labels: Sequence[Label]) -> LabelledRows:
        """Return these samples but those given, as far as they are here."""
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

    def without(self, rows: Array, labels: Sequence[Label]) -> LabelledRows:
        """Return these samples but those given; raise if one of them is not here."""
        wanted, gone = np.asarray(on_cpu(rows), self.rows.dtype), set()
        for label in dict.fromkeys(labels):
            mine = [i for i, own in enumerate(self.labels) if own == label]
            given = [i for i, own in enumerate(labels) if own == label]
            found = match_rows(wanted[given], self.rows[mine], label)
            gone |= {mine[i] for i in found.tolist()}
        return self._at([i for i in range(len(self)) if i not in gone])

    def drop(self, labels: Collection[Label]) -> LabelledRows:
        """Return these samples without those of some classes."""
        return self._at([i for i, label in enumerate(self.labels) if label not in labels])

    def only(self, label: Label) -> LabelledRows:
        """Return those of one class."""
        return self._at([i for i, own in enumerate(self.labels) if own == label])

    def rename(self, old: Label, new: Label) -> LabelledRows:
        """Return the same samples with one class renamed."""
        names = [new if label == old else label for label in self.labels]
        return LabelledRows(self.rows, names)

    def by_label(self) -> dict[Label, np.ndarray]:
        """Return the row of each class, if there is one of each."""
        return dict(zip(self.labels, self.rows, strict=True))

    def _at(self, chosen: Sequence[int] | np.ndarray) -> LabelledRows:
        at = np.asarray(chosen, np.int64)
        return LabelledRows(self.rows[at], [self.labels[i] for i in at.tolist()])


def match_rows(wanted: np.ndarray, held: np.ndarray, label: Label) -> np.ndarray:
    """For each wanted row the position of the held row that is the same, each used once.

    Rows that are equal to the last bit are found by their bytes; the others are compared, those
    nearest to a held row first. Raises if a row of this class is not there.
    """
    if len(wanted) > len(held):
        raise NotLearnedError(label)
    positions = _equal_rows(wanted, held)
    left = np.flatnonzero(positions < 0)
    free = np.setdiff1d(np.arange(len(held)), positions)
    wanted, held = wanted[left], held[free]
    nearest, squared = _nearest(wanted, held)
    taken = np.zeros(len(held), bool)
    for i in np.argsort(squared, kind="stable"):  # the surest first
        best, distance = nearest[i], squared[i]
        if taken[best]:
            others = np.flatnonzero(~taken)
            near, far = _nearest(wanted[i : i + 1], held[others])
            best, distance = others[near[0]], far[0]
        length = float(np.square(held[best], dtype=np.float64).sum())
        if distance > TOLERANCE**2 * max(length, np.finfo(np.float64).tiny):
            raise NotLearnedError(label)
        taken[best] = True
        positions[left[i]] = free[best]
    return positions


def _equal_rows(wanted: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the positions of held rows equal to wanted ones, each used once; -1 for none."""
    places: dict[bytes, list[int]] = {}
    for i in range(len(held) - 1, -1, -1):
        places.setdefault(held[i].tobytes(), []).append(i)
    found = (places.get(row.tobytes()) for row in wanted)
    return np.array([those.pop() if those else -1 for those in found], np.int64)


def _nearest(rows: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest held row of each row, and its squared distance, a tile at a time."""
    nearest, squared = np.zeros(len(rows), np.int64), np.full(len(rows), np.inf)
    for start in range(0, len(rows), COMPARED_AT_ONCE):
        part = slice(start, start + COMPARED_AT_ONCE)
        here = rows[part].astype(np.float64)
        for first in range(0, len(held), COMPARED_AT_ONCE):
            there = held[first : first + COMPARED_AT_ONCE].astype(np.float64)
            lengths = (here**2).sum(axis=1)[:, None] + (there**2).sum(axis=1)
            distances = lengths - 2 * here @ there.T
            best = distances.argmin(axis=1)
            distance = np.take_along_axis(distances, best[:, None], axis=1)[:, 0]
            closer = distance < squared[part]
            nearest[part] = np.where(closer, first + best, nearest[part])
            squared[part] = np.where(closer, distance, squared[part])
    return nearest, squared


def _hashes(rows: Array) -> np.ndarray:
    """Return a hash of each row, the same on every machine; only hashes leave a GPU."""
    integers = sys.modules["torch"] if is_torch(rows) else np
    factors = _hash_factors(rows.shape[1])
    if is_torch(rows):
        factors = integers.from_numpy(factors).to(rows.device)
    hashes = np.empty(len(rows), np.uint64)
    step = max(1, HASHED_AT_ONCE // rows.shape[1])
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        part = part.contiguous() if is_torch(part) else np.ascontiguousarray(part)
        words = part.view(integers.int32 if part.itemsize == 4 else integers.int64)
        mixed = on_cpu((words * factors).sum(1)).view(np.uint64)  # modulo 2^64
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
        hashes[start : start + step] = mixed ^ (mixed >> np.uint64(32))
    return hashes


@lru_cache(maxsize=4)
def _hash_factors(width: int) -> np.ndarray:
    return np.random.RandomState(0).randint(1, 1 << 62, width, np.int64) | 1
