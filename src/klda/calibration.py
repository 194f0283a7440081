"""What leaving samples out tells of the answers: how sure to be, and what is normal.

When samples have been learned, a few of them are scored as if they had not been (in closed form,
see `klda.discriminant`). Of each such *probe* remain a few numbers: how likely its true class was
at each of a row of temperatures, and how novel it looked. From these come the temperature that
makes probabilities honest and the threshold beyond which an input is unknown. No sample is kept.

Scores change their scale as a model grows, so a probe is filed under the number of samples that
the model had, and the latest files count. Rows add up when models merge and go when their class
goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np

from klda.backend import Array, is_torch
from klda.statistics import Label

TEMPERATURES = 2.0 ** np.arange(-4, 13, 0.5)
FILES_AN_OCTAVE = 2
MOST_ROWS = 2048  # in a file
ENOUGH_ROWS = 100  # files are taken from the latest on until there are so many rows
MOST_PENDING = 1024
ENOUGH_FOR_A_CLASS = 30


class Calibration:
    """Probes of a model: ``files`` (by size of the model), ``labels``, ``novelty``, ``losses``."""

    def __init__(self) -> None:
        self.files = np.empty(0, np.int64)
        self.labels: list[Label] = []
        self.novelty = np.empty(0)
        self.losses = np.empty((0, len(TEMPERATURES)), np.float32)

    def __len__(self) -> int:
        return len(self.labels)

    def add(
        self,
        n_samples: int,
        labels: Sequence[Label],
        scores: np.ndarray,
        truth: np.ndarray,
        novelty: np.ndarray,
    ) -> None:
        """File probes of a model of so many samples.

        ``scores`` are those of samples left out, ``truth`` the column of each one's class.
        """
        file = int(np.floor(FILES_AN_OCTAVE * np.log2(max(n_samples, 1))))
        self._append(np.full(len(truth), file), list(labels), novelty, _losses(scores, truth))

    def merge(self, other: Calibration) -> None:
        """Add the probes of another model."""
        self._append(other.files, other.labels, other.novelty, other.losses)

    def drop(self, label: Label, share: float = 1.0) -> None:
        """Drop a share of a class's probes, because so much of the class was removed."""
        mine = [i for i, name in enumerate(self.labels) if name == label]
        gone = set(mine[: round(share * len(mine))])
        self._keep(np.array([i for i in range(len(self)) if i not in gone], np.int64))

    def rename(self, old: Label, new: Label) -> None:
        """Give a class another name."""
        self.labels = [new if label == old else label for label in self.labels]

    def temperature(self) -> float:
        """Return what to divide scores by to make probabilities honest; 1 without probes."""
        rows = self._in_use()
        if not len(rows):
            return 1.0
        loss = self.losses[rows].mean(axis=0, dtype=np.float64)
        best = int(loss.argmin())
        shift = 0.0
        if 0 < best < len(loss) - 1:  # the vertex of the parabola through three points
            left, here, right = loss[best - 1 : best + 2]
            curvature = left - 2 * here + right
            shift = 0.5 * (left - right) / curvature if curvature > 0 else 0.0
        step = TEMPERATURES[1] / TEMPERATURES[0]
        return float(TEMPERATURES[best] * step**shift)

    def threshold(self, refused: float) -> float:
        """Return the novelty that this share of known inputs exceeds; infinite without probes."""
        rows = self._in_use()
        if not len(rows):
            return float("inf")
        return float(np.quantile(self.novelty[rows], 1 - refused))

    def class_thresholds(self, refused: float) -> dict[Label, float]:
        """Return thresholds of single classes, for those with probes enough."""
        values: dict[Label, list[float]] = {}
        for i in self._in_use():
            values.setdefault(self.labels[i], []).append(self.novelty[i])
        return {
            label: float(np.quantile(found, 1 - refused))
            for label, found in values.items()
            if len(found) >= ENOUGH_FOR_A_CLASS
        }

    def copy(self) -> Calibration:
        """Return an independent copy."""
        twin = Calibration()
        twin.merge(self)
        return twin

    def to_state(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return the probes as arrays; labels as positions in ``names``."""
        positions = {name: i for i, name in enumerate(names)}
        return {
            "files": self.files,
            "labels": np.array([positions[label] for label in self.labels], np.int64),
            "novelty": self.novelty,
            "losses": self.losses,
        }

    @classmethod
    def from_state(cls, arrays: dict[str, Any], names: Sequence[Label]) -> Self:
        """Return the probes that were stored."""
        calibration = cls()
        calibration.files = np.array(arrays["files"], np.int64)
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
        self._thin_out()

    def _thin_out(self) -> None:
        """Keep the two latest files, each down to its largest size by an even choice."""
        kept = []
        for file in np.unique(self.files)[-2 * FILES_AN_OCTAVE :]:
            rows = np.flatnonzero(self.files == file)
            if len(rows) > MOST_ROWS:
                rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(np.int64)]
            kept.append(rows)
        if kept and sum(map(len, kept)) < len(self):
            self._keep(np.sort(np.concatenate(kept)))

    def _keep(self, rows: np.ndarray) -> None:
        self.files, self.novelty = self.files[rows], self.novelty[rows]
        self.labels, self.losses = [self.labels[i] for i in rows], self.losses[rows]

    def _in_use(self) -> np.ndarray:
        rows = np.empty(0, np.int64)
        for file in np.unique(self.files)[::-1]:
            rows = np.concatenate([np.flatnonzero(self.files == file), rows])
            if len(rows) >= ENOUGH_ROWS:
                break
        return rows


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

    def clear(self) -> None:
        """Forget them."""
        self.seen, self.samples, self.labels = 0, [], []
