"""A solved classifier: all that answering needs, never changed once made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Backend, add_prefix, product, row_blocks, strip_prefix
from klda.engine.calibration import Calibration
from klda.engine.feature_map import FeatureMap, KernelMap, unpack_map
from klda.engine.novelty import RelativeMahalanobis
from klda.errors import KldaError
from klda.labels import Label, as_list, check_labels_known

# Scores that answers are made of at once, because that takes several arrays of their size.
ANSWERED_BYTES = {"cpu": 8 << 20, "gpu": 1 << 30}
PREFIX = "predict/"


@dataclass(frozen=True)
class Answer:
    """What the model says about one input.

    Attributes
    ----------
    top : list of (label, probability)
        Likeliest first.
    known : bool or None
        Whether the input is like anything learned; None if there is too little evidence to tell.
    novelty : float
        How unlike anything learned it is.
    """

    top: list[tuple[Label, float]]
    known: bool | None
    novelty: float


@dataclass(frozen=True)
class Answers:
    """What the model says about n inputs.

    Attributes
    ----------
    labels, probabilities : ndarray of shape (n, k)
        The k likeliest classes, the likeliest first; of equals the first in the order of labels.
    novelty : ndarray of shape (n,)
        How unlike anything learned the inputs are; NaN if that was not asked.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    novelty: np.ndarray

    def each(self, limit: float | np.ndarray) -> list[Answer]:
        """Return them one by one; inputs beyond a limit of novelty, or their own, are not known."""
        if not np.isfinite(self.probabilities).all():
            raise KldaError("An input is too far from everything learned to be compared with it.")
        columns = self.labels.tolist(), self.probabilities.tolist(), self.novelty.tolist()
        limits = np.broadcast_to(limit, len(self.novelty)).tolist()
        return [
            Answer(
                list(zip(names, chances, strict=True)),
                new <= most if np.isfinite(most) else None,
                new,
            )
            for names, chances, new, most in zip(*columns, limits, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Solution:
    """A solved classifier, immutable: any number of threads may ask it while a model changes.

    Attributes
    ----------
    map : FeatureMap or KernelMap
        From a row to its features.
    classes : ndarray of shape (M,)
        Labels, sorted.
    class_counts : ndarray of shape (M,)
        Samples behind each class.
    weights : array of shape (M, D)
        ``P (mu_m - g)``, g being the mean of the class means and mu_m the class's mean as estimated
        (see `klda.engine.means`), with regression blended in (`klda.engine.rule`).
    biases : array of shape (M,)
        ``-1/2 (mu_m - g)^T P (mu_m + g)``, plus the corrections for noise and the priors.
    rho : float
        The ridge on the scale of the scatter: what was added to its diagonal.
    distance : RelativeMahalanobis
        How unlike anything learned an input is.
    calibration : Calibration or None
        How sure to be; None where nothing is known about that.
    """

    map: FeatureMap | KernelMap
    classes: np.ndarray
    class_counts: np.ndarray
    weights: Array
    biases: Array
    rho: float
    distance: RelativeMahalanobis
    calibration: Calibration | None = None

    @cached_property
    def counts(self) -> dict[Label, int]:
        """Samples of each class, sorted by label."""
        return dict(zip(self.classes.tolist(), self.class_counts.tolist(), strict=True))

    @property
    def backend(self) -> Backend:
        """Where the arrays are."""
        return self.map.backend

    @property
    def n_features(self) -> int:
        """Length of a row."""
        return self.map.n_features

    @property
    def temperature(self) -> float:
        """What scores are divided by before they become probabilities."""
        return 1.0 if self.calibration is None else self.calibration.temperature

    def threshold(self, reject: float) -> float:
        """Return the novelty that a fraction of known inputs exceeds; infinite if unknown."""
        return np.inf if self.calibration is None else self.calibration.threshold(reject)

    def limits(self, labels: np.ndarray, reject: float, *, by_class: bool) -> float | np.ndarray:
        """Return the novelty beyond which inputs with these answers are unknown.

        By the class that is the answer, if it has its own.
        """
        limit = self.threshold(reject)
        if not by_class or self.calibration is None:
            return limit
        own = self.calibration.class_thresholds(reject)
        return np.array([own.get(label, limit) for label in labels.tolist()])

    # ---------------------------------------------------------------- answers

    def answer(
        self,
        rows: Array,
        top: int = 1,
        *,
        among: Sequence[Label] | None = None,
        novelty: bool = False,
    ) -> Answers:
        """Answer for rows, in one pass: one lift and one scoring each.

        Parameters
        ----------
        rows : array of shape (n, d)
            Feature rows.
        top : int
            How many classes to name.
        among : list of labels, optional
            The classes to choose from.
        novelty : bool
            Also say how unlike anything learned they are; not with `among`.
        """
        assert among is None or not novelty
        columns = self._columns(among)
        labels, found = self.classes[columns], []
        for scores in self._score_blocks(rows, columns):
            with np.errstate(over="ignore", invalid="ignore"):
                positions, probabilities = self._top(scores, top)
                new = np.full(len(positions), np.nan)
                if novelty:
                    new = self.distance.of_scores(self.backend.to_numpy(scores))
            found.append((labels[positions], probabilities, new))
        return Answers(*map(np.concatenate, zip(*found, strict=True)))

    def scores(self, rows: Array, among: Sequence[Label] | None = None) -> np.ndarray:
        """Return the scores ``(n, M)`` of rows; with ``among``, of these classes."""
        blocks = self._score_blocks(rows, self._columns(among))
        return np.concatenate([self.backend.to_numpy(scores) for scores in blocks])

    def probabilities(self, rows: Array, among: Sequence[Label] | None = None) -> np.ndarray:
        """Return the probabilities ``(n, M)`` of rows, each summing to one; columns as `scores`."""
        return softmax(self.scores(rows, among).astype(np.float64) / self.temperature)

    def novelty(self, rows: Array) -> np.ndarray:
        """Return how unlike anything learned rows are."""
        return self.answer(rows, novelty=True).novelty

    def _top(self, scores: Array, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and probabilities of the likeliest classes of a block of rows."""
        xp, best, positions = self.backend.xp, *self.backend.top(scores, k)
        # In float32 some probabilities would exceed one.
        scores = xp.asarray(scores, dtype=xp.float64)
        largest = xp.amax(scores, 1)
        total = xp.exp((scores - largest[:, None]) / self.temperature).sum(1)
        log_total = self.backend.to_numpy(largest / self.temperature + xp.log(total))
        return positions, np.exp(best.astype(np.float64) / self.temperature - log_total[:, None])

    def _columns(self, among: Sequence[Label] | None) -> np.ndarray | slice:
        """Return the columns of some classes; all of them by default."""
        if among is None:
            return slice(None)
        wanted = as_list(among)
        if not wanted:
            raise KldaError("among=[] names no class; give at least one label, or None for all.")
        wanted = check_labels_known(self.counts, wanted, "among")
        if len(set(wanted)) < len(wanted):
            raise KldaError(f"among={wanted!r} names a class twice; give each label once.")
        return np.searchsorted(self.classes, np.array(wanted))

    def _score_blocks(self, rows: Array, columns: np.ndarray | slice) -> Iterator[Array]:
        """Score rows block by block: memory does not grow with rows times classes."""
        backend = self.backend
        at = columns if isinstance(columns, slice) else backend.index(columns)
        weights, biases = self.weights[at], self.biases[at]
        n_classes = len(biases)
        budget = ANSWERED_BYTES["cpu" if backend.device == "cpu" else "gpu"]
        step = max(1, budget // (n_classes * backend.dtype.itemsize))
        for block in row_blocks(len(rows), max(self.map.n_components, n_classes), backend):
            scores = product(self.map.lift(rows[block]), weights.T)
            scores += biases
            for start in range(0, len(scores), step):
                yield scores[start : start + step]

    # ---------------------------------------------------------------- storage

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all of it as named arrays and JSON-able values."""
        arrays, meta = self.map.pack()
        arrays["weights"] = self.backend.to_numpy(self.weights)
        arrays["biases"] = self.backend.to_numpy(self.biases)
        arrays |= add_prefix("novelty/", self.distance.pack())
        if self.calibration is not None:
            arrays |= add_prefix("calibration/", self.calibration.pack(self.classes.tolist()))
        meta |= {
            "n_features": self.n_features,
            "classes": self.classes.tolist(),
            "counts": self.class_counts.tolist(),
            "rho": self.rho,
        }
        return add_prefix(PREFIX, arrays), meta

    @classmethod
    def unpack(
        cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], backend: Backend
    ) -> Solution:
        """Return the solution that `pack` described; arrays are shared where they can be."""
        own = strip_prefix(PREFIX, arrays)
        feature_map: FeatureMap | KernelMap
        if "support" in own:
            feature_map = KernelMap.unpack(own, meta, backend)
        else:
            feature_map = unpack_map(own, meta, meta["n_features"], backend)
        calibration = strip_prefix("calibration/", own)
        classes = meta["classes"]
        return cls(
            feature_map,
            np.array(classes),
            np.array(meta["counts"], np.int64),
            feature_map.backend.asarray(own["weights"]),
            feature_map.backend.asarray(own["biases"]),
            float(meta["rho"]),
            RelativeMahalanobis.unpack(strip_prefix("novelty/", own), len(classes)),
            Calibration.unpack(calibration, classes) if calibration else None,
        )


def softmax(scores: np.ndarray) -> np.ndarray:
    """Return probabilities of scores ``(n, M)`` in double precision, each row summing to one."""
    scores = np.asarray(scores, dtype=np.float64)
    found = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(found / found.sum(axis=1, keepdims=True))
