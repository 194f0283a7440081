"""A solved classifier: all that answering needs, never changed once made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from klda.engine.arrays import Array, Backend, inside, under
from klda.engine.evidence import USUAL_TEMPERATURE, Evidence, Scale
from klda.engine.feature_map import FeatureMap, KernelMap
from klda.engine.few_evidence import FewEvidence, usual_temperature
from klda.engine.rule import Familiarity, Settings
from klda.errors import KldaError
from klda.labels import Label

BLOCK_BYTES = {"cpu": 80 << 20, "gpu": 1 << 30}  # of features, or of scores, computed at once
BLOCK_ROWS = {"cpu": 4096, "gpu": 1 << 16}  # summed one after another: more lose digits
FEWEST_ROWS = 64  # in a block: all weights are read once per block
# Scores that answers are made of at once, because that takes several arrays of their size.
ANSWERED_BYTES = {"cpu": 8 << 20, "gpu": 1 << 30}


def row_blocks(n_rows: int, width: int, backend: Backend) -> list[slice]:
    """Split rows into blocks, for each of which an array of this width is computed at once."""
    kind = "cpu" if backend.device == "cpu" else "gpu"
    size = max(FEWEST_ROWS, BLOCK_BYTES[kind] // (width * backend.dtype.itemsize))
    size = min(size, BLOCK_ROWS[kind])
    return [slice(i, min(i + size, n_rows)) for i in range(0, n_rows, size)]


@dataclass(frozen=True)
class Answer:
    """What the model says about one input.

    Attributes
    ----------
    top : list of (label, probability)
        Likeliest first.
    known : bool or None
        Whether the input is like anything learned; None if there is too little evidence to tell.
    novelty : float or None
        How unlike anything learned it is.
    """

    top: list[tuple[Label, float]]
    known: bool | None
    novelty: float | None


@dataclass(frozen=True)
class LinearRule:
    """Weights and biases of one member, classes in the order of their sorted labels.

    Attributes
    ----------
    weights : array of shape (M, D)
        ``P (mu_m - g)``, g being the mean of the class means and mu_m the class's mean as estimated
        (see `klda.engine.shrinkage`).
    biases : array of shape (M,)
        ``-1/2 (mu_m - g)^T P (mu_m + g)``, plus the corrections for noise and the priors.
    rho : float
        The ridge on the scale of the scatter: what was added to its diagonal.
    spread : float
        ``tr(P Sigma)`` as a new sample sees it (``D_out``); 0 without the correction.
    inflation : float
        How much larger that is than in the sample; 1 without the correction.
    familiarity : Familiarity or None
        What tells known inputs from unknown ones.
    """

    weights: Array
    biases: Array
    rho: float = 0.0
    spread: float = 0.0
    inflation: float = 1.0
    familiarity: Familiarity | None = None


@dataclass(frozen=True, eq=False)
class Solution:
    """A solved classifier, immutable: any number of threads may ask it while a model changes.

    Attributes
    ----------
    backend : Backend
        Where the arrays are.
    maps : tuple of FeatureMap or KernelMap
        One per member of an ensemble.
    classes : ndarray of shape (M,)
        Labels, sorted.
    class_counts : ndarray of shape (M,)
        Samples behind each class.
    rules : tuple of LinearRule
        One per member.
    combine : {"scores", "probabilities"}
        What is averaged over the members.
    evidence : Evidence, FewEvidence or None
        What leaving samples out has told; None where nothing is known about that.
    """

    backend: Backend
    maps: tuple[FeatureMap | KernelMap, ...]
    classes: np.ndarray
    class_counts: np.ndarray
    rules: tuple[LinearRule, ...]
    combine: str
    evidence: Evidence | FewEvidence | None

    # ---------------------------------------------------------------- scores

    def scores(self, rows: Array, columns: np.ndarray | None = None) -> np.ndarray:
        """Return the scores ``(n, M)`` of rows; with ``columns``, of these classes."""
        blocks = self._score_blocks(rows, columns)
        found = [self.backend.to_numpy(self.combined(parts)) for parts in blocks]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def best(self, rows: Array, columns: np.ndarray | None = None) -> np.ndarray:
        """Return the position of the best class of each row.

        With ``columns`` among these classes, positions being those in ``columns``.
        """
        blocks = self._score_blocks(rows, columns)
        found = [self.backend.to_numpy(self.combined(parts).argmax(1)) for parts in blocks]
        return np.concatenate(found)

    def likeliest(
        self, rows: Array, k: int, columns: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return labels and probabilities ``(n, k)`` of the likeliest classes.

        With ``columns`` among these classes. Of classes that tie, the first comes first.
        """
        labels = self.classes if columns is None else self.classes[columns]
        blocks = self._score_blocks(rows, columns)
        found, probabilities = zip(*(self._top(parts, k) for parts in blocks), strict=True)
        return labels[np.concatenate(found)], np.concatenate(probabilities)

    def _top(self, parts: Sequence[Array], k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return positions and probabilities of the likeliest classes of a block of rows."""
        scores, xp = self.combined(parts), self.backend.xp
        best, positions = self.backend.top(scores, k)
        # In float32 some probabilities would exceed one.
        scores = xp.asarray(scores, dtype=xp.float64)
        largest = xp.amax(scores, 1)
        total = xp.exp((scores - largest[:, None]) / self.temperature).sum(1)
        log_total = self.backend.to_numpy(largest / self.temperature + xp.log(total))
        return positions, np.exp(best.astype(np.float64) / self.temperature - log_total[:, None])

    def _score_blocks(
        self, rows: Array, columns: np.ndarray | None = None
    ) -> Iterator[list[Array]]:
        """Score rows block by block: yield the scores of each member.

        Memory does not grow with rows times classes.
        """
        backend = self.backend
        at = slice(None) if columns is None else backend.index(columns)
        weights = [(rule.weights[at], rule.biases[at]) for rule in self.rules]
        n_classes = len(weights[0][1])
        budget = ANSWERED_BYTES["cpu" if backend.device == "cpu" else "gpu"]
        step = max(1, budget // (n_classes * backend.dtype.itemsize))
        for block in row_blocks(len(rows), max(self.maps[0].n_components, n_classes), backend):
            own_rows, pairs = backend.asarray(rows[block]), zip(self.maps, weights, strict=True)
            found = [backend.linear(own_map.lift(own_rows), *own) for own_map, own in pairs]
            for start in range(0, len(own_rows), step):
                yield [scores[start : start + step] for scores in found]

    def combined(self, parts: Sequence[Array]) -> Array:
        """Return one score per class from those of all members."""
        if len(parts) == 1 and self.combine == "scores":
            return parts[0]
        if self.combine == "scores":
            return sum(parts) / len(parts)
        xp = self.backend.xp
        mean = sum(softmax(part, xp) for part in parts) / len(parts)
        return xp.log(mean.clip(float(np.finfo(np.float64).tiny)))

    # ---------------------------------------------------------------- doubt

    @cached_property
    def scale(self) -> Scale:
        """On what scale the scores are."""
        n_samples = int(self.class_counts.sum())
        spread = np.mean([rule.spread for rule in self.rules])
        offset = float(spread) * len(self.classes) / max(n_samples, 1)
        inflation = heat = float(np.mean([rule.inflation for rule in self.rules]))
        known = self._familiarities()
        if any(len(each.unblend) for each in known):
            # Regression and the ridge vary with the samples per class, and scores with them.
            usual = [usual_temperature(each.lengths, self.class_counts, True) for each in known]
            heat = float(np.mean(usual)) / USUAL_TEMPERATURE
        return Scale(n_samples, inflation, offset, heat)

    @cached_property
    def told(self) -> Evidence | FewEvidence | None:
        """The evidence, or what is usual with one sample of each class: none can be left out."""
        known, single = self._familiarities(), int(self.class_counts.sum()) <= len(self.classes)
        if not single or not known or not isinstance(self.evidence, Evidence):
            return self.evidence
        lengths = np.mean([each.lengths for each in known], axis=0)
        blended = any(len(each.unblend) for each in known)
        return FewEvidence.usual(lengths, self.class_counts, blended)

    @cached_property
    def temperature(self) -> float:
        """What scores are divided by before they become probabilities."""
        return 1.0 if self.told is None else self.told.temperature(self.scale)

    def threshold(self, refused: float) -> float:
        """Return the novelty beyond which an input is unknown; infinite without evidence."""
        return np.inf if self.told is None else self.told.threshold(refused, self.scale)

    def class_thresholds(self, refused: float) -> dict[Label, float]:
        """Return thresholds of single classes, for those with enough evidence."""
        return {} if self.evidence is None else self.evidence.class_thresholds(refused, self.scale)

    def novelty(self, rows: Array) -> np.ndarray:
        """Return how unlike anything learned rows are."""
        return np.concatenate([self._novelty(parts) for parts in self._score_blocks(rows)])

    def _novelty(self, parts: Sequence[Array]) -> np.ndarray:
        """Return the novelty of rows from the scores ``(n, M)`` of each member."""
        pairs = zip(self._familiarities(), parts, strict=True)
        each = [known.novelty(self.backend.to_numpy(part)) for known, part in pairs]
        return np.asarray(sum(each) / len(each))

    def _familiarities(self) -> list[Familiarity]:
        return [rule.familiarity for rule in self.rules if rule.familiarity is not None]

    # ---------------------------------------------------------------- answers

    def answer(self, rows: Array, top: int, refused: float) -> list[Answer]:
        """Answer in one pass: the likeliest classes, and whether rows are like anything learned.

        ``refused`` is the fraction of inputs of known classes that may be called unknown.
        """
        limit, answers = self.threshold(refused), []
        for parts in self._score_blocks(rows):
            with np.errstate(over="ignore", invalid="ignore"):
                positions, probabilities = self._top(parts, top)
                novelty = (
                    self._novelty(parts) if self._familiarities() else [np.nan] * len(parts[0])
                )
            if not np.isfinite(probabilities).all():
                raise KldaError(
                    "An input is too far from everything learned to be compared with it."
                )
            found = zip(self.classes[positions].tolist(), probabilities.tolist(), strict=True)
            for (names, chances), new in zip(found, map(float, novelty), strict=True):
                told = np.isfinite(new)
                known = bool(new <= limit) if told and np.isfinite(limit) else None
                pairs = list(zip(names, chances, strict=True))
                answers.append(Answer(pairs, known, new if told else None))
        return answers

    # ---------------------------------------------------------------- storage

    @property
    def keeps(self) -> dict[str, int]:
        """How many rows of single samples it keeps: those that the exact kernel compares with."""
        own_map = self.maps[0]
        return {"rows": own_map.n_components} if isinstance(own_map, KernelMap) else {}

    def pack(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all of it as named arrays and JSON-able values."""
        arrays: dict[str, np.ndarray] = {}
        members = []
        for i, (rule, own_map) in enumerate(zip(self.rules, self.maps, strict=True)):
            own, meta = own_map.pack()
            own["weights"] = self.backend.to_numpy(rule.weights)
            own["biases"] = self.backend.to_numpy(rule.biases)
            if rule.familiarity is not None:
                own |= under("familiarity/", rule.familiarity.pack())
            arrays |= under(f"predict/{i}/", own)
            scales = {"rho": rule.rho, "spread": rule.spread, "inflation": rule.inflation}
            members.append(meta | scales)
        if self.evidence is not None:
            arrays |= self.evidence.pack(self.classes.tolist())
        meta = {
            "n_features": self.maps[0].n_features,
            "classes": self.classes.tolist(),
            "counts": self.class_counts.tolist(),
            "members": members,
        }
        return arrays, meta

    @classmethod
    def unpack(
        cls,
        arrays: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        backend: Backend,
        settings: Settings,
    ) -> Solution:
        """Return the solution that `pack` described; arrays are shared where they can be."""
        maps: list[FeatureMap | KernelMap] = []
        rules = []
        for i, entry in enumerate(meta.get("few", meta["members"])):
            own = inside(f"predict/{i}/", arrays)
            if "support" in own:
                maps.append(KernelMap.unpack(own, entry, backend))
            else:
                own_map = FeatureMap.unpack(own, entry, meta["n_features"], backend)
                maps.append(own_map.with_unit_length() if settings.nearest_mean else own_map)
            familiarity, known = None, inside("familiarity/", own)
            if "offsets" in known:
                familiarity = Familiarity.unpack(known)
                np.asarray(meta["counts"])[familiarity.anchors]  # raises if there are no such
            rules.append(
                LinearRule(
                    backend.asarray(own["weights"]),
                    backend.asarray(own["biases"]),
                    float(entry["rho"]),
                    float(entry["spread"]),
                    float(entry.get("inflation", 1.0)),
                    familiarity,
                )
            )
        return cls(
            backend,
            tuple(maps),
            np.array(meta["classes"]),
            np.array(meta["counts"], np.int64),
            tuple(rules),
            settings.combine,
            _evidence(arrays, meta["classes"]) if settings.calibrated else None,
        )


def _evidence(arrays: Mapping[str, np.ndarray], names: Sequence[Label]) -> Evidence | FewEvidence:
    return FewEvidence.unpack(arrays, names) or Evidence.unpack(arrays, names) or Evidence()


def softmax(scores: Array, xp: Any = np) -> Array:
    """Return probabilities of scores ``(n, M)`` in double precision, each row summing to one."""
    scores = xp.asarray(scores, dtype=xp.float64)
    found = xp.exp(scores - xp.amax(scores, 1)[:, None])
    return found / found.sum(1)[:, None]
