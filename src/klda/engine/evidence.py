"""What leaving samples out tells about answers: how sure to be, and what is normal.

After samples have been learned, a few of them are scored as if they had not been (in closed form).
Of each such *probe* a few numbers remain: how likely its true class was at each of a range of
temperatures, and how novel it looked. They give the temperature that makes probabilities honest and
the threshold beyond which an input is unknown. No sample is kept.

The scale of scores changes as a model grows or loses samples. The variance of a new sample along a
whitened direction is inflated by a factor that the solution knows, and the best temperature follows
that factor. So temperatures are stored in units of it, and novelty too, after subtracting what the
noise of a class's own mean adds. For the rest, probes are kept in buckets by the number of samples
that the model had, and the buckets nearest to the present number are used. Probes of two models add
up when the models are merged, and a class's probes go when the class goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from klda.engine.arrays import Array, inside, under
from klda.engine.rule import RuleTerms
from klda.engine.statistics import class_blocks
from klda.labels import Label

if TYPE_CHECKING:
    from klda.engine.model import Member, Model
    from klda.engine.solution import Solution
    from klda.engine.solve import PlainWeights

TEMPERATURES = 2.0 ** np.arange(-6, 12, 0.5)  # in units of the scale's heat
USUAL_TEMPERATURE = 4.0  # where probes leave it open, as they do if no class is ever mistaken
LOG2_SPREAD = 2.0  # of the usual temperature, in octaves
BUCKETS_PER_OCTAVE = 2
MOST_BUCKETS = 4
MOST_ROWS = 2048  # in a bucket
ENOUGH_ROWS = 100  # the nearest buckets are used, as many as it takes for this many rows
ENOUGH_FOR_A_CLASS = 30
MOST_PROBED = 1 << 24  # probes times classes
PROBED_AT_ONCE = 1 << 21
SMALLEST_LEVERAGE_SLACK = 1e-3  # of 1 - a v^T R v, where rounding would make it negative
PREFIX = "predict/calibration/"


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

    def reduce(self, novelty: np.ndarray) -> np.ndarray:
        """Remove the scale from novelties."""
        return (novelty - self.offset) / self.inflation

    def restore(self, novelty: float) -> float:
        """Apply the scale to a novelty again."""
        return float(novelty * self.inflation + self.offset)


@dataclass(frozen=True, eq=False)
class Evidence:
    """Probes of a model, never changed: each verb returns other evidence."""

    # The bucket of each probe, by the size that the model had; and its class.
    buckets: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    labels: list[Label] = field(default_factory=list)
    # How novel it looked, and ``-log`` of its class's probability at each temperature (a column
    # each), both without the model's `Scale`.
    novelty: np.ndarray = field(default_factory=partial(np.empty, 0))
    losses: np.ndarray = field(
        default_factory=partial(np.empty, (0, len(TEMPERATURES)), np.float32)
    )

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
        """Add probes of a model of this scale.

        ``scores`` are those of samples left out, ``truth`` the column of each one's class.
        """
        losses = _losses(scores / scale.heat, truth)
        buckets = np.full(len(truth), scale.bucket)
        probes = Evidence(buckets, list(labels), scale.reduce(novelty), losses)
        return self._with(probes)._thinned(scale.bucket)

    def merge(self, other: Evidence) -> Evidence:
        """Add the probes of another model."""
        both = self._with(other)
        return both._thinned(int(both.buckets.max(initial=0)))

    def drop(self, fractions: Mapping[Label, float]) -> Evidence:
        """Drop a fraction of the probes of each class: that of its samples that was removed."""
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
        """Return the probes of one class."""
        own = [i for i, held in enumerate(self.labels) if held == label]
        return self._at(np.array(own, np.int64))

    def rename(self, old: Label, new: Label) -> Evidence:
        """Give a class another name."""
        return replace(self, labels=[new if label == old else label for label in self.labels])

    # ---------------------------------------------------------------- what it tells

    def temperature(self, scale: Scale) -> float:
        """Return what to divide scores by to make probabilities honest; 1 without probes."""
        rows = self._in_use(scale)
        if not len(rows):
            return 1.0
        unusual = np.log2(TEMPERATURES / USUAL_TEMPERATURE) / LOG2_SPREAD
        loss = self.losses[rows].sum(axis=0, dtype=np.float64) + 0.5 * unusual**2
        return float(scale.heat * 2.0 ** lowest(np.log2(TEMPERATURES), loss))

    def threshold(self, refused: float, scale: Scale) -> float:
        """Return the novelty that a fraction of known inputs exceeds; infinite without probes."""
        rows = self._in_use(scale)
        if not len(rows):
            return float("inf")
        return scale.restore(np.quantile(self.novelty[rows], 1 - refused))

    def class_thresholds(self, refused: float, scale: Scale) -> dict[Label, float]:
        """Return thresholds of single classes, for those with enough probes."""
        probes = self._at(self._in_use(scale))
        found = quantiles(probes.labels, probes.novelty, 1 - refused)
        return {label: scale.restore(novelty) for label, novelty in found.items()}

    def error_rate(self, scale: Scale) -> float:
        """Return the fraction of probes whose class is not the likeliest; 0 without probes."""
        rows = self._in_use(scale)
        if not len(rows):
            return 0.0
        nearest = int(np.abs(np.log(TEMPERATURES * scale.heat / self.temperature(scale))).argmin())
        # A class with more than half of the probability is the answer.
        wrong = self.losses[rows, nearest] > np.log(2)
        return float((wrong.sum() + 0.5) / (len(rows) + 1))

    # ---------------------------------------------------------------- storage

    def pack(self, names: Sequence[Label]) -> dict[str, np.ndarray]:
        """Return the probes as named arrays; labels as positions in ``names``."""
        positions = {name: i for i, name in enumerate(names)}
        arrays = {
            "filed": self.buckets,
            "labels": np.array([positions[label] for label in self.labels], np.int64),
            "novelty": self.novelty,
            "losses": self.losses,
        }
        return under(PREFIX, arrays)

    @classmethod
    def unpack(cls, arrays: Mapping[str, np.ndarray], names: Sequence[Label]) -> Evidence | None:
        """Return the probes that `pack` described; None if there are no such arrays."""
        own = inside(PREFIX, arrays)
        if "filed" not in own:
            return None
        found = cls(
            np.array(own["filed"], np.int64),
            [names[i] for i in own["labels"].tolist()],
            np.array(own["novelty"], np.float64),
            np.array(own["losses"], np.float32),
        )
        if len({len(found), len(found.buckets), len(found.novelty), len(found.losses)}) > 1:
            raise ValueError("the arrays of the evidence differ in length")
        return found

    # ---------------------------------------------------------------- inside

    def _with(self, other: Evidence) -> Evidence:
        return Evidence(
            np.concatenate([self.buckets, other.buckets]),
            [*self.labels, *other.labels],
            np.concatenate([self.novelty, other.novelty]),
            np.concatenate([self.losses, other.losses.astype(np.float32)]),
        )

    def _at(self, rows: np.ndarray) -> Evidence:
        labels = [self.labels[i] for i in rows]
        return Evidence(self.buckets[rows], labels, self.novelty[rows], self.losses[rows])

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


def quantiles(labels: Sequence[Label], novelty: np.ndarray, q: float) -> dict[Label, float]:
    """Return a quantile of the novelty of each class, for those with enough values."""
    values: dict[Label, list[float]] = {}
    for label, value in zip(labels, novelty.tolist(), strict=True):
        values.setdefault(label, []).append(value)
    enough = {label: own for label, own in values.items() if len(own) >= ENOUGH_FOR_A_CLASS}
    return {label: float(np.quantile(own, q)) for label, own in enough.items()}


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


def judge(model: Model, solution: Solution) -> Evidence:
    """Return a model's evidence, with the samples that wait judged as if they had not been learned.

    ``solution`` is the model's, solved from its statistics as they are now.
    """
    waiting, evidence = model.waiting, model.evidence
    counts = dict(zip(solution.classes.tolist(), solution.class_counts.tolist(), strict=True))
    chosen = [i for i, label in enumerate(waiting.labels) if counts.get(label, 0) > 1]
    chosen = chosen[:: -(-len(chosen) * len(counts) // MOST_PROBED) or 1]
    if not chosen:
        return evidence
    labels = [waiting.labels[i] for i in chosen]
    truth = np.searchsorted(solution.classes, np.array(labels))
    backend, step = model.backend, max(1, PROBED_AT_ONCE // len(counts))
    for start in range(0, len(labels), step):
        some = slice(start, start + step)
        rows = waiting.rows[chosen[some]]
        with backend.small_work_on_host():
            parts = [
                leave_one_out(member, member.map.lift(rows), labels[some])
                for member in model.members
            ]
            blended = [backend.asarray(scores) for scores, _ in parts]
            scores = backend.to_numpy(solution.combined(blended))
            known = [rule.familiarity for rule in solution.rules if rule.familiarity is not None]
            each = [one.novelty_of_lda(own) for one, (_, own) in zip(known, parts, strict=True)]
        novelty = np.asarray(sum(each) / len(each))
        evidence = evidence.add(solution.scale, labels[some], scores, truth[some], novelty)
    return evidence


def leave_one_out(
    member: Member, rows: Array, labels: Sequence[Label]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores that learned samples would have got, had they not been learned.

    With ``R = (S + rho I)^-1`` and ``v = z - mu_c`` for a sample of a class of n samples, leaving
    it out makes ``mu_c - v / (n - 1)`` of its mean and ``R + k (R v)(R v)^T`` of R,
    ``k = a / (1 - a v^T R v)``, ``a = n / (n - 1)``.

    Parameters
    ----------
    member : Member
        Which has been solved.
    rows : array of shape (n, D)
        Lifted samples, of classes with two samples or more.
    labels : sequence
        Their classes.

    Returns
    -------
    scores, of_lda : ndarray of shape (n, M)
        Of the rule, and of LDA's; classes in the order of their sorted labels.
    """
    assert member.solved is not None
    (plain, terms), backend = member.solved, member.map.backend
    at = np.argsort(plain.order)[member.statistics.locate(labels)]
    own_means, own_weights = plain.of(at)
    relative = rows - plain.centre
    v = relative - own_means
    lever = plain.precision.apply(v)
    vv = backend.to_numpy((v * lever).sum(1), np.float64)
    zv = backend.to_numpy((relative * lever).sum(1), np.float64)
    # R is symmetric: the scores N (z - g) R (mu_m - g) need no weights but the own class's.
    n, counts = plain.n_samples, plain.counts[at].astype(np.float64)
    means_v, linear = _with_all_means(plain, [lever, n * lever + own_weights])
    return left_out_scores(terms, at, counts, n, vv=vv, zv=zv, means_v=means_v, linear=linear)


def left_out_scores(
    terms: RuleTerms,
    at: np.ndarray,
    counts: np.ndarray,
    n: int,
    *,
    vv: np.ndarray,
    zv: np.ndarray,
    means_v: np.ndarray,
    linear: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of samples left out, from inner products through ``R``; also those of LDA.

    Parameters
    ----------
    terms : RuleTerms
        What the rule was made of.
    at, counts : ndarray of shape (n,)
        Class of each sample, and how many samples that has.
    n : int
        Number of all samples.
    vv, zv : ndarray of shape (n,)
        ``v^T R v`` and ``(z - g)^T R v``.
    means_v, linear : ndarray of shape (n, M)
        ``(mu_m - g)^T R v`` and ``n (z - g)^T R (mu_m - g)``; the latter is overwritten.
    """
    ratio, step = counts / (counts - 1), 1 / (counts - 1)
    k = ratio / np.maximum(1 - ratio * vv, SMALLEST_LEVERAGE_SLACK)
    pick = np.arange(len(at))
    linear += n * (k * zv)[:, None] * means_v
    linear[pick, at] -= n * (step * zv + k * zv * step * vv)
    mixed = terms.mixing.apply(means_v)
    part = terms.mixing.column(at)
    moved = mixed - part * (step * vv)[:, None]
    squares = terms.squares + n * (
        -2 * step[:, None] * part * mixed
        + (step**2 * vv)[:, None] * part**2
        + k[:, None] * moved**2
    )
    linear, offsets = terms.mixing.apply(linear), terms.extra - 0.5 * squares
    blended = linear if terms.blend is None else linear @ terms.blend
    return blended + offsets, linear + offsets


def _with_all_means(plain: PlainWeights, vectors: list[Array]) -> list[np.ndarray]:
    """Return inner products with the means of all classes, relative to the mean of means."""
    means, backend = plain.means, plain.precision.backend
    stacked = backend.concatenate(vectors)
    products = np.empty((len(stacked), len(means)))
    for part in class_blocks(len(means)):
        found = stacked @ (means[part] - plain.centre).T
        products[:, part] = backend.to_numpy(found)
    return np.split(products[:, plain.order], len(vectors))
