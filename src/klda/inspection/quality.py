"""How good a model is, without a test file: samples it learned, answered as if it had not."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

import scipy

from klda.engine.calibration import COUNTS_AS, Calibration
from klda.engine.solution import Solution
from klda.inspection.evaluation import Evaluation
from klda.labels import Label

LEVEL = 0.9  # how likely accuracies are within their ranges


@dataclass(frozen=True)
class ClassQuality:
    """How often new inputs of a class are expected to be answered with it."""

    label: Label
    samples: int  # learned
    left_out: int  # of these, how many were answered as if they had not been learned
    accuracy: float  # NaN if none was
    low: float  # it is likely to be between these
    high: float


@dataclass(frozen=True, repr=False)
class Quality:
    """How often new inputs are expected to get the right answer.

    Every class counts as often as its samples suggest. For such inputs the figure is off by 2.3
    points on average over fifteen sets of texts with five samples per class, and by 1.4 with all
    (`klda bench quality`). It can't know if classes will come up at other rates: taught five
    samples of each class of DBpedia it says 83%, and the test file, much of which is a few hard
    classes, gives 66%. Samples that come several times, too, make it too high.

    Attributes
    ----------
    accuracy : float
        The fraction; NaN while there is no class with two samples, of which one can be left out.
    low, high : float
        It is likely (90%) to be between these.
    left_out : int
        How many samples were answered as if they had not been learned.
    classes : list of ClassQuality
        The same of each class, in the order of labels.
    """

    accuracy: float
    low: float
    high: float
    left_out: int
    classes: list[ClassQuality]

    @property
    def is_known(self) -> bool:
        """Whether any sample could be left out."""
        return not math.isnan(self.accuracy)

    @property
    def worst(self) -> list[ClassQuality]:
        """The classes of which something is known, the worst first."""
        known = [one for one in self.classes if one.left_out]
        return sorted(known, key=lambda one: (one.accuracy, one.low, str(one.label)))

    def __repr__(self) -> str:
        return f"<Quality: {self}>"

    def __str__(self) -> str:
        if not self.is_known:
            return "Expected accuracy: not known before a class has two samples."
        return (
            f"Expected accuracy {self.accuracy:.0%} (likely {self.low:.0%} to {self.high:.0%}), "
            f"from leaving out {self.left_out:,} of the samples."
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold; NaN becomes None."""
        classes = [_plain(asdict(one)) for one in self.classes]
        return self.summary() | {"classes": classes}

    def summary(self) -> dict[str, Any]:
        """Return all but the classes, as `to_dict` does."""
        numbers = {"accuracy": self.accuracy, "low": self.low, "high": self.high}
        return _plain(numbers | {"left_out": self.left_out})


def quality_of(solution: Solution) -> Quality:
    """Return what a solution's samples left out say of it."""
    calibration = solution.calibration
    counts = zip(solution.classes.tolist(), solution.class_counts.tolist(), strict=True)
    found = {} if calibration is None else _class_accuracies(calibration)
    nothing = (0, math.nan, 0.0, 1.0)
    classes = [ClassQuality(label, n, *found.get(label, nothing)) for label, n in counts]
    if calibration is None or not calibration.worth:  # no sample could be left out
        return Quality(math.nan, 0.0, 1.0, 0, classes)
    low, high = _likely_range(calibration.hits, calibration.worth)
    return Quality(calibration.hits, low, high, len(calibration.labels), classes)


def _class_accuracies(calibration: Calibration) -> dict[Label, tuple[int, float, float, float]]:
    """Return how many samples of a class were left out, the fraction right, and its range."""
    right: dict[Label, list[bool]] = {}
    for label, is_right in zip(calibration.labels, calibration.right.tolist(), strict=False):
        right.setdefault(label, []).append(is_right)
    hits = {label: sum(own) / len(own) for label, own in right.items()}
    return {
        label: (len(own), hits[label], *_likely_range(hits[label], COUNTS_AS * len(own)))
        for label, own in right.items()
    }


def _likely_range(hits: float, worth: float) -> tuple[float, float]:
    """Return where a fraction is likely to be, given the one among so many samples."""
    right, wrong = hits * worth + 0.5, (1 - hits) * worth + 0.5  # Jeffreys' prior
    low, high = scipy.special.betaincinv(right, wrong, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class ClassChange:
    """How a change of a model did on test samples of a class."""

    label: Label
    samples: int  # tested
    before: float | None  # fraction of them answered right; None if the class was not known
    after: float

    @property
    def points(self) -> float:
        """By how many percentage points it got better."""
        return 0.0 if self.before is None else 100 * (self.after - self.before)


def class_changes(
    before: Evaluation | None, after: Evaluation, known: Collection[Label]
) -> list[ClassChange]:
    """Compare two evaluations on the same samples by class, what lost most first.

    Without the first there was no model. Of a class that was not `known` before, nothing could be
    right: that is no figure to compare with.
    """
    evaluated = () if before is None else before.classes
    then = {one.label: one.recall for one in evaluated if one.label in known}
    found = [
        ClassChange(one.label, one.samples, then.get(one.label), one.recall)
        for one in after.classes
        if one.samples
    ]
    return sorted(found, key=lambda one: (one.points, str(one.label)))


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in values.items()
    }
