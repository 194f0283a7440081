"""From statistics to a linear classifier: ``w_m = P mu_m``, ``b_m = -1/2 mu_m^T w_m``.

Scores are relative to a class at the mean of the class means: a constant that all classes share is
left out, so that float32 spends its digits on the differences between classes.

``P`` is the inverse of the regularised covariance; it is never formed (`klda.engine.precision`).
After a small change its factor stays as it is and the Woodbury identity brings the change in,
always from the same factor, so that errors don't add up over many changes.

The ridge is relative to the mean diagonal of the covariance and is rounded to a fixed grid (eight
steps per octave, at most 4.5% off). A small change then leaves it where it was, a low-rank update
is exact, and the classifier is a function of the statistics alone, not of when it was solved.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.engine.arrays import Array
from klda.engine.familiarity import Familiarity
from klda.engine.hints import useful_hints
from klda.engine.precision import NotPositiveDefiniteError, PlainWeights, Precision
from klda.engine.regression import blend
from klda.engine.shrinkage import PRIOR_WEIGHT, Mixing, Shrinkage, choose_anchors, log_priors
from klda.engine.solution import LinearRule, Solution
from klda.engine.statistics import ClassStatistics, GrowingRows, class_blocks
from klda.errors import KldaError
from klda.labels import Label

if TYPE_CHECKING:
    from klda.engine.model import Model

AUTO_RIDGES = (1e-1, 1e-2)  # at as many samples as components, and from twice as many on
FEW_SHOT_RIDGE = 400.0  # at one sample per class; falls with their number to the power of -2.5
STEPS_PER_OCTAVE = 8
EXACT_TRACE_BELOW = 1024  # components; above, the trace of P is estimated from fixed probes
N_PROBES = 64
MOST_RAISES = 12
SMALLEST_SLACK = 0.05  # of 1 - D_eff / (N - M), below which D_out is not to be trusted
DAMAGED = "the model was damaged. Restore it from a copy."
UPDATED_PART = 8  # a factor is replaced once the changes since exceed D / 8 rows


class RidgeRaisedWarning(UserWarning):
    """The ridge was raised because the scatter was not positive definite in this precision."""


@dataclass(frozen=True)
class Settings:
    """What the user chose of all that a solution depends on.

    Attributes
    ----------
    ridge : float or "auto"
        Added to the covariance's diagonal, relative to its mean.
    priors : {"auto", "uniform", "empirical"}
        Prior probabilities of the classes.
    small_sample_correction : bool
        Estimate the means of rare classes with the help of the others.
    combine : {"scores", "probabilities"}
        What is averaged over the members of an ensemble.
    calibrated : bool
        Use the model's evidence for probabilities and for what is unknown.
    nearest_mean : bool
        Answer with the nearest class mean by cosine, without a covariance.
    rule : {"auto", "lda"}
        ``"lda"``: the paper's rule. ``"auto"``: regression is added to it, and a larger ridge is
        used while there are few samples of each class.
    """

    ridge: float | str = "auto"
    priors: str = "auto"
    small_sample_correction: bool = True
    combine: str = "scores"
    calibrated: bool = False
    nearest_mean: bool = False
    rule: str = "lda"

    @classmethod
    def of(cls, parameters: Mapping[str, Any], *, nearest_mean: bool) -> Settings:
        """Take from a classifier's parameters those that a solution depends on."""
        known = {each.name for each in fields(cls)} & parameters.keys()
        return cls(nearest_mean=nearest_mean, **{name: parameters[name] for name in known})

    def relative_ridge(self, counts: np.ndarray, n_components: int) -> float:
        """Return the ridge relative to the mean diagonal of the covariance."""
        if not isinstance(self.ridge, str):
            return self.ridge
        n_samples = max(int(counts.sum()), 1)
        ratio = n_samples / n_components
        first, last = AUTO_RIDGES
        if ratio < 1:  # worth D / 10 samples whose scatter is the same in all directions
            ridge = first / ratio
        else:
            ridge = float(first * (last / first) ** min(np.log2(ratio), 1.0))
        if self.rule == "lda":
            return ridge
        return max(ridge, FEW_SHOT_RIDGE * float(n_samples / max(len(counts), 1)) ** -2.5)


def solve(model: Model, settings: Settings) -> Solution:
    """Return the classifier of a model as it is now: all that answering needs."""
    classes, counts = model.classes, model.class_counts
    if settings.nearest_mean:
        rules, maps = [_nearest_mean(model)], [model.members[0].map.with_unit_length()]
    else:
        hints, statistics = useful_hints(model), model.statistics
        ridge = settings.relative_ridge(statistics.counts, statistics.n_components)
        jobs = [
            partial(member.solver.solve, ridge, settings, member.map.lift(hints.rows), hints.labels)
            for member in model.members
        ]
        with model.backend.small_work_on_host():
            if all(member.solver.has_factor for member in model.members):
                rules = [job() for job in jobs]  # small ones
            else:
                rules = model.backend.side_by_side(jobs)
        maps = model.maps
    evidence = model.evidence if settings.calibrated else None
    return Solution(
        model.backend, tuple(maps), classes, counts, tuple(rules), settings.combine, evidence
    )


def _nearest_mean(model: Model) -> LinearRule:
    statistics = model.members[0].statistics
    means = model.backend.to_numpy(statistics.means)[statistics.order]
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    means = means / np.maximum(lengths, np.finfo(means.dtype).tiny)
    return LinearRule(model.backend.asarray(means), model.backend.zeros((len(means),)))


@dataclass(frozen=True)
class RuleTerms:
    """What a rule is made of, beyond the plain weights; classes in the order of their labels."""

    mixing: Mixing
    squares: np.ndarray  # (mu_m - g)^T P (mu_m - g) of the estimated means
    extra: np.ndarray  # corrections and priors in the biases
    blend: np.ndarray | None  # what linear scores are multiplied by, where regression is added
    familiarity: Familiarity

    @property
    def offsets(self) -> np.ndarray:
        """What scores have beyond the linear ones."""
        return np.asarray(self.extra - 0.5 * self.squares)

    @classmethod
    def of(
        cls, shrinkage: Shrinkage, squares: np.ndarray, inflation: float, settings: Settings
    ) -> RuleTerms:
        """Work them out from inner products of class means, all classes having been mixed."""
        counts, mixing = shrinkage.counts, shrinkage.mixing
        extra = mixing.correction
        if settings.priors == "empirical":
            extra = extra + np.log(counts / counts.sum())
        elif settings.priors == "auto":
            extra = extra + PRIOR_WEIGHT * inflation * log_priors(counts)
        gram, blending = mixing.gram(shrinkage.inner), None
        if settings.rule == "auto" and len(shrinkage.anchors) == len(counts) > 1:
            length = float(np.median(shrinkage.inner.diagonal()))
            blending = blend(gram, counts, length, shrinkage.excess())
        offsets = extra - 0.5 * squares
        known = Familiarity.of(gram, shrinkage.anchors, squares, offsets, counts, blending)
        return cls(mixing, squares, extra, blending, known)


@dataclass(frozen=True)
class LeaveOneOutTerms(RuleTerms):
    """What leaving samples out needs."""

    counts: np.ndarray  # samples of each class
    order: np.ndarray  # positions of the sorted labels among the means
    plain: PlainWeights


class Solver:
    """Solves for the classifier of some statistics; keeps the factor between small changes.

    Attributes
    ----------
    terms : LeaveOneOutTerms or None
        What the last solution was made of.
    """

    def __init__(self, statistics: ClassStatistics) -> None:
        self.statistics = statistics
        self.backend = statistics.backend
        self.terms: LeaveOneOutTerms | None = None
        self._base_weights = GrowingRows(statistics.n_components, statistics.backend)
        self._stale: set[int] = set()
        self._pending: list[tuple[Array, int]] = []
        self._probes: Array | None = None
        self.reset()

    def reset(self) -> None:
        """Forget the factor; the next solve makes a new one."""
        self._precision: Precision | None = None
        self._nominal = 0.0
        self._reference: Array | None = None  # the mean of means when the factor was made
        self._probed: Array | None = None
        self._pending.clear()
        self.note_reorder()

    @property
    def has_factor(self) -> bool:
        """Whether solving takes no factorisation, unless the ridge is another one by now."""
        return self._precision is not None

    def note_reorder(self) -> None:
        """Take note that classes were dropped: means have other positions now."""
        self._base_weights.clear()
        self._stale.clear()

    def note_change(self, rows: Array, sign: int, labels: Sequence[Label]) -> None:
        """Take note that the scatter changed by ``sign * rows^T rows`` and these means moved.

        The rows are copied where they are kept: their memory may be used again.
        """
        if self._precision is None:
            return
        since = len(self._precision.gains) + sum(len(kept) for kept, _ in self._pending) + len(rows)
        if since > self.statistics.n_components // UPDATED_PART:
            self.reset()
            return
        try:
            self._pending.append((self.backend.copy(rows), sign))
        except (MemoryError, RuntimeError):  # torch's lack of memory is a RuntimeError
            self.reset()
            return
        self._stale.update(self.statistics.locate(labels).tolist())

    def solve(
        self, ridge: float, settings: Settings, hints: Array, hinted: Sequence[Label]
    ) -> LinearRule:
        """Solve for the classifier of the statistics as they are now.

        Classes that have no samples are known by hints: one row each, and their labels.
        """
        means = self.statistics.means if self.statistics.labels else hints
        nominal, scale = self._absolute(ridge, means)
        dtype, n_samples = self.backend.dtype, self.statistics.n_scattered
        why = f"{n_samples} samples is not positive definite in {dtype.name} with ridge={ridge:g}"
        for rho in rising_ridges(nominal, scale, float(np.finfo(dtype).eps * scale), why):
            try:
                precision = self._up_to_date(rho, nominal, means.mean(0))
                plain = self._plain_weights(precision, hints, settings.small_sample_correction)
                return self._rule(plain, hinted, settings)
            except NotPositiveDefiniteError:
                self.reset()
            except BaseException:
                self.reset()  # a half-made update must not be used, nor applied again
                raise
        raise KldaError(f"The scatter can't be factorised with any ridge: {DAMAGED}")

    def _absolute(self, ridge: float, means: Array) -> tuple[float, float]:
        """Return the ridge on the scale of the scatter, on the grid, and that scale."""
        statistics = self.statistics
        assert statistics.scatter is not None
        size = statistics.n_components
        scale = max(statistics.scatter.trace(), 0.0) / size
        turnover = float(statistics.scatter.turnover) / size
        square = float(self.backend.sum_of_squares(means)) / max(1, len(means) * size)
        of_means = square * max(statistics.n_scattered, 1)
        return absolute_ridge(ridge, scale, turnover, of_means, self.backend.dtype), scale

    def _up_to_date(self, rho: float, nominal: float, reference: Array) -> Precision:
        """Return the precision, factorised again if the ridge is another one."""
        if self._precision is None or self._nominal != nominal:
            assert self.statistics.scatter is not None
            self.reset()
            self._precision = Precision.factorised(self.statistics.scatter, rho)
            self._nominal, self._reference = nominal, reference
        return self._precision

    def _plain_weights(self, precision: Precision, hints: Array, with_probes: bool) -> PlainWeights:
        """Apply the factor to all that is new: changed rows, means that moved, probes of the trace.

        All together: on a GPU one vector takes as long as a hundred.
        """
        statistics, known = self.statistics, len(self._base_weights.values)
        stale = np.array(sorted(i for i in self._stale if i < known), np.int64)
        fresh = np.arange(known, len(statistics.labels))
        self._base_weights.extend(len(fresh))
        base, wanted = self._base_weights.values, np.concatenate([stale, fresh])
        others = [rows for rows, _ in self._pending]
        with_probes = with_probes and self._probed is None
        if with_probes:
            others.append(self._probe_vectors())
        for part in class_blocks(max(len(wanted), 1)):
            at = self.backend.index(wanted[part])
            moved = statistics.means[at] - self._reference
            *solved, base[at] = precision.apply_base([*others, moved])
            if with_probes and solved:
                self._probed = solved.pop()
            for (rows, sign), gains in zip(self._pending, solved, strict=True):
                precision.extend(rows, gains, sign)
            self._pending.clear()
            others = []
        self._stale.clear()
        means = statistics.means
        if len(hints):
            of_hints = precision.apply_base([hints - self._reference])[0]
            means = self.backend.concatenate([means, hints])
            base = self.backend.concatenate([base, of_hints])
        return PlainWeights(means, statistics.n_scattered, precision, base, self._reference)

    def _probe_vectors(self) -> Array:
        """Return what the trace of R is found with: exactly for few components."""
        if self._probes is None:
            size = self.statistics.n_components
            exact = size <= EXACT_TRACE_BELOW
            self._probes = self.backend.asarray(np.eye(size) if exact else _random_signs(size))
        return self._probes

    def _spread(self, precision: Precision) -> tuple[float, float]:
        """Return ``D_out``, and how much larger it is than the in-sample ``tr(P Sigma)``.

        The trace of R is exact for few components and estimated from fixed probes for many.
        """
        statistics = self.statistics
        freedom = statistics.n_scattered - len(statistics.labels)
        if freedom <= 0:
            return 0.0, 1.0
        size, probes = statistics.n_components, self._probe_vectors()
        solved = precision.apply_updates(self._probed, probes)
        trace = float((solved * probes).sum()) / (1 if len(probes) == size else N_PROBES)
        return out_of_sample(size - precision.rho * trace, freedom)

    def _rule(self, plain: PlainWeights, hinted: Sequence[Label], settings: Settings) -> LinearRule:
        """Order the classes by label, estimate their means, add the biases.

        The anchors come first, then the others in blocks: beside the means and the weights nothing
        of that size is held.
        """
        statistics, backend = self.statistics, self.backend
        self.terms = None  # frees what it holds before the next solution is made
        spread, inflation = 0.0, 1.0
        if settings.small_sample_correction:
            spread, inflation = self._spread(plain.precision)
        order, counts = statistics.order, statistics.counts
        if hinted:  # each counts as a sample
            labels = [*statistics.labels, *hinted]
            order = np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)
            counts = np.concatenate([counts, np.ones(len(hinted), np.int64)])
        counts = counts[order]
        anchors = choose_anchors(counts)
        anchor_means, anchor_weights = plain.of(order[anchors])
        inner = backend.to_numpy(backend.widen(backend.linear(anchor_weights, anchor_means)))
        inner = (inner + inner.T) / 2  # rounding made it uneven
        shrinkage = Shrinkage(inner, anchors, counts, spread=spread, inflation=inflation)
        squares = counts * 0.0
        combination, kept, squares[anchors] = shrinkage.mix_anchors(inner.diagonal())
        weights = self._mixed(combination, kept, anchor_weights, anchor_weights)
        others = np.setdiff1d(np.arange(len(order)), anchors, assume_unique=True)
        if len(others):
            of_anchors, weights = weights, backend.empty((len(order), statistics.n_components))
            weights[backend.index(anchors)] = of_anchors
        leans = shrinkage.leans(others)
        for part in class_blocks(len(others) - leans.sum()):
            block = others[~leans][part]
            means, own = plain.of(order[block])
            squares[block] = self._lengths(means, own)
            weights[backend.index(block)] = own
            shrinkage.keep(block)
        if leans.any():
            basis = backend.asarray(shrinkage.basis.T)
            anchor_means, anchor_weights = basis @ anchor_means, basis @ anchor_weights
        for part in class_blocks(leans.sum()):
            block = others[leans][part]
            means, own = plain.of(order[block])
            turned = backend.to_numpy(backend.widen(own @ anchor_means.T))
            lengths = self._lengths(means, own)
            combination, kept, squares[block] = shrinkage.mix_others(block, turned, lengths)
            weights[backend.index(block)] = self._mixed(combination, kept, own, anchor_weights)

        terms = RuleTerms.of(shrinkage, squares, inflation, settings)
        if terms.blend is not None:
            weights = backend.asarray(terms.blend.T) @ weights
        self.terms = LeaveOneOutTerms(**vars(terms), counts=counts, order=order, plain=plain)
        return LinearRule(
            weights,
            backend.asarray(terms.offsets) - backend.linear(weights, plain.centre[None])[:, 0],
            plain.precision.rho,
            spread,
            inflation,
            terms.familiarity,
        )

    def _lengths(self, means: Array, weights: Array) -> np.ndarray:
        return self.backend.to_numpy(self.backend.widen((weights * means).sum(1)))

    def _mixed(self, combination: np.ndarray, kept: np.ndarray, own: Array, others: Array) -> Array:
        """Return the weights of estimated means from the own ones and those of other classes."""
        if not combination.shape[1]:
            return own
        predicted = self.backend.asarray(combination) @ others
        if not kept.any():
            return predicted
        own -= predicted
        own *= self.backend.asarray(kept[:, None])
        own += predicted
        return own


def absolute_ridge(
    ridge: float, scale: float, turnover: float, of_means: float, dtype: np.dtype
) -> float:
    """Return the ridge on the scale of the scatter, rounded to the grid.

    ``scale`` is the mean diagonal of the scatter, ``turnover`` that of all that was ever added to
    it or removed, ``of_means`` what the scatter of the class means would have.
    """
    of_means = of_means if of_means > 0 else 1.0
    eps = float(np.finfo(dtype).eps)
    noise = 8 * eps * turnover + (64 * eps) ** 2 * of_means  # what rounding alone may leave
    # Without known spread within classes all directions are equal, on the scale of the means.
    rho = of_means if scale <= noise else max(ridge * scale, noise)
    if not np.isfinite(rho):
        raise KldaError(f"The statistics are not finite: {DAMAGED}")
    return float(2.0 ** (round(np.log2(rho) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE))


def rising_ridges(rho: float, scale: float, least: float, why: str) -> Iterator[float]:
    """Yield a ridge and then larger ones, to be tried until one is enough; warn of each of those.

    ``scale`` is the mean diagonal of the scatter, ``least`` what rounding alone may leave on it.
    """
    yield rho
    for _ in range(MOST_RAISES):
        rho = max(rho, least) * 10
        relative = rho / max(scale, np.finfo(float).tiny)
        warnings.warn(
            f"The scatter of {why}; solving with a ridge raised to {relative:.1e}. A larger ridge "
            "avoids this, and so may dtype='float64'.",
            RidgeRaisedWarning,
            stacklevel=2,
        )
        yield rho


def out_of_sample(inside: float, freedom: int) -> tuple[float, float]:
    """Return ``tr(P Sigma)`` as a new sample sees it, and how many times the in-sample one it is.

    ``inside`` is the in-sample trace, ``freedom`` the degrees of freedom within classes.
    """
    inside = max(inside, 0.0)
    inflation = 1 / max(1 - inside / freedom, SMALLEST_SLACK)
    return inside * inflation, inflation


@lru_cache(maxsize=4)
def _random_signs(size: int) -> np.ndarray:
    """Return probes for a trace: always the same ones, drawn once."""
    signs = np.random.RandomState(0).randint(0, 2, size=(N_PROBES, size))
    return (2 * signs - 1).astype(np.int8)
