"""From statistics to a linear classifier: ``w_m = P mu_m``, ``b_m = -1/2 mu_m^T w_m``.

Scores are relative to a class at the mean of the class means: a constant that all classes share is
left out, so that float32 spends its digits on the differences between classes.

``P`` is N times ``R = (S + rho I)^-1``, which is applied but never formed. After a small change the
factor stays as it is and the Woodbury identity brings the change in, always from the same factor,
so that errors don't add up over many changes.

The ridge is relative to the mean diagonal of the covariance and is rounded to a fixed grid (eight
steps per octave, at most 4.5% off). A small change then leaves it where it was, a low-rank update
is exact, and the classifier is a function of the statistics alone, not of when it was solved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.engine.arrays import Array, Backend
from klda.engine.held_rows import LabelledRows
from klda.engine.interrupts import held_back
from klda.engine.rule import RuleTerms, Settings, out_of_sample
from klda.engine.shrinkage import Shrinkage, choose_anchors
from klda.engine.solution import LinearRule, Solution
from klda.engine.statistics import ClassStatistics, GrowingRows, class_blocks
from klda.errors import KldaError
from klda.labels import Label

if TYPE_CHECKING:
    from klda.engine.model import Member, Model

STEPS_PER_OCTAVE = 8
EXACT_TRACE_BELOW = 1024  # components; above, the trace of P is estimated from fixed probes
N_PROBES = 64
MOST_RAISES = 12
DAMAGED = "the model was damaged. Restore it from a copy."
UPDATED_PART = 8  # a factor is replaced once the changes since exceed D / 8 rows


class RidgeRaisedWarning(UserWarning):
    """The ridge was raised because the scatter was not positive definite in this precision."""


class NotPositiveDefiniteError(ArithmeticError):
    """A factorisation failed in this precision; a larger ridge may succeed."""


class Precision:
    """``R = (S + rho I)^-1`` from one factorisation and the changes since (Woodbury).

    With the factor's ``R0`` and changes ``V^T J V`` since, the gains ``G = V R0`` and the small
    system ``C = J + V R0 V^T`` give ``R = R0 - G^T C^-1 G``.

    Attributes
    ----------
    rho, nominal : float
        The ridge on the scale of the scatter; and before it was raised, if it had to be.
    reference : array of shape (D,)
        The mean of the class means when the factor was made: it applies to differences from it.
    """

    def __init__(
        self, statistics: ClassStatistics, rho: float, nominal: float, reference: Array
    ) -> None:
        self.statistics, self.backend = statistics, statistics.backend
        self.rho, self.nominal, self.reference = rho, nominal, reference
        self._square = statistics.square  # holds the factor even after the scatter is replaced
        with held_back():
            self._factor: Any = self.backend.factorise(self._square, rho)
        if self._factor is None:
            raise NotPositiveDefiniteError
        self._gains = self.backend.empty((0, statistics.n_components))
        self._system = self.backend.empty((0, 0))
        self._is_definite = True
        self._solve: Callable[[Array], Array] | None = None
        self._pending: list[tuple[Array, int]] = []  # changes that are still to be brought in
        self._weights = GrowingRows(statistics.n_components, self.backend)
        self._stale: set[int] = set()  # classes whose means have moved
        self._probed: tuple[Array, Array] | None = None  # what the trace of R is found with

    def note_change(self, rows: Array, sign: int, labels: Sequence[Label]) -> bool:
        """Take note that the scatter changed by ``sign * rows^T rows`` and these means moved.

        The rows are copied: their memory may be used again. Returns False if there is no memory
        for that, or if so much has changed that a new factor is due.
        """
        since = len(self._gains) + sum(len(kept) for kept, _ in self._pending) + len(rows)
        if since > self.statistics.n_components // UPDATED_PART:
            return False
        try:
            self._pending.append((self.backend.copy(rows), sign))
        except (MemoryError, RuntimeError):  # torch's lack of memory is a RuntimeError
            return False
        self._stale.update(self.statistics.locate(labels).tolist())
        return True

    def note_reorder(self) -> None:
        """Take note that classes were dropped: means have other positions now."""
        self._weights.clear()
        self._stale.clear()

    def weights(self, *, with_probes: bool) -> Array:
        """Return ``(mu_m - reference) R0`` of all classes.

        The factor is applied to all that is new: changed rows, means that moved, probes of the
        trace. All together: on a GPU one vector takes as long as a hundred.
        """
        statistics, known = self.statistics, len(self._weights.values)
        stale = np.array(sorted(i for i in self._stale if i < known), np.int64)
        fresh = np.arange(known, len(statistics.labels))
        self._weights.extend(len(fresh))
        weights, wanted = self._weights.values, np.concatenate([stale, fresh])
        others = [rows for rows, _ in self._pending]
        if with_probes and self._probed is None:
            others.append(_probes(statistics.n_components, self.backend))
        for part in class_blocks(max(len(wanted), 1)):
            at = self.backend.index(wanted[part])
            moved = statistics.means[at] - self.reference
            *solved, weights[at] = self._apply_factor([*others, moved])
            if len(solved) > len(self._pending):
                self._probed = others[-1], solved.pop()
            for (rows, sign), gains in zip(self._pending, solved, strict=True):
                self._bring_in(rows, gains, sign)
            self._pending.clear()
            others = []
        self._stale.clear()
        return weights

    def _bring_in(self, rows: Array, gains: Array, sign: int) -> None:
        """Bring in a change of the scatter by ``sign * rows^T rows``; the gains are ``rows R0``."""
        old, new = len(self._gains), len(rows)
        system = self.backend.empty((old + new, old + new))
        system[:old, :old] = self._system
        system[old:, :old] = rows @ self._gains.T
        system[:old, old:] = system[old:, :old].T
        system[old:, old:] = rows @ gains.T
        system.reshape(-1)[:: len(system) + 1][old:] += float(sign)  # the diagonal
        self._system = system
        self._gains = self.backend.concatenate([self._gains, gains])
        self._is_definite = self._is_definite and sign > 0
        self._solve = None

    def _apply_factor(self, parts: list[Array]) -> list[Array]:
        """Return ``vectors R0`` for each of some arrays of vectors."""
        vectors = self.backend.concatenate(parts) if len(parts) > 1 else parts[0]
        if not len(vectors):
            return parts
        solved = self.backend.solve(self._square, self._factor, vectors)
        stops = np.cumsum([len(part) for part in parts]).tolist()
        return [solved[stop - len(part) : stop] for part, stop in zip(parts, stops, strict=True)]

    def update(self, solved: Array, vectors: Array) -> Array:
        """Turn ``vectors R0`` into ``vectors R``."""
        if not len(self._gains):
            return solved
        if self._solve is None:
            self._solve = self.backend.small_solver(self._system, definite=self._is_definite)
        if self._solve is None:
            raise NotPositiveDefiniteError
        return solved - self._solve(vectors @ self._gains.T) @ self._gains

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self.update(self._apply_factor([vectors])[0], vectors)

    def of_new_rows(self, rows: Array) -> Array:
        """Return ``(rows - reference) R0``."""
        return self._apply_factor([rows - self.reference])[0]

    def spread(self) -> tuple[float, float]:
        """Return ``D_out``, and how much larger it is than the in-sample ``tr(P Sigma)``.

        The trace of R is exact for few components and estimated from fixed probes for many.
        """
        size = self.statistics.n_components
        freedom = self.statistics.n_scattered - len(self.statistics.labels)
        if freedom <= 0 or self._probed is None:
            return 0.0, 1.0
        probes, solved = self._probed
        trace = float((self.update(solved, probes) * probes).sum())
        trace /= 1 if len(probes) == size else N_PROBES
        return out_of_sample(size - self.rho * trace, freedom)


class PlainWeights:
    """``N (mu_m - g) R``: the weights of the plain means, computed for a few classes at a time.

    Classes are in the order of their sorted labels. Those that have no samples are known by hints:
    one row each, which counts as a sample.
    """

    def __init__(
        self, precision: Precision, hints: Array, hinted: Sequence[Label], *, with_probes: bool
    ) -> None:
        statistics, concatenate = precision.statistics, precision.backend.concatenate
        self.precision, self.n_samples = precision, statistics.n_scattered
        self.means, self._base = statistics.means, precision.weights(with_probes=with_probes)
        self.order, counts = statistics.order, statistics.counts
        if hinted:
            self.means = concatenate([self.means, hints])
            self._base = concatenate([self._base, precision.of_new_rows(hints)])
            labels = [*statistics.labels, *hinted]
            self.order = np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)
            counts = np.concatenate([counts, np.ones(len(hinted), np.int64)])
        self.counts = counts[self.order]
        self.centre = self.means.mean(0)
        self._offset = self.centre - precision.reference
        # The same in the weights of all classes.
        self._shift = precision.update(self._base.mean(0)[None], self._offset[None])

    def of(self, classes: np.ndarray) -> tuple[Array, Array]:
        """Return the means, relative to the mean of means, and the weights of some classes."""
        at = self.precision.backend.index(self.order[classes])
        means = self.means[at]
        means -= self.precision.reference
        weights = self.precision.update(self._base[at], means)
        weights -= self._shift
        weights *= self.n_samples
        means -= self._offset
        return means, weights


def solve(model: Model, settings: Settings) -> Solution:
    """Return the classifier of a model as it is now: all that answering needs."""
    classes, counts = model.classes, model.class_counts
    if settings.nearest_mean:
        rules, maps = [_nearest_mean(model)], [model.members[0].map.with_unit_length()]
    else:
        hints = model.useful_hints
        ridge = settings.relative_ridge(model.weighed_counts, model.statistics.n_components)
        jobs = [partial(solve_member, each, ridge, settings, hints) for each in model.members]
        with model.backend.small_work_on_host():
            if all(member.precision is not None for member in model.members):
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


def solve_member(
    member: Member, ridge: float, settings: Settings, hints: LabelledRows
) -> LinearRule:
    """Return the rule of a member's statistics; its factor is kept between small changes."""
    member.solved = None  # frees what it holds before the next solution is made
    statistics, dtype = member.statistics, member.map.backend.dtype
    lifted = member.map.lift(hints.rows)
    means = statistics.means if statistics.labels else lifted
    nominal, scale = _absolute(ridge, statistics, means)
    why = (
        f"{statistics.n_scattered} samples is not positive definite in {dtype.name} with "
        f"ridge={ridge:g}"
    )
    if member.precision is not None and member.precision.nominal != nominal:
        member.precision = None
    ridges = rising_ridges(nominal, scale, float(np.finfo(dtype).eps * scale), why)
    # If the update of a kept factor fails, a new factor may succeed with the same ridge.
    for rho in ridges if member.precision is None else chain([nominal], ridges):
        try:
            if member.precision is None:
                member.precision = Precision(statistics, rho, nominal, means.mean(0))
            probed = settings.small_sample_correction
            plain = PlainWeights(member.precision, lifted, hints.labels, with_probes=probed)
            return _rule(member, plain, settings)
        except NotPositiveDefiniteError:
            member.precision = None
        except BaseException:
            member.precision = None  # a half-made update must not be used, nor applied again
            raise
    raise KldaError(f"The scatter can't be factorised with any ridge: {DAMAGED}")


def _absolute(ridge: float, statistics: ClassStatistics, means: Array) -> tuple[float, float]:
    """Return the ridge on the scale of the scatter, on the grid, and that scale."""
    backend, size = statistics.backend, statistics.n_components
    scale, turnover = max(statistics.trace(), 0.0) / size, float(statistics.turnover) / size
    square = float(backend.sum_of_squares(means)) / max(1, len(means) * size)
    of_means = square * max(statistics.n_scattered, 1)
    return absolute_ridge(ridge, scale, turnover, of_means, backend.dtype), scale


def _rule(member: Member, plain: PlainWeights, settings: Settings) -> LinearRule:
    """Estimate the means of the classes, add the biases.

    The anchors come first, then the others in blocks: beside the means and the weights nothing of
    that size is held.
    """
    backend, counts = member.map.backend, plain.counts
    spread, inflation = 0.0, 1.0
    if settings.small_sample_correction:
        spread, inflation = plain.precision.spread()
    anchors = choose_anchors(counts)
    anchor_means, anchor_weights = plain.of(anchors)
    inner = backend.to_numpy(backend.linear(anchor_weights, anchor_means), np.float64)
    inner = (inner + inner.T) / 2  # rounding made it uneven
    shrinkage = Shrinkage(inner, anchors, counts, spread=spread, inflation=inflation)
    squares = counts * 0.0
    combination, kept, squares[anchors] = shrinkage.mix_anchors(inner.diagonal())
    weights = _mixed(combination, kept, anchor_weights, anchor_weights, backend)
    others = np.setdiff1d(np.arange(len(counts)), anchors, assume_unique=True)
    if len(others):
        of_anchors, weights = weights, backend.empty((len(counts), weights.shape[1]))
        weights[backend.index(anchors)] = of_anchors
    leans = shrinkage.leans(others)
    for part in class_blocks(len(others) - leans.sum()):
        block = others[~leans][part]
        means, own = plain.of(block)
        squares[block] = backend.to_numpy((own * means).sum(1))
        weights[backend.index(block)] = own
        shrinkage.keep(block)
    if leans.any():
        basis = backend.asarray(shrinkage.basis.T)
        anchor_means, anchor_weights = basis @ anchor_means, basis @ anchor_weights
    for part in class_blocks(leans.sum()):
        block = others[leans][part]
        means, own = plain.of(block)
        turned = backend.to_numpy(own @ anchor_means.T, np.float64)
        lengths = backend.to_numpy((own * means).sum(1), np.float64)
        combination, kept, squares[block] = shrinkage.mix_others(block, turned, lengths)
        mixed = _mixed(combination, kept, own, anchor_weights, backend)
        weights[backend.index(block)] = mixed

    terms = RuleTerms.of(shrinkage, squares, inflation, settings)
    if terms.blend is not None:
        weights = backend.asarray(terms.blend.T) @ weights
    member.solved = plain, terms
    biases = backend.asarray(terms.offsets) - backend.linear(weights, plain.centre[None])[:, 0]
    rho = plain.precision.rho
    return LinearRule(weights, biases, rho, spread, inflation, terms.familiarity)


def _mixed(
    combination: np.ndarray, kept: np.ndarray, own: Array, others: Array, backend: Backend
) -> Array:
    """Return the weights of estimated means from the own ones and those of other classes."""
    if not combination.shape[1]:
        return own
    predicted = backend.asarray(combination) @ others
    if not kept.any():
        return predicted
    own -= predicted
    own *= backend.asarray(kept[:, None])
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


def _probes(size: int, backend: Backend) -> Array:
    """Return what the trace of a matrix is found with: exactly if it is small."""
    exact = size <= EXACT_TRACE_BELOW
    return backend.asarray(np.eye(size, dtype=backend.dtype) if exact else _random_signs(size))


@lru_cache(maxsize=4)
def _random_signs(size: int) -> np.ndarray:
    """Return probes for a trace: always the same ones, drawn once."""
    signs = np.random.RandomState(0).randint(0, 2, size=(N_PROBES, size))
    return (2 * signs - 1).astype(np.int8)
