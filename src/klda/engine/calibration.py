"""How sure to be, and what is normal: learned from samples that are scored as if never learned.

PLACEHOLDER until research is in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from klda.labels import Label

TEMPERATURES = 2.0 ** np.arange(-6, 12, 0.5)  # in units of the scale's heat
USUAL_TEMPERATURE = 4.0  # where probes leave it open, as they do if no class is ever mistaken
LOG2_SPREAD = 2.0  # of the usual temperature, in octaves
BUCKETS_PER_OCTAVE = 2
MOST_BUCKETS = 4
MOST_ROWS = 2048  # in a bucket
ENOUGH_ROWS = 100  # the nearest buckets are used, as many as it takes for this many rows
ENOUGH_FOR_A_CLASS = 30


@dataclass(frozen=True)
class Scale:
    """On what scale a model's scores are."""

    n_samples: int  # of the model
    inflation: float  # variance of a new sample along a whitened direction: the unit of novelties
    offset: float  # what the noise of a class's own mean adds to the distance of a new sample
    heat: float  # the unit of temperatures

    @property
    def bucket(self) -> int:
        """The bucket of probes of a model of this size."""
        return int(np.floor(BUCKETS_PER_OCTAVE * np.log2(max(self.n_samples, 1))))


@dataclass(frozen=True, eq=False)
class Calibration:
    """What the evidence says about a solution.

    Attributes
    ----------
    temperature : float
        What scores are divided by before they become probabilities.
    labels : list
        Classes of the samples left out.
    novelty : ndarray of shape (n,)
        How novel they would be as new inputs.
    hits : ndarray of shape (n,)
        Whether each got its class for an answer.
    """

    temperature: float = 1.0
    labels: list[Label] = field(default_factory=list)
    novelty: np.ndarray = field(default_factory=partial(np.empty, 0))
    hits: np.ndarray = field(default_factory=partial(np.empty, 0, bool))

    def threshold(self, reject: float) -> float:
        """Return the novelty that a fraction of known inputs exceeds; infinite if unknown."""
        if not len(self.novelty):
            return float("inf")
        return float(np.quantile(self.novelty, 1 - reject))

    def class_thresholds(self, reject: float) -> dict[Label, float]:
        """Return thresholds of single classes, for those with enough samples left out."""
        values: dict[Label, list[float]] = {}
        for label, value in zip(self.labels, self.novelty.tolist(), strict=True):
            values.setdefault(label, []).append(value)
        enough = {label: own for label, own in values.items() if len(own) >= ENOUGH_FOR_A_CLASS}
        return {label: float(np.quantile(own, 1 - reject)) for label, own in enough.items()}

    @property
    def error_rate(self) -> float:
        """Fraction of inputs that are probably mistaken."""
        return float((~self.hits).sum() + 0.5) / (len(self.hits) + 1) if len(self.hits) else 0.0

    def pack(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return named arrays; labels as positions in ``names``."""
        positions = {name: i for i, name in enumerate(names)}
        return {
            "temperature": np.array([self.temperature]),
            "labels": np.array([positions[label] for label in self.labels], np.int64),
            "novelty": self.novelty,
            "hits": self.hits.astype(np.uint8),
        }

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Sequence[Label]) -> Calibration:
        """Return what `pack` described."""
        labels = [names[i] for i in arrays["labels"].tolist()]
        novelty, hits = np.asarray(arrays["novelty"]), np.asarray(arrays["hits"], bool)
        if not len(labels) == len(novelty) == len(hits):
            raise ValueError("the arrays of the calibration differ in length")
        return cls(float(arrays["temperature"][0]), labels, novelty, hits)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Samples that were left out, never changed: each verb returns other evidence."""

    # The bucket of each sample, by the size that the model had; and its class.
    buckets: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    labels: list[Label] = field(default_factory=list)
    # How novel it looked, and ``-log`` of its class's probability at each temperature (a column
    # each), both without the model's `Scale`; and whether its class was the answer.
    novelty: np.ndarray = field(default_factory=partial(np.empty, 0))
    losses: np.ndarray = field(
        default_factory=partial(np.empty, (0, len(TEMPERATURES)), np.float32)
    )
    hits: np.ndarray = field(default_factory=partial(np.empty, 0, bool))

    def __len__(self) -> int:
        return len(self.labels)

    # ---------------------------------------------------------------- verbs

    def add(
        self,
        scale: Scale,
        labels: Sequence[Label],
        scores: np.ndarray,
        truth: np.ndarray,
        novelty: np.ndarray,
    ) -> Evidence:
        """Add samples left out of a model of this scale.

        ``scores`` are theirs, ``truth`` the column of each one's class.
        """
        new = Evidence(
            np.full(len(truth), scale.bucket),
            list(labels),
            (novelty - scale.offset) / scale.inflation,
            _losses(scores / scale.heat, truth),
            scores.argmax(axis=1) == truth,
        )
        return self._with(new)._thinned(scale.bucket)

    def merge(self, other: Evidence) -> Evidence:
        """Add the samples of another model."""
        both = self._with(other)
        return both._thinned(int(both.buckets.max(initial=0)))

    def drop(self, fractions: Mapping[Label, float]) -> Evidence:
        """Drop a fraction of the samples of each class: that which was removed."""
        held = Counter(label for label in self.labels if label in fractions)
        left = {label: round(fractions[label] * n) for label, n in held.items()}
        kept = []
        for i, label in enumerate(self.labels):
            if left.get(label, 0) > 0:
                left[label] -= 1
            else:
                kept.append(i)
        return self._at(np.array(kept, np.int64))

    def only(self, label: Label) -> Evidence:
        """Return the samples of one class."""
        own = [i for i, held in enumerate(self.labels) if held == label]
        return self._at(np.array(own, np.int64))

    def rename(self, old: Label, new: Label) -> Evidence:
        """Give a class another name."""
        return replace(self, labels=[new if label == old else label for label in self.labels])

    def calibration(self, scale: Scale) -> Calibration:
        """Return what it says about a solution of this scale."""
        rows = self._in_use(scale)
        if not len(rows):
            return Calibration()
        unusual = np.log2(TEMPERATURES / USUAL_TEMPERATURE) / LOG2_SPREAD
        loss = self.losses[rows].sum(axis=0, dtype=np.float64) + 0.5 * unusual**2
        temperature = scale.heat * 2.0 ** lowest(np.log2(TEMPERATURES), loss)
        labels = [self.labels[i] for i in rows]
        novelty = self.novelty[rows] * scale.inflation + scale.offset
        return Calibration(float(temperature), labels, novelty, self.hits[rows])

    # ---------------------------------------------------------------- storage

    def pack(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return named arrays; labels as positions in ``names``; nothing if there is none."""
        if not len(self):
            return {}
        positions = {name: i for i, name in enumerate(names)}
        return {
            "buckets": self.buckets,
            "labels": np.array([positions[label] for label in self.labels], np.int64),
            "novelty": self.novelty,
            "losses": self.losses,
            "hits": self.hits.astype(np.uint8),
        }

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Sequence[Label]) -> Evidence:
        """Return what `pack` described."""
        if "losses" not in arrays:
            return cls()
        found = cls(
            np.array(arrays["buckets"], np.int64),
            [names[i] for i in arrays["labels"].tolist()],
            np.array(arrays["novelty"], np.float64),
            np.array(arrays["losses"], np.float32),
            np.array(arrays["hits"], bool),
        )
        columns = (found.labels, found.buckets, found.novelty, found.losses, found.hits)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("the arrays of the evidence differ in length")
        return found

    # ---------------------------------------------------------------- inside

    def _with(self, other: Evidence) -> Evidence:
        return Evidence(
            np.concatenate([self.buckets, other.buckets]),
            [*self.labels, *other.labels],
            np.concatenate([self.novelty, other.novelty]),
            np.concatenate([self.losses, other.losses.astype(np.float32)]),
            np.concatenate([self.hits, other.hits]),
        )

    def _at(self, rows: np.ndarray) -> Evidence:
        labels = [self.labels[i] for i in rows]
        columns = (self.novelty[rows], self.losses[rows], self.hits[rows])
        return Evidence(self.buckets[rows], labels, *columns)

    def _thinned(self, present: int) -> Evidence:
        """Keep the buckets nearest to the present one, each down to its largest size."""
        kept = []
        for bucket in self._by_distance(present)[:MOST_BUCKETS]:
            rows = np.flatnonzero(self.buckets == bucket)
            if len(rows) > MOST_ROWS:
                rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(np.int64)]
            kept.append(rows)
        if not kept or sum(map(len, kept)) == len(self):
            return self
        return self._at(np.sort(np.concatenate(kept)))

    def _in_use(self, scale: Scale) -> np.ndarray:
        rows = np.empty(0, np.int64)
        for bucket in self._by_distance(scale.bucket):
            rows = np.concatenate([np.flatnonzero(self.buckets == bucket), rows])
            if len(rows) >= ENOUGH_ROWS:
                break
        return rows

    def _by_distance(self, present: int) -> np.ndarray:
        """Return all buckets, the nearest first; of two as near the larger first."""
        buckets = np.unique(self.buckets)[::-1]
        return np.asarray(buckets[np.argsort(np.abs(buckets - present), kind="stable")])


def lowest(places: np.ndarray, losses: np.ndarray) -> float:
    """Return where losses at evenly spaced places are lowest: the vertex through three of them."""
    best, shift = int(losses.argmin()), 0.0
    if 0 < best < len(losses) - 1:
        left, here, right = losses[best - 1 : best + 2]
        curvature = left - 2 * here + right
        shift = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(places[best] + shift * (places[1] - places[0]))


def _losses(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """Return ``-log softmax(scores / t)`` of each row's class, one column per temperature.

    Temperatures are half an octave apart, so every second one is half of one before: from the
    hottest two down, exponentials are squares of those before, which is far cheaper.
    """
    shifted = scores - scores.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(truth)), truth]
    losses = np.empty((len(truth), len(TEMPERATURES)))
    for hottest in (len(TEMPERATURES) - 1, len(TEMPERATURES) - 2):
        exponentials = np.exp(shifted / TEMPERATURES[hottest])
        for i in range(hottest, -1, -2):
            losses[:, i] = np.log(exponentials.sum(axis=1)) - own / TEMPERATURES[i]
            np.square(exponentials, out=exponentials)
    return np.minimum(losses, -np.log(np.finfo(np.float64).tiny))
