"""An opt-in ledger of what was learned: features in half precision, labels and ids.

With it a class or a single sample can be forgotten exactly, and the model rebuilt with other
parameters, without the texts or images. The model learns the features as the ledger holds them, so
that what is removed later is bit for bit what was learned.

A ledger never changes: each change returns a new one, which shares what stayed the same.
"""

from __future__ import annotations

import json
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
    """The samples learned, in the order they were learned."""

    chunks: tuple[np.ndarray, ...] = ()  # features of a few thousand samples each, as `halve` does
    exponents: np.ndarray = field(default_factory=lambda: np.empty(0, np.int16))
    labels: tuple[Label, ...] = ()  # the classes
    codes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))  # places in labels
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # running, ascending
    names: dict[str, int] = field(default_factory=dict)  # ids that were given, and their numbers
    next_number: int = 0  # what the next sample gets; no number is given twice

    def __len__(self) -> int:
        return len(self.numbers)

    def __repr__(self) -> str:
        return f"<Ledger: {len(self)} samples of {len(self.counts)} classes>"

    # ---------------------------------------------------------------- what it holds

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class."""
        found = np.bincount(self.codes, minlength=len(self.labels)).tolist()
        return {label: n for label, n in zip(self.labels, found, strict=True) if n}

    @property
    def ids(self) -> list[SampleId]:
        """Id of each sample: the one it was given, or its running number."""
        return self.ids_at(np.arange(len(self)))

    @cached_property
    def _names_by_number(self) -> dict[int, str]:
        return {number: name for name, number in self.names.items()}

    def ids_at(self, positions: np.ndarray) -> list[SampleId]:
        """Ids of samples given by their positions."""
        names = self._names_by_number
        return [names.get(number, number) for number in self.numbers[positions].tolist()]

    def labels_at(self, positions: np.ndarray) -> list[Label]:
        """Classes of samples given by their positions."""
        return [self.labels[code] for code in self.codes[positions].tolist()]

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
        if label not in self.labels:
            return np.empty(0, np.int64)
        return np.flatnonzero(self.codes == self.labels.index(label))

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
        given = np.asarray(labels).tolist()
        classes = tuple(dict.fromkeys(given))
        place = {label: i for i, label in enumerate(classes)}
        codes = np.array([place[label] for label in given], np.int32)
        names = enumerate([] if ids is None else self._check_ids(ids, len(rows)))
        batch = Ledger(
            (halves,),
            exponents,
            classes,
            codes,
            np.arange(len(rows)),
            {one: number for number, one in names if one is not None},
            len(rows),
        )
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
        present, codes = np.unique(self.codes[kept], return_inverse=True)
        gone = set(self.numbers[~kept].tolist())
        return Ledger(
            tuple(chunks),
            self.exponents[kept],
            tuple(self.labels[i] for i in present),
            codes.astype(np.int32),
            self.numbers[kept],
            {name: number for name, number in self.names.items() if number not in gone},
            self.next_number,
        )

    def rename(self, old: Label, new: Label) -> Ledger:
        """Return a ledger in which a class has another name."""
        labels = tuple(new if label == old else label for label in self.labels)
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
        labels = tuple(dict.fromkeys([*self.labels, *other.labels]))
        place = {label: i for i, label in enumerate(labels)}
        translate = np.array([place[label] for label in other.labels], np.int32)
        shift = self.next_number
        return Ledger(
            (*self.chunks, *other.chunks),
            np.concatenate([self.exponents, other.exponents]),
            labels,
            np.concatenate([self.codes, translate[other.codes]]),
            np.concatenate([self.numbers, other.numbers + shift]),
            self.names | {name: number + shift for name, number in other.names.items()},
            shift + other.next_number,
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
        arrays["ledger/exponents"] = self.exponents
        arrays["ledger/labels"] = self.codes
        arrays["ledger/numbers"] = self.numbers
        if self.names:
            text = json.dumps(list(self.names), ensure_ascii=False).encode()
            arrays["ledger/names"] = np.frombuffer(text, np.uint8)
            arrays["ledger/named"] = np.array(list(self.names.values()), np.int64)
        meta = {
            "samples": len(self),
            "chunks": len(self.chunks),
            "labels": list(self.labels),
            "next_number": self.next_number,
        }
        return arrays, meta

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Ledger:
        """Return the ledger that `pack` described; chunks may be lazy mappings of files."""
        names: dict[str, int] = {}
        if "ledger/names" in arrays:
            texts = json.loads(np.asarray(arrays["ledger/names"]).tobytes())
            names = dict(zip(texts, np.asarray(arrays["ledger/named"]).tolist(), strict=True))
        ledger = cls(
            tuple(arrays[f"ledger/features/{i:06}"] for i in range(meta["chunks"])),
            np.asarray(arrays["ledger/exponents"]),
            tuple(meta["labels"]),
            np.asarray(arrays["ledger/labels"]),
            np.asarray(arrays["ledger/numbers"]),
            names,
            meta["next_number"],
        )
        ledger._check_parts()
        return ledger

    def _check_parts(self) -> None:
        """Raise `ValueError` if the parts can't belong together."""
        lengths = {len(self), len(self.exponents), len(self.codes), sum(map(len, self.chunks))}
        steps = np.diff(self.numbers, prepend=-1, append=self.next_number)
        codes = np.clip(self.codes, 0, len(self.labels) - 1)
        if (
            len(lengths) > 1
            or not (steps > 0).all()
            or not np.array_equal(codes, self.codes)
            or not np.isin(list(self.names.values()), self.numbers).all()
        ):
            raise ValueError("the parts of the ledger do not agree with each other")


def _appended(chunks: tuple[np.ndarray, ...], rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """Chunks with rows added: the last one is filled first, full ones are left alone."""
    grown = list(chunks)
    if grown and len(grown[-1]) < CHUNK_ROWS:
        rows = np.concatenate([grown.pop(), rows])
    grown += [rows[i : i + CHUNK_ROWS] for i in range(0, len(rows), CHUNK_ROWS)]
    return tuple(grown)
