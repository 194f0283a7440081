"""An opt-in ledger of what was learned: features in half precision, labels and ids.

With it a class or a single sample can be forgotten exactly, and the model rebuilt with other
parameters, without the texts or images. The model learns the features as the ledger holds them, so
that what is removed later is bit for bit what was learned.

A ledger never changes: each change returns a new one, which shares what stayed the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from klda.engine.held_rows import match_rows
from klda.errors import KldaError
from klda.labels import Label, plain

SampleId = str | int

# Rows in a chunk. A full chunk never changes until one of its samples is forgotten, so a save,
# which names files after their content, writes it once.
CHUNK_ROWS = 4096


def halve(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round rows of any scale to half precision: each is ``halves * 2 ** exponents``."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    exponents = np.frexp(largest)[1].astype(np.int16)
    return np.ldexp(rows, -exponents[:, None]).astype(np.float16), exponents


def restore(halves: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """Return the rows, float32, that `halve` made halves of."""
    return np.ldexp(halves.astype(np.float32), exponents[:, None])


@dataclass(frozen=True)
class NearSample:
    """A learned sample near an input."""

    id: SampleId  # the id it was given, or its running number
    label: Label
    similarity: float  # cosine between the two feature rows


@dataclass(frozen=True)
class Ledger:
    """The samples learned, in the order they were learned: columns with one entry per sample."""

    chunks: tuple[np.ndarray, ...] = ()  # features of a few thousand samples each, as `halve` does
    exponents: np.ndarray = field(default_factory=lambda: np.empty(0, np.int16))
    labels: np.ndarray = field(default_factory=lambda: np.empty(0, object))
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # running, ascending
    given: np.ndarray = field(default_factory=lambda: np.empty(0, object))  # ids; None without
    next_number: int = 0  # what the next sample gets; no number is given twice

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"<Ledger: {len(self)} samples of {len(self.counts)} classes>"

    # ---------------------------------------------------------------- what it holds

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class."""
        return dict(Counter(self.labels.tolist()))

    @cached_property
    def names(self) -> dict[str, int]:
        """Ids that were given to samples, and their running numbers."""
        pairs = zip(self.given.tolist(), self.numbers.tolist(), strict=True)
        return {name: number for name, number in pairs if name is not None}

    @property
    def ids(self) -> list[SampleId]:
        """Id of each sample: the one it was given, or its running number."""
        return self.ids_at(np.arange(len(self)))

    def ids_at(self, positions: np.ndarray) -> list[SampleId]:
        """Ids of samples given by their positions."""
        pairs = zip(self.given[positions].tolist(), self.numbers[positions].tolist(), strict=True)
        return [number if name is None else name for name, number in pairs]

    def labels_at(self, positions: np.ndarray) -> list[Label]:
        """Classes of samples given by their positions."""
        return list(self.labels[positions].tolist())

    def rows_at(self, positions: np.ndarray) -> np.ndarray:
        """Features ``(n, d)`` of samples given by their positions, float32, as learned."""
        starts = np.cumsum([0, *map(len, self.chunks)])
        which = np.searchsorted(starts, positions, side="right") - 1
        width = self.chunks[0].shape[1] if self.chunks else 0
        halves = np.empty((len(positions), width), np.float16)
        for i in np.unique(which):
            here = which == i
            halves[here] = self.chunks[i][positions[here] - starts[i]]
        return restore(halves, self.exponents[positions])

    def batches(self) -> Iterator[tuple[np.ndarray, list[Label]]]:
        """All samples, in their order, a chunk at a time: features and labels."""
        start = 0
        for chunk in self.chunks:
            at = np.arange(start, start + len(chunk))
            yield restore(chunk, self.exponents[at]), self.labels_at(at)
            start += len(chunk)

    def of_class(self, label: Label) -> np.ndarray:
        """Positions of the samples of a class."""
        return np.flatnonzero(self.labels == label)

    def of_ids(self, ids: Sequence[SampleId]) -> np.ndarray:
        """Positions of samples given by their ids or running numbers, in the order of `ids`."""
        if not ids:
            raise KldaError("ids is empty: name at least one sample to forget.")
        numbers = []
        for one in ids:
            name = plain(one)
            number = self.names.get(name) if isinstance(name, str) else name
            if isinstance(number, bool) or not isinstance(number, int):
                raise KldaError(f"ids names sample {one!r}, which is not in the ledger.")
            numbers.append(number)
        if len(set(numbers)) < len(numbers):
            raise KldaError("ids names a sample twice; name each once.")
        wanted = np.array(numbers, np.int64)
        at = np.searchsorted(self.numbers, wanted)
        found = np.isin(wanted, self.numbers)
        if not found.all():
            missing = ids[int(np.flatnonzero(~found)[0])]
            raise KldaError(f"ids names sample {missing!r}, which is not in the ledger.")
        return at

    def find(self, rows: np.ndarray, labels: Sequence[Label]) -> np.ndarray:
        """Positions, all different, of samples given by their features and labels.

        Features may differ a little from those learned, as they do when the foundation model
        encodes an input in another batch.
        """
        names = np.asarray(labels)
        positions = np.empty(len(rows), np.int64)
        for label in dict.fromkeys(names.tolist()):
            wanted = np.flatnonzero(names == label)
            mine = self.of_class(label)
            rounded = restore(*halve(rows[wanted]))
            positions[wanted] = mine[match_rows(rounded, self.rows_at(mine), label)]
        return positions

    def nearest(self, row: np.ndarray, k: int) -> list[NearSample]:
        """Find the k learned samples most like an input, the most similar first."""
        if not len(self):
            return []
        unit = row / max(float(np.linalg.norm(row)), np.finfo(np.float32).tiny)
        parts = []
        for chunk in self.chunks:  # the power of two makes no difference to a cosine
            halves = chunk.astype(np.float32)
            lengths = np.linalg.norm(halves, axis=1)
            parts.append((halves @ unit) / np.maximum(lengths, np.finfo(np.float32).tiny))
        similarity = np.concatenate(parts)
        best = np.argsort(-similarity, kind="stable")[:k]
        found = zip(self.ids_at(best), self.labels_at(best), similarity[best], strict=True)
        return [NearSample(name, label, float(value)) for name, label, value in found]

    # ---------------------------------------------------------------- changes

    def add(
        self,
        rows: np.ndarray,
        labels: Sequence[Label] | np.ndarray,
        ids: Sequence[str | None] | None = None,
    ) -> tuple[Ledger, np.ndarray]:
        """Return a ledger with more samples, and their features as it holds them.

        It is these features that are to be learned. A sample without an id goes by its number.
        """
        halves, exponents = halve(rows)
        given = [None] * len(rows) if ids is None else self._check_ids(ids, len(rows))
        names, numbers = _column(np.asarray(labels).tolist()), np.arange(len(rows))
        batch = Ledger((halves,), exponents, names, numbers, _column(given), len(rows))
        chunks = _appended(self.chunks, halves)
        return replace(self.merge(batch), chunks=chunks), restore(halves, exponents)

    def without(self, positions: np.ndarray) -> Ledger:
        """Return a ledger without some samples: nothing of them is left, others keep their ids."""
        kept = np.ones(len(self), bool)
        kept[positions] = False
        chunks, start = [], 0
        for chunk in self.chunks:
            stays = kept[start : start + len(chunk)]
            start += len(chunk)
            if stays.all():
                chunks.append(chunk)
            elif stays.any():
                chunks.append(chunk[stays])
        return Ledger(
            tuple(chunks),
            self.exponents[kept],
            self.labels[kept],
            self.numbers[kept],
            self.given[kept],
            self.next_number,
        )

    def rename(self, old: Label, new: Label) -> Ledger:
        """Return a ledger in which a class has another name."""
        labels = self.labels.copy()
        labels[self.of_class(old)] = new
        return replace(self, labels=labels)

    def merge(self, other: Ledger) -> Ledger:
        """Return a ledger with the samples of another one after those of this one.

        The other's running numbers go on from this one's; its ids stay, and must differ.
        """
        for name in other.names:
            if name in self.names:
                raise KldaError(
                    f"other has a sample with the id {name!r}, and so has this learner: two "
                    "samples can't have one id. Forget one of them first."
                )
        return Ledger(
            (*self.chunks, *other.chunks),
            np.concatenate([self.exponents, other.exponents]),
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.numbers, other.numbers + self.next_number]),
            np.concatenate([self.given, other.given]),
            self.next_number + other.next_number,
        )

    def _check_ids(self, ids: Sequence[str | None], expected: int) -> list[str | None]:
        given = [plain(one) for one in ids]
        if len(given) != expected:
            raise KldaError(f"ids has {len(given)} ids for {expected} inputs; give one for each.")
        seen: set[str] = set()
        for one in filter(lambda one: one is not None, given):
            if not isinstance(one, str) or not one:
                raise KldaError(f"ids has {one!r}; ids are texts, such as {str(one) or 'a7'!r}.")
            if one in seen or one in self.names:
                raise KldaError(f"ids has {one!r}, which another sample has; give each its own.")
            seen.add(one)
        return given

    # ---------------------------------------------------------------- storage

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all of it as named arrays and JSON-able values."""
        arrays = {f"ledger/features/{i:06}": chunk for i, chunk in enumerate(self.chunks)}
        places = {label: i for i, label in enumerate(self.counts)}
        codes = [places[label] for label in self.labels.tolist()]
        arrays["ledger/exponents"] = self.exponents
        arrays["ledger/labels"] = np.array(codes, np.int32)
        arrays["ledger/numbers"] = self.numbers
        if self.names:
            text = json.dumps(list(self.names), ensure_ascii=False).encode()
            arrays["ledger/names"] = np.frombuffer(text, np.uint8)
            arrays["ledger/named"] = np.array(list(self.names.values()), np.int64)
        meta = {
            "samples": len(self),
            "chunks": len(self.chunks),
            "labels": list(places),
            "next_number": self.next_number,
        }
        return arrays, meta

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Ledger:
        """Return the ledger that `pack` described; chunks may be lazy mappings of files.

        Raises `ValueError` if the parts can't belong together.
        """
        chunks = tuple(arrays[f"ledger/features/{i:06}"] for i in range(meta["chunks"]))
        parts = (arrays[f"ledger/{name}"] for name in ("exponents", "labels", "numbers"))
        exponents, codes, numbers = map(np.asarray, parts)
        given = np.full(len(numbers), None)
        named = np.asarray(arrays.get("ledger/named", np.empty(0, np.int64)))
        if len(named):
            texts = json.loads(np.asarray(arrays["ledger/names"]).tobytes())
            given[np.searchsorted(numbers, named)] = texts
        if (
            len({len(numbers), len(exponents), len(codes), sum(map(len, chunks))}) > 1
            or not (np.diff(numbers, prepend=-1, append=meta["next_number"]) > 0).all()
            or not np.isin(codes, np.arange(len(meta["labels"]))).all()
            or not np.isin(named, numbers).all()
        ):
            raise ValueError("the parts of the ledger do not agree with each other")
        labels = _column(meta["labels"])[codes]
        return cls(chunks, exponents, labels, numbers, given, meta["next_number"])


def _column(values: Sequence[Any]) -> np.ndarray:
    """Return values of any kind as an array."""
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _appended(chunks: tuple[np.ndarray, ...], rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Chunks with rows added: the last one is filled first, full ones are left alone."""
    grown = list(chunks)
    if grown and len(grown[-1]) < CHUNK_ROWS:
        rows = np.concatenate([grown.pop(), rows])
    grown += [rows[i : i + CHUNK_ROWS] for i in range(0, len(rows), CHUNK_ROWS)]
    return tuple(grown)
