"""Calibration: temperature, novelty threshold and expected accuracy, from leave-one-out scores.

Samples are scored as if they had not been learned (`klda.engine.leave_one_out`). `Evidence` keeps a
few numbers of each: the loss of its class at a range of temperatures, its novelty, and whether its
class was the answer. Leave-one-out scores share almost all of their samples, so their hits vary
twice as much as independent ones would: each counts as half a sample.

Everything is relative to a unit, half the typical squared distance between two class means, because
scores grow with it.

- The temperature is the likeliest one under a prior: ``0.8 unit / sqrt(M)`` for M classes, give or
  take one octave downwards and two upwards.
- The threshold of novelty is a quantile of the evidence, combined with a prior worth ten samples.
  With one sample per class nothing can be left out, and no input is called unknown.

While the samples are few, the evidence is computed from all of them whenever it is needed. Later
only new samples are left out, and the result is kept: it counts until the model has twice as many
samples as it had then.

The constants were chosen by cross-validation within the training rows of fifteen sets of texts
(intents, topics, opinions, moods; five languages), from one sample per class to all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import NormalDist

import numpy as np
import scipy

from klda.engine.leave_one_out import leave_one_out
from klda.engine.rows import Rows
from klda.engine.shrinkage import log_priors
from klda.engine.solve import Solved
from klda.labels import Label

COUNTS_AS = 0.5  # sample that one left out is worth
USUAL_TEMPERATURE = 0.8  # of the unit, divided by the root of the number of classes
COLDER, HOTTER = 1.0, 2.0  # octaves: how far from the usual one a temperature is expected to be
OCTAVES = np.arange(-5, 10.5, 0.5)  # temperatures that are tried, relative to the usual one
USUAL_NOVELTY = NormalDist(0.5, 0.13)  # of known inputs, in units
WORTH = 10  # samples left out that what is usual of novelty is worth
ENOUGH_FOR_A_CLASS = 30  # samples left out
MOST_KEPT = 2048  # samples left out: the latest ones
ENOUGH = 100  # samples left out; of a model that has grown fast, older ones count up to so many
MOST_PROBED = 1 << 24  # samples left out, times classes
PROBED_AT_ONCE = 1 << 21


@dataclass(frozen=True, eq=False)
class Calibration:
    """What samples left out tell about a solution.

    Attributes
    ----------
    temperature : float
        What scores are divided by before they become probabilities.
    unit : float
        Half the typical squared distance between two class means.
    labels : list
        Classes of the samples left out.
    novelty : ndarray of shape (n,)
        How novel they look.
    hits : float
        Fraction of answers that are right.
    worth : float
        How many independent samples that is known from; 0 if no sample could be left out.
    right : ndarray of shape (n,)
        Which of the samples left out got the right answer; empty if that was not stored.
    """

    temperature: float = 1.0
    unit: float = 1.0
    labels: list[Label] = field(default_factory=list)
    novelty: np.ndarray = field(default_factory=partial(np.empty, 0))
    hits: float = 0.0
    worth: float = 0.0
    right: np.ndarray = field(default_factory=partial(np.empty, 0, bool))

    def threshold(self, reject: float) -> float:
        """Return the novelty that this fraction of known inputs exceeds.

        Infinite where no sample could be left out: it can't be told yet.
        """
        usual = USUAL_NOVELTY.inv_cdf(1 - min(max(reject, 1e-9), 1 - 1e-9)) * self.unit
        return self._quantile(self.novelty, reject, usual) if len(self.novelty) else float("inf")

    def class_thresholds(self, reject: float) -> dict[Label, float]:
        """Return thresholds of single classes, for those with enough samples left out."""
        values: dict[Label, list[float]] = {}
        for label, value in zip(self.labels, self.novelty.tolist(), strict=True):
            values.setdefault(label, []).append(value)
        overall = self.threshold(reject)
        return {
            label: self._quantile(np.array(own), reject, overall)
            for label, own in values.items()
            if len(own) >= ENOUGH_FOR_A_CLASS
        }

    @staticmethod
    def _quantile(novelty: np.ndarray, reject: float, usual: float) -> float:
        n = len(novelty)
        return float((n * np.quantile(novelty, 1 - reject) + WORTH * usual) / (n + WORTH))

    @property
    def error_rate(self) -> float:
        """Fraction of answers that are wrong, as far as that is known."""
        return 1 - self.hits if self.worth else 0.0

    def expected_accuracy(self, level: float = 0.9) -> tuple[float, float, float]:
        """Return the fraction of answers that will be right, and the range it is likely in.

        NaN, and everything, where no sample could be left out.
        """
        if not self.worth:
            return float("nan"), 0.0, 1.0
        return self.hits, *likely_range(self.hits, self.worth, level)

    def class_accuracies(self, level: float = 0.9) -> dict[Label, tuple[int, float, float, float]]:
        """Return the same of each class, after the number of its samples that were left out."""
        number, right = Counter(self.labels), Counter[Label]()
        for label, hit in zip(self.labels, self.right.tolist(), strict=False):
            right[label] += hit
        if not len(self.right):
            return {}
        hits = {label: right[label] / n for label, n in number.items()}
        return {
            label: (n, hits[label], *likely_range(hits[label], COUNTS_AS * n, level))
            for label, n in number.items()
        }

    def pack(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return named arrays; labels as positions in ``names``."""
        positions = {name: i for i, name in enumerate(names)}
        return {
            "scales": np.array([self.temperature, self.unit, self.hits, self.worth]),
            "labels": np.array([positions[label] for label in self.labels], np.int64),
            "novelty": self.novelty,
        } | ({"right": self.right.astype(np.uint8)} if len(self.right) else {})

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Sequence[Label]) -> Calibration:
        """Return what `pack` described."""
        labels, novelty = [names[i] for i in arrays["labels"].tolist()], arrays["novelty"]
        right = np.asarray(arrays.get("right", ()), bool)
        if len(labels) != len(novelty) or len(right) not in (0, len(labels)):
            raise ValueError("the arrays of the calibration differ in length")
        temperature, unit, hits, worth = np.asarray(arrays["scales"]).tolist()
        return cls(temperature, unit, labels, np.asarray(novelty), hits, worth, right)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Samples that were left out, the latest last; never changed: each verb returns others."""

    # How many samples the model had when each was left out; and its class.
    sizes: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    labels: list[Label] = field(default_factory=list)
    # How novel it looked, in units; ``-log`` of its class's probability, a column for each of the
    # temperatures; and whether its class was the answer.
    novelty: np.ndarray = field(default_factory=partial(np.empty, 0))
    losses: np.ndarray = field(default_factory=partial(np.empty, (0, len(OCTAVES)), np.float32))
    hits: np.ndarray = field(default_factory=partial(np.empty, 0, bool))

    def __len__(self) -> int:
        return len(self.labels)

    # ---------------------------------------------------------------- verbs

    def add(self, solved: Solved, own_map: object, rows: Rows) -> Evidence:
        """Leave samples out of a rule that has learned them, as far as their classes have others.

        ``own_map`` lifts them.
        """
        counts, found = dict(zip(solved.labels, solved.counts.tolist(), strict=True)), self
        if len(counts) < 2:
            return self
        chosen = [i for i, label in enumerate(rows.labels.tolist()) if counts.get(label, 0) > 1]
        chosen = chosen[:: -(-len(chosen) * len(counts) // MOST_PROBED) or 1]
        unit, step = solved.unit, max(1, PROBED_AT_ONCE // len(counts))
        usual = USUAL_TEMPERATURE * unit / np.sqrt(len(counts))
        for start in range(0, len(chosen), step):
            some = rows.at(chosen[start : start + step])
            labels, lifted = some.labels.tolist(), own_map.lift(some.values)  # type: ignore[attr-defined]
            own, scores, of_lda = leave_one_out(solved, lifted, labels)
            new = Evidence(
                np.full(len(own), solved.counts.sum()),
                labels,
                solved.terms.novelty.of_lda_scores(of_lda) / unit,
                _losses(scores / usual, own),
                scores.argmax(axis=1) == own,
            )
            found = found._with(new)
        return found._at(np.arange(len(found))[-MOST_KEPT:])

    def merge(self, other: Evidence) -> Evidence:
        """Add the samples of another model; those of the larger of the two models come last."""
        both = self._with(other)
        order = np.argsort(both.sizes, kind="stable")
        return both._at(
            order[np.linspace(0, len(order), MOST_KEPT, endpoint=False).astype(int)]
            if len(order) > MOST_KEPT
            else order
        )

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

    def calibration(self, labels: Sequence[Label], counts: np.ndarray, unit: float) -> Calibration:
        """Return what it says about a rule, given its classes and its unit."""
        here = self._of_size(int(counts.sum()))
        usual = USUAL_TEMPERATURE * unit / np.sqrt(max(len(labels), 1))
        # As often as their classes are expected: samples of chance sizes say little of frequencies.
        expected = dict(zip(labels, np.exp(log_priors(counts)), strict=True))
        number = Counter(here.labels)
        weights = np.array([expected.get(one, 0.0) / number[one] for one in here.labels])
        weights *= len(here) / max(float(weights.sum()), np.finfo(float).tiny)
        losses = 0.5 * (OCTAVES / np.where(OCTAVES < 0, COLDER, HOTTER)) ** 2
        losses += COUNTS_AS * weights @ here.losses.astype(np.float64)
        temperature = float(usual * 2.0 ** _lowest(OCTAVES, losses))
        novelty = here.novelty * unit
        if not len(here):
            return Calibration(temperature, unit)
        worth = COUNTS_AS * len(here) ** 2 / float((weights**2).sum())
        hits = min(float(weights @ here.hits) / len(here), 1.0)
        return Calibration(temperature, unit, here.labels, novelty, hits, worth, here.hits)

    # ---------------------------------------------------------------- storage

    def pack(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return named arrays; labels as positions in ``names``; nothing if there is none."""
        if not len(self):
            return {}
        positions = {name: i for i, name in enumerate(names)}
        return {
            "sizes": self.sizes,
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
            np.array(arrays["sizes"], np.int64),
            [names[i] for i in arrays["labels"].tolist()],
            np.array(arrays["novelty"], np.float64),
            np.array(arrays["losses"], np.float32),
            np.array(arrays["hits"], bool),
        )
        columns = (found.labels, found.sizes, found.novelty, found.losses, found.hits)
        if len({len(column) for column in columns}) > 1:
            raise ValueError("the arrays of the evidence differ in length")
        return found

    # ---------------------------------------------------------------- inside

    def _with(self, other: Evidence) -> Evidence:
        return Evidence(
            np.concatenate([self.sizes, other.sizes]),
            [*self.labels, *other.labels],
            np.concatenate([self.novelty, other.novelty]),
            np.concatenate([self.losses, other.losses.astype(np.float32)]),
            np.concatenate([self.hits, other.hits]),
        )

    def _at(self, rows: np.ndarray) -> Evidence:
        labels = [self.labels[i] for i in rows]
        columns = (self.novelty[rows], self.losses[rows], self.hits[rows])
        return Evidence(self.sizes[rows], labels, *columns)

    def _of_size(self, n_samples: int) -> Evidence:
        """Return what counts for a model of this size: left out since it had half as many samples.

        If that is too little, the latest of the others, too.
        """
        latest = np.arange(len(self)) >= len(self) - ENOUGH
        return self._at(np.flatnonzero(latest | (2 * self.sizes >= n_samples)))


def likely_range(hits: float, worth: float, level: float) -> tuple[float, float]:
    """Return where a fraction is likely to be, given the one among so many samples."""
    right, wrong = hits * worth + 0.5, (1 - hits) * worth + 0.5  # Jeffreys' prior
    low, high = scipy.stats.beta(right, wrong).ppf([(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _lowest(places: np.ndarray, losses: np.ndarray) -> float:
    """Return where losses at evenly spaced places are lowest: the vertex through three of them."""
    best, shift = int(losses.argmin()), 0.0
    if 0 < best < len(losses) - 1:
        left, here, right = losses[best - 1 : best + 2]
        curvature = left - 2 * here + right
        shift = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(places[best] + shift * (places[1] - places[0]))


def _losses(scores: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return ``-log softmax(scores / t)`` of each row's class, one column per temperature.

    Temperatures are half an octave apart, so every second one is half of one before: from the
    hottest two down, exponentials are squares of those before, which is far cheaper.
    """
    temperatures = 2.0**OCTAVES
    shifted = scores - scores.max(axis=1, keepdims=True)
    of_own = shifted[np.arange(len(own)), own]
    losses = np.empty((len(own), len(temperatures)))
    for hottest in (len(temperatures) - 1, len(temperatures) - 2):
        exponentials = np.exp(shifted / temperatures[hottest])
        for i in range(hottest, -1, -2):
            losses[:, i] = np.log(exponentials.sum(axis=1)) - of_own / temperatures[i]
            np.square(exponentials, out=exponentials)
    return np.minimum(losses, -np.log(np.finfo(np.float64).tiny))
