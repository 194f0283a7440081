"""How sure to be while there are few samples.

With one sample of each class nothing tells how far others may be; with a few, leaving one out
leaves its class with less than the others have. What can be relied on is the scale of the scores:
divided by the median squared length of a class mean, the temperature that makes probabilities
honest is nearly the same for all classes that are told apart well, from the first sample on. It is
higher where the lengths differ much, because classes are crowded then, and with fewer than 20
classes, which tend to be wider. Where classes are hard to tell apart, it is higher by up to a
hundred times; only samples left out tell that. They are weighed against the usual temperature, and
count more the more there are of each class.

With one sample of each class the novelty of known inputs depends on the number of classes alone.
Leaving a sample out makes it look more novel than an input will, and its class less likely; both
fade with the square of the number of samples.

The constants were chosen by cross-validation within the training rows of the paper's four text
sets, with 2 to 150 of their classes, among them similar ones, and with classes joined at random.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from klda.engine.arrays import inside, under
from klda.engine.evidence import Scale, lowest, quantiles
from klda.engine.rule import LDA_PART, lda_part
from klda.labels import Label

USUAL_TEMPERATURE = 1 / 15  # of the median squared length of a class mean
# How much squared lengths usually differ (standard deviation by mean, by the root of the number of
# samples per class), how much hotter more of it makes the scores of single samples, and its limit.
USUAL_CROWDING, CROWDED_HEAT, MOST_CROWDED_HEAT = 0.1, 3.0, 0.3
WIDE_BELOW, WIDE_HEAT = 20, 0.375  # classes; what (20 / M) is raised to if there are fewer
OCTAVES = np.arange(-4, 9.5, 0.5)  # temperatures that are tried, relative to the usual one
# What is expected of the temperature before leaving out tells it, in octaves from the usual one:
# probability, mean and standard deviation, for classes that are told apart well and for others.
EXPECTED = ((0.7, 0.0, 0.4), (0.3, 1.0, 2.0))
TELLS_FULLY_FROM = 9  # samples per class, from which on each sample left out counts as one
MOST_TELLING = 3  # samples left out that count at most, for each sample that a class has
LEFT_OUT_HEAT = 2.25  # logarithm of what leaving out adds at one sample per class
# Of the median squared length of a class mean: what leaving out adds to the novelty at one sample
# per class; the novelty of known inputs with one sample of each of M classes, a + b log M from a
# few classes on, and its standard deviation.
LEFT_OUT_EXCESS = 0.6
USUAL_NOVELTY = (0.32, 0.07)
NOVELTY_GROWS_FROM = 12
NOVELTY_SPREAD = 0.19
REFUSED_MORE = 1.5  # of what is asked for: strangers pass more easily while little is known
ENOUGH_LEFT_OUT = 30  # samples left out, from which on they alone tell the threshold
PREFIX = "predict/few/"


def usual_temperature(lengths: np.ndarray, counts: np.ndarray, blended: bool) -> float:
    """Return what to divide scores by, from the squared lengths of the class means."""
    part = 1 + LDA_PART / lda_part(counts) if blended else 1.0
    n = max(float(counts.mean()), 1.0)
    crowding = lengths.std() / max(lengths.mean(), 1e-12) / np.sqrt(n)
    heat = CROWDED_HEAT * (crowding - USUAL_CROWDING) / n
    part *= np.exp(np.clip(heat, -MOST_CROWDED_HEAT, MOST_CROWDED_HEAT))
    return float(USUAL_TEMPERATURE * part * np.median(lengths)) or 1.0


def heat_of_few_classes(n_classes: int) -> float:
    """Return how much hotter scores usually are with few classes, which tend to be wider."""
    return float(max(WIDE_BELOW / max(n_classes, 1), 1.0) ** WIDE_HEAT)


def refined_temperature(
    usual: float, scores: np.ndarray, own: np.ndarray, counts: np.ndarray
) -> float:
    """Return the likeliest temperature, given samples left out and what is usual.

    ``scores`` are theirs, ``own`` the column of each one's class.
    """
    n = float(counts.mean())
    weight = min((n - 1) / (TELLS_FULLY_FROM - 1), 1.0, MOST_TELLING * n / len(own))
    heated = usual * np.exp(LEFT_OUT_HEAT / n**2)
    shifted = (scores - scores.max(axis=1, keepdims=True)) / heated
    of_own = shifted[np.arange(len(own)), own]
    losses = -np.log(
        sum(
            p / spread * np.exp(-0.5 * ((OCTAVES - mean) / spread) ** 2)
            for p, mean, spread in EXPECTED
        )
    )
    for i, t in enumerate(2.0**OCTAVES):
        losses[i] += weight * (np.log(np.exp(shifted / t).sum(axis=1)) - of_own / t).sum()
    return float(usual * 2.0 ** lowest(OCTAVES, losses))


@dataclass(frozen=True, eq=False)
class FewEvidence:
    """What is known about doubt while there are few samples; as `klda.engine.evidence.Evidence`.

    Attributes
    ----------
    fitted_temperature : float
        What scores are divided by.
    length : float
        Median squared length of a class mean.
    n_classes : int
        Number of classes; 0 if none has a sample.
    labels : list
        Classes of the samples left out.
    novelty : ndarray of shape (n,)
        How novel they would be as new inputs.
    errors : float
        Fraction of them that would have been mistaken.
    """

    fitted_temperature: float
    length: float
    n_classes: int
    labels: list[Label] = field(default_factory=list)
    novelty: np.ndarray = field(default_factory=lambda: np.empty(0))
    errors: float = 0.0

    @classmethod
    def usual(cls, lengths: np.ndarray, counts: np.ndarray, blended: bool) -> FewEvidence:
        """Return what is known from the squared lengths of the class means alone."""
        temperature = usual_temperature(lengths, counts, blended) * heat_of_few_classes(len(counts))
        return cls(temperature, float(np.median(lengths)), len(counts))

    @classmethod
    def of(
        cls,
        temperature: float,
        length: float,
        counts: np.ndarray,
        labels: Sequence[Label],
        novelty: np.ndarray,
        wrong: np.ndarray,
    ) -> FewEvidence:
        """Gather it from samples left out."""
        excess = LEFT_OUT_EXCESS * length / counts.mean() ** 2
        errors = float((wrong.sum() + 0.5) / (len(wrong) + 1))
        return cls(temperature, length, len(counts), list(labels), novelty - excess, errors)

    def temperature(self, scale: Scale) -> float:
        """Return what to divide scores by to make probabilities honest."""
        return self.fitted_temperature

    def threshold(self, refused: float, scale: Scale) -> float:
        """Return the novelty that about 1.5 times this fraction of known inputs exceeds.

        Infinite with fewer than two classes.
        """
        if self.n_classes < 2:
            return float("inf")
        first, slope = USUAL_NOVELTY
        refused = min(max(REFUSED_MORE * refused, 1e-9), 1 - 1e-9)
        beyond = NOVELTY_SPREAD * NormalDist().inv_cdf(1 - refused)
        grows_with = float(np.log(max(self.n_classes, NOVELTY_GROWS_FROM)))
        usual = self.length * (first + slope * grows_with + beyond)
        if not len(self.novelty):
            return usual
        trust = min(len(self.novelty) / ENOUGH_LEFT_OUT, 1.0)
        return float((1 - trust) * usual + trust * np.quantile(self.novelty, 1 - refused))

    def class_thresholds(self, refused: float, scale: Scale) -> dict[Label, float]:
        """Return thresholds of single classes, for those with enough samples."""
        return quantiles(self.labels, self.novelty, 1 - min(REFUSED_MORE * refused, 1.0))

    def error_rate(self, scale: Scale) -> float:
        """Return the fraction of inputs that are probably mistaken."""
        return self.errors

    def pack(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return it as named arrays; labels as positions in ``names``."""
        positions = {name: i for i, name in enumerate(names)}
        scales = [self.fitted_temperature, self.length, self.n_classes, self.errors]
        arrays = {
            "scales": np.array(scales),
            "labels": np.array([positions[label] for label in self.labels], np.int64),
            "novelty": self.novelty,
        }
        return under(PREFIX, arrays)

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Sequence[Label]) -> FewEvidence | None:
        """Return what `pack` described; None if there are no such arrays."""
        own = inside(PREFIX, arrays)
        if "scales" not in own:
            return None
        temperature, length, n_classes, errors = own["scales"].tolist()
        labels = [names[i] for i in own["labels"].tolist()]
        novelty = np.array(own["novelty"], np.float64)
        if len(labels) != len(novelty):
            raise ValueError("the arrays of the evidence differ in length")
        return cls(temperature, length, int(n_classes), labels, novelty, errors)
