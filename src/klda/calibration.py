"""What leaving samples out tells of the answers: how sure to be, and what is normal.

When samples have been learned, a few of them are scored as if they had not been (in closed form,
see `klda.discriminant`). Of each such *probe* remain a few numbers: how likely its true class was
at each of a row of temperatures, and how novel it looked. From these come the temperature that
makes probabilities honest and the threshold beyond which an input is unknown. The
samples themselves are let go.

Scores change their scale as a model grows or loses samples. What a new sample sees of a whitened
direction is inflated by a factor that the solution knows, and the best temperature follows that
factor. So temperatures are in units of it, and novelty is counted in it, too, from what the noise
of a class's own mean adds. For the rest, a probe is filed
under the number of samples that the model had, and the files nearest to the present number count.
Rows add up when models merge and go when their class goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from klda.backend import Array, is_torch
from klda.statistics import Label

TEMPERATURES = 2.0 ** np.arange(-6, 12, 0.5)  # in units of the inflation
USUAL_TEMPERATURE = 4.0  # where probes leave it open, as they do where no class is ever mistaken
LOG2_SPREAD = 2.0  # of the usual temperature, in octaves
FILES_AN_OCTAVE = 2
MOST_FILES = 4
MOST_ROWS = 2048  # in a file
ENOUGH_ROWS = 100  # files are taken, the nearest first, until there are so many rows
MOST_PENDING = 1024
ENOUGH_FOR_A_CLASS = 30


@dataclass(frozen=True)
class Scale:
    """On what scale a model's scores are.

    Attributes
    ----------
    n_samples : int
        Samples of the model.
    inflation : float
        Variance of a new sample along a whitened direction.
    offset : float
        What the noise of a class's own mean adds to the distance of a new sample.
    """

    n_samples: int
    inflation: float
    offset: float

    @property
    def file(self) -> int:
        """Number of the file that probes go to."""
        return int(np.floor(FILES_AN_OCTAVE * np.log2(max(self.n_samples, 1))))

    def reduce(self, novelty: np.ndarray) -> np.ndarray:
        """Take the scale out of novelties."""
        return (novelty - self.offset) / self.inflation

    def restore(self, novelty: float) -> float:
        """Bring the scale back into a novelty."""
        return float(novelty * self.inflation + self.offset)


class Calibration:
    """Probes of a model: ``files`` (by size of the model), ``labels``, ``novelty``, ``losses``.

    The last two are free of the model's `Scale`.
    """

    def __init__(self) -> None:
        self.files = np.empty(0, np.int64)
        self.labels: list[Label] = []
        self.novelty = np.empty(0)
        self.losses = np.empty((0, len(TEMPERATURES)), np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def add(
        self,
        scale: Scale,
        labels: Sequence[Label],
        scores: np.ndarray,
        truth: np.ndarray,
        novelty: np.ndarray,
    ) -> None:
        """File probes of a model of this scale.

        ``scores`` are those of samples left out, ``truth`` the column of each one's class.
        """
        losses = _losses(scores / scale.inflation, truth)
        files = np.full(len(truth), scale.file)
        self._append(files, list(labels), scale.reduce(novelty), losses)
        self._thin_out(scale.file)

    def merge(self, other: Calibration) -> None:
        """Add the probes of another model."""
        self._append(other.files, other.labels, other.novelty, other.losses)
        self._thin_out(int(self.files.max(initial=0)))

    def drop(self, shares: Mapping[Label, float]) -> None:
        """Drop a share of the probes of each class, because so much of it was removed."""
        held = Counter(label for label in self.labels if label in shares)
        left = {label: round(shares[label] * n) for label, n in held.items()}
        kept = []
        for i, label in enumerate(self.labels):
            if left.get(label, 0) > 0:
                left[label] -= 1
            else:
                kept.append(i)
        self._keep(np.array(kept, np.int64))

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name."""
        self.labels = [new if label == old else label for label in self.labels]

    def temperature(self, scale: Scale) -> float:
        """Return what to divide scores by to make probabilities honest; 1 without probes."""
        rows = self._in_use(scale)
        if not len(rows):
            return 1.0
        unusual = np.log2(TEMPERATURES / USUAL_TEMPERATURE) / LOG2_SPREAD
        loss = self.losses[rows].sum(axis=0, dtype=np.float64) + 0.5 * unusual**2
        best = int(loss.argmin())
        shift = 0.0
        if 0 < best < len(loss) - 1:  # the vertex of the parabola through three points
            left, here, right = loss[best - 1 : best + 2]
            curvature = left - 2 * here + right
            shift = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
        step = TEMPERATURES[1] / TEMPERATURES[0]
        return float(scale.inflation * TEMPERATURES[best] * step**shift)

    def threshold(self, refused: float, scale: Scale) -> float:
        """Return the novelty that this share of known inputs exceeds; infinite without probes."""
        rows = self._in_use(scale)
        if not len(rows):
            return float("inf")
        return scale.restore(np.quantile(self.novelty[rows], 1 - refused))

    def class_thresholds(self, refused: float, scale: Scale) -> dict[Label, float]:
        """Return thresholds of single classes, for those with probes enough."""
        values: dict[Label, list[float]] = {}
        for i in self._in_use(scale):
            values.setdefault(self.labels[i], []).append(self.novelty[i])
        return {
            label: scale.restore(np.quantile(found, 1 - refused))
            for label, found in values.items()
            if len(found) >= ENOUGH_FOR_A_CLASS
        }

    def mistaken(self, scale: Scale) -> float:
        """Share of the probes whose class is not the likeliest; 0 without probes."""
        rows = self._in_use(scale)
        if not len(rows):
            return 0.0
        nearest = int(
            np.abs(np.log(TEMPERATURES * scale.inflation / self.temperature(scale))).argmin()
        )
        # A class with more than half of the probability is the answer.
        wrong = self.losses[rows, nearest] > np.log(2)
        return float((wrong.sum() + 0.5) / (len(rows) + 1))

    def copy(self) -> Calibration:
        """Return an independent copy."""
        twin = Calibration()
        twin.merge(self)
        return twin

    def to_state(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return the probes as arrays; labels as positions in ``names``."""
        positions = {name: i for i, name in enumerate(names)}
        return {
            "filed": self.files,
            "labels": np.array([positions[label] for label in self.labels], np.int64),
            "novelty": self.novelty,
            "losses": self.losses,
        }

    @classmethod
    def from_state(cls, arrays: dict[str, Any], names: Sequence[Label]) -> Self:
        """Return the probes that were stored."""
        calibration = cls()
        calibration.files = np.array(arrays["filed"], np.int64)
        calibration.labels = [names[i] for i in np.asarray(arrays["labels"]).tolist()]
        calibration.novelty = np.array(arrays["novelty"], np.float64)
        calibration.losses = np.array(arrays["losses"], np.float32)
        return calibration

    def _append(
        self, files: np.ndarray, labels: list[Label], novelty: np.ndarray, losses: np.ndarray
    ) -> None:
        self.files = np.concatenate([self.files, files])
        self.labels = [*self.labels, *labels]
        self.novelty = np.concatenate([self.novelty, novelty])
        self.losses = np.concatenate([self.losses, losses.astype(np.float32)])

    def _thin_out(self, present: int) -> None:
        """Keep the files nearest to the present one, each down to its largest size."""
        kept = []
        for file in self._by_distance(present)[:MOST_FILES]:
            rows = np.flatnonzero(self.files == file)
            if len(rows) > MOST_ROWS:
                rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(np.int64)]
            kept.append(rows)
        if kept and sum(map(len, kept)) < len(self):
            self._keep(np.sort(np.concatenate(kept)))

    def _keep(self, rows: np.ndarray) -> None:
        self.files, self.novelty = self.files[rows], self.novelty[rows]
        self.labels, self.losses = [self.labels[i] for i in rows], self.losses[rows]

    def _in_use(self, scale: Scale) -> np.ndarray:
        rows = np.empty(0, np.int64)
        for file in self._by_distance(scale.file):
            rows = np.concatenate([np.flatnonzero(self.files == file), rows])
            if len(rows) >= ENOUGH_ROWS:
                break
        return rows

    def _by_distance(self, present: int) -> np.ndarray:
        """Return the numbers of all files, the nearest first, of two as near the larger first."""
        files = np.unique(self.files)[::-1]
        return np.asarray(files[np.argsort(np.abs(files - present), kind="stable")])


def _losses(scores: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """``-log softmax(scores / t)`` of each row's class, one column a temperature.

    Temperatures are half an octave apart, so every second one is half of one before: from the
    hottest two down, exponentials are squares of those before, which is cheaper by far.
    """
    shifted = scores - scores.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(truth)), truth]
    losses = np.empty((len(truth), len(TEMPERATURES)))
    for hottest in (len(TEMPERATURES) - 1, len(TEMPERATURES) - 2):
        shares = np.exp(shifted / TEMPERATURES[hottest])
        for i in range(hottest, -1, -2):
            losses[:, i] = np.log(shares.sum(axis=1)) - own / TEMPERATURES[i]
            np.square(shares, out=shares)
    return np.minimum(losses, -np.log(np.finfo(np.float64).tiny))


class Pending:
    """Samples just learned that may become probes: a bounded, fair choice, held until then."""

    def __init__(self) -> None:
        self.seen = 0
        self.samples: list[np.ndarray] = []
        self.labels: list[Label] = []

    def offer(self, samples: Array, label_of: Callable[[int], Label]) -> None:
        """Take note of a batch: each sample seen so far stays with the same chance."""
        rng = np.random.RandomState(self.seen % (2**32))
        n = len(samples)
        numbers = self.seen + np.arange(n)
        slots = np.where(
            numbers < MOST_PENDING, numbers, (rng.random_sample(n) * (numbers + 1)).astype(np.int64)
        )
        chosen = np.flatnonzero(slots < MOST_PENDING)
        rows = samples[chosen]  # of a tensor on a GPU no more than these leave it
        rows = rows.cpu().numpy() if is_torch(rows) else rows
        for row, i in zip(rows, chosen.tolist(), strict=True):
            slot, row, label = int(slots[i]), np.array(row), label_of(i)
            if slot < len(self.labels):
                self.samples[slot], self.labels[slot] = row, label
            else:
                self.samples.append(row)
                self.labels.append(label)
        self.seen += n

    def drop(self, labels: Collection[Label]) -> None:
        """Let go of the samples of some classes."""
        self._keep([i for i, label in enumerate(self.labels) if label not in labels])

    def remove(self, samples: Array, labels: Sequence[Label]) -> None:
        """Let go of these samples, those of them that wait here."""
        waiting = set(self.labels)
        chosen = [i for i, label in enumerate(labels) if label in waiting]
        rows = samples[chosen]
        rows = rows.cpu().numpy() if is_torch(rows) else rows
        gone = Counter((labels[i], row.tobytes()) for i, row in zip(chosen, rows, strict=True))
        kept = []
        for i, label in enumerate(self.labels):
            key = (label, self.samples[i].tobytes())
            if gone[key] > 0:
                gone[key] -= 1
            else:
                kept.append(i)
        self._keep(kept)

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name."""
        self.labels = [new if label == old else label for label in self.labels]

    def merge(self, other: Pending) -> None:
        """Add those of another model, a fair share of each if there are too many."""
        seen = self.seen + other.seen
        if len(self.labels) + len(other.labels) > MOST_PENDING:
            mine = round(MOST_PENDING * self.seen / seen)
            self._keep(_evenly(len(self.labels), mine))
            theirs = _evenly(len(other.labels), MOST_PENDING - mine)
        else:
            theirs = list(range(len(other.labels)))
        self.samples += [other.samples[i] for i in theirs]
        self.labels += [other.labels[i] for i in theirs]
        self.seen = seen

    def _keep(self, chosen: list[int]) -> None:
        if len(chosen) < len(self.labels):
            self.seen = round(self.seen * len(chosen) / len(self.labels))
        self.samples = [self.samples[i] for i in chosen]
        self.labels = [self.labels[i] for i in chosen]


def _evenly(n: int, most: int) -> list[int]:
    if n <= most:
        return list(range(n))
    return [int(i) for i in np.linspace(0, n - 1, most)]
