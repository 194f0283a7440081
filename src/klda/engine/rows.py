"""Samples that a model keeps as they came: columns with one entry per sample, never changed.

A model keeps all its samples while they are few, or all of them if it is asked to (then in half
precision); a few others wait until they have been left out once. The features of class names, one
row for each class, are such rows too.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Arrays, Meta, Packed, is_torch, on_cpu
from klda.errors import KldaError
from klda.labels import Label, as_python

SampleId = str | int
# Rows in a chunk. A full chunk never changes until one of its samples is forgotten, so a save,
# which names files after their content, writes it once.
CHUNK_ROWS = 4096
# How far rows may be from those learned, relative to their length: encoded in other batches or on
# another machine, they differ a little.
TOLERANCE = 0.01
MATCHED_ROWS = 256  # compared with all rows of their class at once


class NotLearnedError(KldaError):
    """Samples that are to be forgotten were never learned."""

    def __init__(self, label: Label) -> None:
        super().__init__(
            f"These rows were not learned by this model as class {label!r}: nothing was "
            "forgotten. Give exactly the inputs that were learned, with their labels; or give "
            "the label alone to forget the whole class."
        )


def halve(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round rows of any scale to half precision: each is ``halves * 2 ** exponents``."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    exponents = np.frexp(largest)[1].astype(np.int16)
    return np.ldexp(rows, -exponents[:, None]).astype(np.float16), exponents


def _column(values: Sequence[Any]) -> np.ndarray:
    """Return values of any kind as an array."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples in the order they were learned; each verb returns others."""

    chunks: tuple[np.ndarray, ...] = ()  # features of a few thousand samples each
    labels: np.ndarray = field(default_factory=partial(np.empty, 0, object))
    numbers: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))  # ascending
    given: np.ndarray = field(default_factory=partial(np.empty, 0, object))  # ids; None without
    next_number: int = 0  # what the next sample gets; no number is given twice
    # In half precision, features are ``chunk * 2 ** exponent``.
    exponents: np.ndarray | None = None

    @classmethod
    def of(cls, rows: np.ndarray, labels: Sequence[Label]) -> Rows:
        """Return samples, row i of the class ``labels[i]``."""
        return cls().add(rows, labels)

    @classmethod
    def halved(cls) -> Rows:
        """Return no samples; those added are kept in half precision."""
        return cls(exponents=np.empty(0, np.int16))

    def __len__(self) -> int:
        return len(self.numbers)

    # ---------------------------------------------------------------- what it holds

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class, sorted by label."""
        return dict(sorted(Counter(self.labels.tolist()).items()))

    @cached_property
    def values(self) -> np.ndarray:
        """Features ``(n, d)`` of all samples, as learned."""
        return self.rows_at(np.arange(len(self)))

    @cached_property
    def hashes(self) -> np.ndarray:
        """A hash of each row."""
        return _hashes(self.values)

    @cached_property
    def numbers_by_id(self) -> dict[str, int]:
        """Running numbers of the samples that were given ids."""
        pairs = zip(self.given.tolist(), self.numbers.tolist(), strict=True)
        return {name: number for name, number in pairs if name is not None}

    def ids_at(self, positions: np.ndarray) -> list[SampleId]:
        """Ids of samples given by their positions: those they were given, or running numbers."""
        pairs = zip(self.given[positions].tolist(), self.numbers[positions].tolist(), strict=True)
        return [number if name is None else name for name, number in pairs]

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """Features ``(n, d)`` of samples given by their positions, as learned."""
        starts = np.array(self._starts(), np.int64)
        which = np.searchsorted(starts, positions, side="right") - 1
        width, dtype = (self.chunks[0].shape[1], self.chunks[0].dtype) if self.chunks else (0, "f4")
        found = np.empty((len(positions), width), dtype)
        for i in np.unique(which):
            here = which == i
            found[here] = self.chunks[i][positions[here] - starts[i]]
        if self.exponents is None:
            return found
        return np.ldexp(found.astype(np.float32), self.exponents[positions, None])

    def columns(self) -> Iterator[tuple[np.ndarray, list[Label], list[str | None]]]:
        """All samples, a chunk at a time: features, labels, and the ids they were given."""
        for start, chunk in zip(self._starts(), self.chunks, strict=True):
            at = np.arange(start, start + len(chunk))
            yield self.rows_at(at), self.labels[at].tolist(), self.given[at].tolist()

    def of_class(self, label: Label) -> np.ndarray:
        """Positions of the samples of a class."""
        return np.flatnonzero(self.labels == label)

    def of_ids(self, ids: Sequence[SampleId]) -> np.ndarray:
        """Positions of samples given by their ids or running numbers, in the order of `ids`."""
        if not ids:
            raise KldaError("ids is empty: name at least one sample to forget.")
        numbers = []
        for one in map(as_python, ids):
            number = self.numbers_by_id.get(one) if isinstance(one, str) else one
            if isinstance(number, bool) or not isinstance(number, int):
                number = -1
            if not 0 <= number < self.next_number:
                raise KldaError(f"ids names sample {one!r}, which is not in the ledger.")
            numbers.append(number)
        if len(set(numbers)) < len(numbers):
            raise KldaError("ids names a sample twice; name each once.")
        wanted = np.array(numbers, np.int64)
        found = np.isin(wanted, self.numbers)
        if not found.all():
            missing = ids[int(np.flatnonzero(~found)[0])]
            raise KldaError(f"ids names sample {missing!r}, which is not in the ledger.")
        return np.searchsorted(self.numbers, wanted)

    def match(self, rows: Array, labels: Sequence[Label]) -> np.ndarray:
        """Positions of samples given by their features and labels, each once; -1 if not here.

        Features may differ a little from those learned, as they do when the foundation model
        encodes an input in another batch.
        """
        wanted, names = on_cpu(rows), _column(labels)
        if self.exponents is not None:
            wanted = Rows.halved().add(wanted, labels).values
        positions = np.full(len(wanted), -1)
        for label in dict.fromkeys(names.tolist()):
            given, mine = np.flatnonzero(names == label), self.of_class(label)
            found = match_rows(wanted[given], self.rows_at(mine))
            positions[given[found >= 0]] = mine[found[found >= 0]]
        return positions

    def find(self, rows: Array, labels: Sequence[Label]) -> np.ndarray:
        """Positions of samples as `match` gives them; `NotLearnedError` if one is not here."""
        positions = self.match(rows, labels)
        if (positions < 0).any():
            raise NotLearnedError(labels[int(positions.argmin())])
        return positions

    def find_all(self, others: Rows) -> np.ndarray:
        """Positions, all different, of other samples: by the ids they were given, or as `find`.

        An id may have been given to another sample since: it is another label or other features.
        """
        named = np.array([name is not None for name in others.given.tolist()], bool)
        if not named.any():
            return self.find(others.values, others.labels.tolist())
        mine = self.at(np.flatnonzero([name is None for name in self.given.tolist()]))
        rest = others.at(np.flatnonzero(~named))
        unnamed = mine.find(rest.values, rest.labels.tolist())
        pairs = zip(others.given[named].tolist(), others.labels[named].tolist(), strict=True)
        for name, label in pairs:
            if name not in self.numbers_by_id:
                raise NotLearnedError(label)
        by_id = self.of_ids(others.given[named].tolist())
        wanted, found = others.rows_at(np.flatnonzero(named)), self.rows_at(by_id)
        apart = np.linalg.norm(wanted - found, axis=1) > TOLERANCE * np.linalg.norm(found, axis=1)
        if (is_another := apart | (self.labels[by_id] != others.labels[named])).any():
            raise NotLearnedError(others.labels[named][is_another].tolist()[0])
        return np.concatenate([by_id, np.searchsorted(self.numbers, mine.numbers[unnamed])])

    # ---------------------------------------------------------------- verbs

    def add(
        self, rows: Array, labels: Sequence[Label], ids: Sequence[str | None] | None = None
    ) -> Rows:
        """Return these samples and more. A sample without an id goes by its number."""
        given = [None] * len(rows) if ids is None else self._checked_ids(ids, len(rows))
        values, exponents = np.array(on_cpu(rows)), None
        if self.exponents is not None:
            values, more = halve(values)
            exponents = np.concatenate([self.exponents, more])
        grown = list(self.chunks)
        if grown and len(grown[-1]) < CHUNK_ROWS:  # full ones are left alone
            values = np.concatenate([grown.pop(), values])
        grown += [values[i : i + CHUNK_ROWS] for i in range(0, len(values), CHUNK_ROWS)]
        numbers = np.arange(len(labels)) + self.next_number
        return Rows(
            tuple(grown),
            np.concatenate([self.labels, _column(labels)]),
            np.concatenate([self.numbers, numbers]),
            np.concatenate([self.given, _column(given)]),
            self.next_number + len(labels),
            exponents,
        )

    def _starts(self) -> list[int]:
        return np.cumsum([0, *map(len, self.chunks)])[:-1].tolist()

    def at(self, positions: Sequence[int] | np.ndarray) -> Rows:
        """Return some of the samples, with their numbers and ids."""
        kept = np.zeros(len(self), bool)
        kept[np.asarray(positions, np.int64)] = True
        chunks = []
        for start, chunk in zip(self._starts(), self.chunks, strict=True):
            stays = kept[start : start + len(chunk)]
            if stays.any():
                chunks.append(chunk if stays.all() else chunk[stays])
        exponents = None if self.exponents is None else self.exponents[kept]
        columns = self.labels[kept], self.numbers[kept], self.given[kept]
        return Rows(tuple(chunks), *columns, self.next_number, exponents)

    def without(self, positions: Sequence[int] | np.ndarray) -> Rows:
        """Return the other samples: nothing of these is left."""
        return self.at(np.setdiff1d(np.arange(len(self)), positions))

    def drop(self, labels: Collection[Label]) -> Rows:
        """Return the samples without those of some classes."""
        return self.at([i for i, label in enumerate(self.labels) if label not in labels])

    def discard(self, rows: Array, labels: Sequence[Label]) -> Rows:
        """Return the samples but those given, as far as they are here."""
        if not len(self) or not len(labels):
            return self
        positions = self.match(rows, labels)
        return self.without(positions[positions >= 0])

    def smallest(self, most: int) -> Rows:
        """Return at most so many: those with the smallest hashes.

        The choice does not depend on order, batches or merging.
        """
        if len(self) <= most:
            return self
        return self.at(_smallest(self.hashes, self.labels.tolist(), most))

    def add_smallest(self, rows: Array, labels: Sequence[Label], most: int) -> Rows:
        """Add samples and return the `smallest`, without a copy of those that are not chosen."""
        labels = list(labels)
        at = _smallest(_hashes(rows), labels, most) if len(labels) > most else range(len(labels))
        return self.add(rows[list(at)], [labels[i] for i in at]).smallest(most)

    def rename(self, old: Label, new: Label) -> Rows:
        """Return the same samples with one class renamed."""
        labels = self.labels.copy()
        labels[self.of_class(old)] = new
        return replace(self, labels=labels)

    def _checked_ids(self, ids: Sequence[str | None], expected: int) -> list[str | None]:
        given = [as_python(one) for one in ids]
        if len(given) != expected:
            raise KldaError(f"ids has {len(given)} ids for {expected} inputs; give one for each.")
        seen: set[str] = set()
        for one in filter(lambda one: one is not None, given):
            if not isinstance(one, str) or not one:
                raise KldaError(f"ids has {one!r}; ids are texts, such as {str(one) or 'a7'!r}.")
            if one in seen or one in self.numbers_by_id:
                raise KldaError(f"ids has {one!r} twice; give each sample an id of its own.")
            seen.add(one)
        return given

    # ---------------------------------------------------------------- storage

    def pack(self) -> Packed:
        """Return all of it as named arrays and JSON-able values."""
        arrays = {f"features/{i:06}": chunk for i, chunk in enumerate(self.chunks)}
        places = {label: i for i, label in enumerate(self.counts)}
        arrays["labels"] = np.array([places[label] for label in self.labels.tolist()], np.int32)
        arrays["numbers"] = self.numbers
        if self.exponents is not None:
            arrays["exponents"] = self.exponents
        if self.numbers_by_id:
            text = json.dumps(list(self.numbers_by_id), ensure_ascii=False).encode()
            arrays["names"] = np.frombuffer(text, np.uint8)
            arrays["named"] = np.array(list(self.numbers_by_id.values()), np.int64)
        meta = {
            "samples": len(self),
            "chunks": len(self.chunks),
            "labels": list(places),
            "next_number": self.next_number,
        }
        return Packed(arrays, meta)

    @classmethod
    def unpack(cls, arrays: Arrays, meta: Meta) -> Rows:
        """Return what `pack` described; chunks may be lazy mappings of files.

        Raises `ValueError` if the parts can't belong together.
        """
        chunks = tuple(arrays[f"features/{i:06}"] for i in range(meta["chunks"]))
        codes, numbers = np.asarray(arrays["labels"]), np.asarray(arrays["numbers"])
        exponents = np.asarray(arrays["exponents"]) if "exponents" in arrays else None
        named, given = np.asarray(arrays.get("named", ())), np.full(len(numbers), None)
        if len(named):
            given[np.searchsorted(numbers, named)] = json.loads(arrays["names"].tobytes())
        lengths = {len(numbers), len(codes), sum(map(len, chunks))}
        lengths |= set() if exponents is None else {len(exponents)}
        if (
            len(lengths) > 1
            or not (np.diff(numbers, prepend=-1, append=meta["next_number"]) > 0).all()
            or not np.isin(codes, np.arange(len(meta["labels"]))).all()
            or not np.isin(named, numbers).all()
        ):
            raise ValueError("the columns of the kept samples do not agree with each other")
        labels = _column(meta["labels"])[codes]
        return cls(chunks, labels, numbers, given, meta["next_number"], exponents)


def match_rows(wanted: np.ndarray, held: np.ndarray) -> np.ndarray:
    """For each wanted row the position of the held row that is the same, each used once, or -1.

    Rows that are equal bit for bit are found by their bytes; each of the others takes the nearest
    that is left, if that is near enough.
    """
    positions = _equal_rows(wanted.astype(held.dtype, copy=False), held)
    free, left = np.setdiff1d(np.arange(len(held)), positions), np.flatnonzero(positions < 0)
    if not len(free):
        return positions
    others, taken = held[free].astype(np.float64), np.zeros(len(free), bool)
    squares = np.einsum("ij,ij->i", others, others)
    limits = TOLERANCE**2 * np.maximum(squares, np.finfo(np.float64).tiny)
    for start in range(0, len(left), MATCHED_ROWS):
        some = left[start : start + MATCHED_ROWS]
        rows = wanted[some].astype(np.float64)
        lengths = np.einsum("ij,ij->i", rows, rows)
        for i, gaps in zip(some, lengths[:, None] + squares - 2 * rows @ others.T, strict=True):
            gaps[taken] = np.inf
            nearest = int(gaps.argmin())
            if gaps[nearest] <= limits[nearest]:
                positions[i], taken[nearest] = free[nearest], True
    return positions


def _equal_rows(wanted: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the positions of held rows equal to wanted ones, each used once; -1 for none."""
    places: dict[bytes, list[int]] = {}
    for i in range(len(held) - 1, -1, -1):
        places.setdefault(held[i].tobytes(), []).append(i)
    found = (places.get(row.tobytes()) for row in wanted)
    return np.array([those.pop() if those else -1 for those in found], np.int64)


def _smallest(hashes: np.ndarray, labels: Sequence[Label], most: int) -> list[int]:
    """Return the positions of so many rows with the smallest hashes; of equals by label."""
    limit = np.partition(hashes, most - 1)[most - 1]
    near = np.flatnonzero(hashes <= limit).tolist()
    return sorted(sorted(near, key=lambda i: (hashes[i], labels[i], i))[:most])


def _hashes(rows: Array) -> np.ndarray:
    """Return a hash of each row, the same on every machine and device."""
    width = rows.shape[1] * (2 if rows.itemsize == 8 else 1)
    factors = np.random.RandomState(0).randint(1, 1 << 62, width, np.int64) | 1
    if is_torch(rows):
        torch = sys.modules["torch"]
        words = rows.contiguous().view(torch.int32)
        mixed = (words * torch.from_numpy(factors).to(rows.device)).sum(1).cpu().numpy()
    else:
        mixed = np.einsum("ij,j->i", np.ascontiguousarray(rows).view(np.int32), factors)
    hashes = mixed.view(np.uint64)  # modulo 2^64
    hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray(hashes ^ (hashes >> np.uint64(32)))
