"""Calibration: temperature, novelty threshold and expected accuracy, from leave-one-out scores.

Samples are scored as if they had not been learned (`klda.engine.leave_one_out`). `Evidence` keeps a
few numbers of each: its novelty, how far its class was behind the answer, and the probability of
the answer at a range of temperatures. Leave-one-out scores share almost all of their samples, so
their hits vary twice as much as independent ones would: each counts as half a sample.

Everything is relative to a unit, half the typical squared distance between two class means, because
scores grow with it.

- The temperature is the likeliest one under a prior: ``0.8 unit / sqrt(M)`` for M classes, give or
  take one octave downwards and two upwards.
- The threshold of novelty is a quantile of the evidence: if its values and a new one are
  exchangeable, the new one is above it with the probability that was asked for. It is combined
  with a prior worth five samples.
  With one sample per class nothing can be left out, and no input is called unknown.
- The expected accuracy is the fraction of right answers, corrected for the sample that each class
  lacked, and combined with the mean probability of the answers, which varies less and is worth
  sixty samples.

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
from typing import Any

import numpy as np

from klda.engine import sizes
from klda.engine.means import log_priors
from klda.labels import Label

COUNTS_AS = 0.5  # sample that one left out is worth
USUAL_TEMPERATURE = 0.8  # of the unit, divided by the root of the number of classes
COLDER, HOTTER = 1.0, 2.0  # octaves: how far from the usual one a temperature is expected to be
OCTAVES = np.arange(-5, 10.5, 0.5)  # temperatures that are tried, relative to the usual one
USUAL_NOVELTY = NormalDist(0.5, 0.13)  # of known inputs, in units
# Samples left out that what is usual is worth, for the threshold. Where 5% were asked, the rate of
# known inputs refused is off by 1.5, 1.7, 1.5, 1.5 and 1.4 points on average over fifteen sets with
# 2, 3, 5, 8 and 16 samples per class; with 10 instead of 5, by 2.0, 1.9, 1.8, 1.6 and 1.4.
WORTH = 5
# Samples left out that the mean probability is worth, for the expected accuracy. On inputs whose
# classes are as frequent as those learned, that is off by 6.2, 5.2, 3.9, 3.9 and 3.4 points on
# average over fifteen sets, with 2, 3, 5, 10 and 20 samples per class; with 10 instead of 60, by
# 6.7, 5.7, 4.2, 4.1 and 3.6, and with 120 as with 60.
SURE_WORTH = 60
TEMPERATURE_FALLS = 0.15  # octaves, as the samples of a class double
# By how much the log odds of a right answer grow meanwhile. Without it, the expected accuracy is
# 1.8, 0.9 and 1.0 points too low on average over the training rows of fifteen sets, with 3, 5 and
# 10 samples per class; with it, 0.5, 0.1 and 0.6. From 0.3 to 0.6 it is as good.
ODDS_GROW = 0.4
LOST = -float(np.log(np.finfo(np.float64).tiny))  # largest loss of one of them
COLUMNS = {"sizes": np.int64, "novelty": np.float64, "behind": np.float64, "doubts": np.float32}
ENOUGH = 100  # samples left out; of a model that has grown fast, older ones count up to so many


@dataclass(frozen=True, eq=False)
class Calibration:
    """What samples left out tell about a solution."""

    temperature: float = 1.0  # what scores are divided by before they become probabilities
    unit: float = 1.0  # half the typical squared distance between two class means
    labels: list[Label] = field(default_factory=list)  # classes of the samples left out
    novelty: np.ndarray = field(default_factory=partial(np.empty, 0))  # (n,): how novel they look
    hits: float = 0.0  # fraction of answers that are expected to be right
    # How many independent samples that is known from; 0 if no sample could be left out.
    worth: float = 0.0
    # (n,): which of the samples left out got the right answer; empty if that was not stored.
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
            if len(own) >= sizes.ENOUGH_FOR_A_CLASS
        }

    @staticmethod
    def _quantile(novelty: np.ndarray, reject: float, usual: float) -> float:
        n = len(novelty)
        quantile = float(np.quantile(novelty, 1 - reject, method="weibull"))
        return (n * quantile + WORTH * usual) / (n + WORTH)

    @property
    def error_rate(self) -> float:
        """Fraction of answers that are wrong, as far as that is known."""
        return 1 - self.hits if self.worth else 0.0

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
    """Samples that were left out, the latest last.

    Immutable: each verb returns another.
    """

    # The class of each; how many samples the model had when it was left out.
    labels: list[Label] = field(default_factory=list)
    sizes: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    # How novel it looked, in units; by how much its class's score was behind the highest, in usual
    # temperatures; and ``-log`` of the answer's probability, a column for each of the temperatures.
    novelty: np.ndarray = field(default_factory=partial(np.empty, 0))
    behind: np.ndarray = field(default_factory=partial(np.empty, 0))
    doubts: np.ndarray = field(default_factory=partial(np.empty, (0, len(OCTAVES)), np.float32))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def hits(self) -> np.ndarray:
        """Which of them got the right answer."""
        return self.behind == 0

    # ---------------------------------------------------------------- verbs

    def add(self, new: Evidence) -> Evidence:
        """Return these and new ones, the latest of them."""
        found = self._with(new)
        return found._at(np.arange(len(found))[-sizes.MOST_EVIDENCE :])

    def merge(self, other: Evidence) -> Evidence:
        """Add the samples of another model; those of the larger of the two models come last."""
        both = self._with(other)
        order = np.argsort(both.sizes, kind="stable")
        if len(order) > sizes.MOST_EVIDENCE:
            spread = np.linspace(0, len(order), sizes.MOST_EVIDENCE, endpoint=False)
            order = order[spread.astype(int)]
        return both._at(order)

    def without(self, fractions: Mapping[Label, float]) -> Evidence:
        """Drop fractions of the classes of samples that the model no longer has.

        It is not known which of the removed samples were left out, so any of the same class are
        dropped instead.
        """
        held = Counter(label for label in self.labels if label in fractions)
        left = {label: round(fractions[label] * n) for label, n in held.items()}
        kept = []
        for i, label in enumerate(self.labels):
            if left.get(label, 0) > 0:
                left[label] -= 1
            else:
                kept.append(i)
        return self._at(np.array(kept, np.int64))

    def split(self, label: Label) -> tuple[Evidence, Evidence]:
        """Return all without the samples of a class, and these."""
        own = np.array([held == label for held in self.labels], bool)
        return self._at(np.flatnonzero(~own)), self._at(np.flatnonzero(own))

    def rename(self, old: Label, new: Label) -> Evidence:
        """Give a class another name."""
        return replace(self, labels=[new if label == old else label for label in self.labels])

    def calibration(self, labels: Sequence[Label], counts: np.ndarray, unit: float) -> Calibration:
        """Return what it says about a rule, given its classes and its unit."""
        here = self._of_size(int(counts.sum()))
        usual = usual_temperature(unit, len(labels))
        prior = 0.5 * (OCTAVES / np.where(OCTAVES < 0, COLDER, HOTTER)) ** 2
        if not len(here):
            return Calibration(usual * 2.0 ** _lowest(OCTAVES, prior), unit)
        # Weighted by the smoothed class priors.
        expected = dict(zip(labels, np.exp(log_priors(counts)), strict=True))
        number = Counter(here.labels)
        weights = np.array([expected.get(one, 0.0) / number[one] for one in here.labels])
        weights /= max(float(weights.sum()), np.finfo(float).tiny)
        # A new sample meets all n samples of its class, one that is left out only the n - 1 others.
        known = dict(zip(labels, np.maximum(counts, 2), strict=True))
        n = np.array([known.get(one, 2) for one in here.labels])
        more = float(weights @ np.log2(n / (n - 1)))
        losses = np.minimum(here.doubts + here.behind[:, None] / 2.0**OCTAVES, LOST)
        octave = _lowest(
            OCTAVES, prior + COUNTS_AS * len(here) * np.einsum("i,ij->j", weights, losses)
        )
        octave -= TEMPERATURE_FALLS * more
        sure = float(
            np.interp(octave, OCTAVES, np.einsum("i,ij->j", weights, np.exp(-here.doubts)))
        )
        worth = COUNTS_AS / float((weights**2).sum())
        right, odds = float(weights @ here.hits), float(np.exp(ODDS_GROW * more))
        right = odds * right / (1 - right + odds * right)
        hits = (worth * right + SURE_WORTH * sure) / (worth + SURE_WORTH)
        temperature = float(usual * 2.0**octave)
        novelty = here.novelty * unit
        return Calibration(temperature, unit, here.labels, novelty, hits, worth, here.hits)

    # ---------------------------------------------------------------- storage

    def pack(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return named arrays; labels as positions in ``names``."""
        if not len(self):
            return {}
        positions = {name: i for i, name in enumerate(names)}
        labels = np.array([positions[label] for label in self.labels], np.int64)
        return {"labels": labels} | {name: getattr(self, name) for name in COLUMNS}

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Sequence[Label]) -> Evidence:
        """Return what `pack` described."""
        if "doubts" not in arrays:
            return cls()
        labels = [names[i] for i in arrays["labels"].tolist()]
        columns: dict[str, Any] = {
            name: np.array(arrays[name], kind) for name, kind in COLUMNS.items()
        }
        if {len(column) for column in columns.values()} != {len(labels)}:
            raise ValueError("the arrays of the evidence differ in length")
        return cls(labels, **columns)

    # ---------------------------------------------------------------- inside

    def _with(self, other: Evidence) -> Evidence:
        both: dict[str, Any] = {
            k: np.concatenate([getattr(self, k), getattr(other, k)]) for k in COLUMNS
        }
        return Evidence([*self.labels, *other.labels], **both)

    def _at(self, rows: np.ndarray) -> Evidence:
        some: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        return Evidence([self.labels[i] for i in rows], **some)

    def _of_size(self, n_samples: int) -> Evidence:
        """Return what counts for a model of this size: left out since it had half as many samples.

        If that is too little, the latest of the others, too.
        """
        latest = np.arange(len(self)) >= len(self) - ENOUGH
        return self._at(np.flatnonzero(latest | (2 * self.sizes >= n_samples)))


def usual_temperature(unit: float, n_classes: int) -> float:
    """Return the temperature that is expected before there is evidence."""
    return USUAL_TEMPERATURE * unit / float(np.sqrt(max(n_classes, 1)))


def _lowest(places: np.ndarray, losses: np.ndarray) -> float:
    """Return where losses at evenly spaced places are lowest: the vertex through three of them."""
    best, shift = int(losses.argmin()), 0.0
    if 0 < best < len(losses) - 1:
        left, here, right = losses[best - 1 : best + 2]
        curvature = left - 2 * here + right
        shift = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
    return float(places[best] + shift * (places[1] - places[0]))
