"""From statistics to a linear classifier: ``w_m = P mu_m``, ``b_m = -1/2 mu_m^T w_m``.

Scores are given relative to a class at the mean of the class means: a constant that all classes
share is left out, so that float32 spends its digits on what tells classes apart.

``P`` is the inverse of the regularised covariance. It is never formed: a Cholesky factor (or,
while there are few samples, a small system between samples) applies it. After a small change the
factor stays as it is and the Woodbury identity brings the change in, always from the same factor,
so that errors don't add up over many changes.

The ridge is relative to the mean diagonal of the covariance and is rounded to a fixed grid (eight
steps an octave, at most 4.5% off). A small change then leaves it where it was, a low-rank update
is exact, and the classifier is a function of the statistics alone, not of when it was solved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from klda._interrupts import held_back
from klda.backend import Array, Backend, Steps
from klda.decisions import Familiarity
from klda.errors import KldaError
from klda.shrinkage import PRIOR_WEIGHT, Mixing, Shrinkage, choose_anchors, log_shares
from klda.statistics import CLASSES_AT_ONCE, ClassStatistics, GrowingRows, Label, Scatter

STEPS_AN_OCTAVE = 8
EXACT_TRACE_BELOW = 1024  # components; above, the trace of P is estimated from fixed probes
N_PROBES = 64
MOST_RAISES = 12
SMALLEST_LEVERAGE_SLACK = 1e-3  # of 1 - a v^T R v, where rounding would make it negative
SMALLEST_SLACK = 0.05  # of 1 - D_eff / (N - M), below which D_out is not to be trusted
LARGEST_SHARE = 8  # a factor is renewed once the changes since exceed D / 8 rows


class RidgeRaisedWarning(UserWarning):
    """The ridge was raised because the scatter was not positive definite in this precision."""


@dataclass(frozen=True)
class Solution:
    """A solved classifier: all that prediction needs, never changed once made.

    Attributes
    ----------
    labels : tuple
        Class labels, sorted.
    weights : array of shape (M, D)
        ``P (mu_m - g)`` in the order of ``labels``, g being the mean of the class means and mu_m
        the class's mean as estimated (see `klda.shrinkage`).
    biases : array of shape (M,)
        ``-1/2 (mu_m - g)^T P (mu_m + g)``, plus the corrections for noise and the priors.
    counts : ndarray of shape (M,)
        Samples behind each class.
    rho : float
        The ridge on the scale of the scatter: what was added to its diagonal.
    spread : float
        ``tr(P Sigma)`` as a new sample sees it (``D_out``); 0 where no correction is made.
    inflation : float
        How much larger that is than what the samples learned see; 1 where no correction is made.
    familiarity : Familiarity or None
        What tells known inputs from unknown ones, where the classifier can.
    """

    labels: tuple
    weights: Array
    biases: Array
    counts: np.ndarray
    rho: float
    spread: float
    inflation: float
    familiarity: Familiarity | None


@dataclass(frozen=True)
class _Solved:
    """What leaving samples out needs beyond the solution; rows in the order of its labels."""

    order: np.ndarray
    precision: _ThinPrecision | _DensePrecision
    plain: _PlainWeights
    mixing: Mixing
    squares: np.ndarray  # (mu_m - g)^T P (mu_m - g) of the estimated means
    extra: np.ndarray  # corrections and priors in the biases


class UnsolvableError(KldaError, ArithmeticError):
    """Statistics that no classifier can be solved from: rounding or damage has spoilt them."""


class NotPositiveDefiniteError(ArithmeticError):
    """A factorisation failed in this precision; a larger ridge may succeed."""


class _ThinPrecision:
    """``R = (V^T J V + rho I)^-1`` through the system between the rows V, for few rows.

    Rows that were added and taken away again make that system ill-conditioned: with such rows it
    is solved in double precision.
    """

    def __init__(self, scatter: Scatter, rho: float) -> None:
        self.backend = scatter.backend
        self.rho = rho
        self.definite = bool((scatter.signs > 0).all())
        if self.definite:
            self.rows, system = scatter.rows, self.backend.copy(scatter.gram())
        else:
            self.rows = self.backend.widen(scatter.rows)
            system = self.rows @ self.rows.T
        _add_to_diagonal(system, self.backend.asarray(rho * scatter.signs))
        self._solve = _solver(self.backend, system, self.definite)

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        if not len(self.rows):
            return vectors / self.rho
        if not self.definite:
            vectors = self.backend.widen(vectors)
        solved = self._solve(vectors @ self.rows.T)
        return self.backend.asarray((vectors - solved @ self.rows) / self.rho)


class _DensePrecision:
    """``R = (S + rho I)^-1`` from one factorisation and the changes since (Woodbury).

    With the factor's ``R0`` and changes ``V^T J V`` since, the gains ``G = V R0`` and the small
    system ``C = J + V R0 V^T`` give ``R = R0 - G^T C^-1 G``.
    """

    def __init__(self, scatter: Scatter, rho: float, pivots: Array) -> None:
        self.backend = scatter.backend
        self.rho = rho
        self.square = scatter.square
        self.pivots = pivots
        self.gains = self.backend.empty((0, scatter.n_components))
        self.system = self.backend.empty((0, 0))
        self.definite = True
        self._solve: Callable[[Array], Array] | None = None

    @classmethod
    def factorised(cls, scatter: Scatter, rho: float) -> Steps[_DensePrecision]:
        """Factorise a scatter."""
        with held_back():
            finish = scatter.backend.factorise(scatter.square, rho)
        yield
        with held_back():
            pivots = finish()
        if pivots is None:
            raise NotPositiveDefiniteError
        return cls(scatter, rho, pivots)

    def extend(self, rows: Array, sign: int) -> None:
        """Bring in a change of the scatter by ``sign * rows^T rows``."""
        gains = self.backend.solve(self.square, self.pivots, rows)
        old, new = len(self.gains), len(rows)
        system = self.backend.empty((old + new, old + new))
        system[:old, :old] = self.system
        system[old:, :old] = rows @ self.gains.T
        system[:old, old:] = system[old:, :old].T
        system[old:, old:] = rows @ gains.T
        _add_to_diagonal(system[old:, old:], float(sign))
        self.system = system
        self.gains = self.backend.concatenate([self.gains, gains])
        self.definite = self.definite and sign > 0
        self._solve = None

    def apply_base(self, vectors: Array) -> Array:
        """Return ``vectors R0``."""
        return self.backend.solve(self.square, self.pivots, vectors)

    def bring_up(self, solved: Array, vectors: Array) -> Array:
        """Turn ``vectors R0`` into ``vectors R``."""
        if not len(self.gains):
            return solved
        if self._solve is None:
            self._solve = _solver(self.backend, self.system, self.definite)
        return solved - self._solve(vectors @ self.gains.T) @ self.gains

    def apply(self, vectors: Array) -> Array:
        """Return ``vectors R``."""
        return self.bring_up(self.apply_base(vectors), vectors)


class _PlainWeights:
    """``N (mu_m - g) R``: the weights of the plain means, worked out for a few classes at a time.

    With a dense precision from ``base``, the rows ``(mu_m - reference) R0``.
    """

    def __init__(
        self,
        statistics: ClassStatistics,
        precision: _ThinPrecision | _DensePrecision,
        base: Array | None,
        reference: Array,
    ) -> None:
        self.statistics, self.precision = statistics, precision
        self.base, self.reference = base, reference
        self.centre = statistics.means.mean(0)
        self._off = self.centre - reference
        self._shift: Array | float = 0.0  # in the weights of all classes alike
        if base is not None:
            assert isinstance(precision, _DensePrecision)
            self._shift = precision.bring_up(base.mean(0)[None], self._off[None])

    def of(self, positions: np.ndarray) -> tuple[Array, Array]:
        """Return the means, relative to the mean of means, and the weights of some classes."""
        at = self.statistics.backend.index(positions)
        means = self.statistics.means[at]
        means -= self.reference
        if self.base is None:
            weights = self.precision.apply(means)
        else:
            assert isinstance(self.precision, _DensePrecision)
            weights = self.precision.bring_up(self.base[at], means)
        weights -= self._shift
        weights *= self.statistics.n_scattered
        means -= self._off
        return means, weights


class Discriminant:
    """The classifier that belongs to some statistics, solved when asked and kept until a change."""

    def __init__(self, statistics: ClassStatistics) -> None:
        self.statistics = statistics
        self.backend = statistics.backend
        self._dense: _DensePrecision | None = None
        self._nominal = 0.0
        self._reference: Array | None = None  # the mean of means when the factor was made
        # (means - reference) R0, as classes came
        self._base_weights = GrowingRows(statistics.n_components, statistics.backend)
        self._stale: set[int] = set()
        self._pending: list[tuple[Array, int]] = []
        self._n_pending = 0
        self._probes: Array | None = None
        self._probed: Array | None = None
        self._solved: _Solved | None = None

    @property
    def unsolved(self) -> bool:
        """Whether nothing was solved here yet."""
        return self._solved is None

    def note_change(self, rows: Array, sign: int, labels: Sequence[Label]) -> None:
        """Take note that the scatter changed by ``sign * rows^T rows`` and these means moved.

        The rows are copied where they are kept: their memory may be used again.
        """
        if self._dense is None:
            return
        self._n_pending += len(rows)
        since = self._n_pending + len(self._dense.gains)
        if since > self.statistics.n_components // LARGEST_SHARE:
            self.reset()
            return
        self._pending.append((self.backend.copy(rows), sign))
        self._stale.update(self.statistics.locate(labels).tolist())

    def note_reorder(self) -> None:
        """Take note that classes were dropped: means have other positions now."""
        self._base_weights.clear()
        self._stale.clear()

    def reset(self) -> None:
        """Forget the factor; the next solve makes a new one."""
        self._dense = None
        self._base_weights.clear()
        self._probed = None
        self._stale.clear()
        self._pending.clear()
        self._n_pending = 0

    def solve(self, *, ridge: float, priors: str, correct: bool) -> Steps[Solution]:
        """Solve for the classifier of the statistics as they are now."""
        statistics = self.statistics
        rho = nominal = self.nominal_rho(ridge)
        for attempt in range(MOST_RAISES + 1):
            try:
                return (yield from self._solve_with(rho, nominal, priors, correct))
            except NotPositiveDefiniteError:
                self.reset()
                floor = np.finfo(self.backend.dtype).eps * self._scale()
                rho = max(rho, floor) * 10
                warnings.warn(
                    f"The scatter of {statistics.n_scattered} samples is not positive definite in "
                    f"{self.backend.dtype.name} with ridge={ridge:g}; solving with a ridge raised "
                    f"to {rho / max(self._scale(), np.finfo(float).tiny):.1e} (step {attempt + 1})."
                    " A larger ridge, or dtype='float64', avoids this.",
                    RidgeRaisedWarning,
                    stacklevel=2,
                )
        raise UnsolvableError("The scatter can't be factorised with any ridge.")

    def nominal_rho(self, ridge: float) -> float:
        """Return the ridge on the scale of the scatter, on the grid."""
        scale = self._scale()
        if scale <= self._noise():
            # No spread within classes is known: all directions count alike, at the means' scale.
            return _on_grid(self._mean_square() * max(self.statistics.n_scattered, 1))
        return _on_grid(max(ridge * scale, self._noise()))

    def _scale(self) -> float:
        """Mean diagonal of the scatter."""
        return max(self.statistics.scatter.trace(), 0.0) / self.statistics.n_components

    def _mean_square(self) -> float:
        means = self.statistics.means
        square = float(self.backend.sum_of_squares(means))
        square /= max(1, means.shape[0] * means.shape[1])
        return square if square > 0 else 1.0

    def _noise(self) -> float:
        """Return what rounding alone may leave on the diagonal of the scatter."""
        eps = float(np.finfo(self.backend.dtype).eps)
        turnover = self.statistics.scatter.turnover / self.statistics.n_components
        of_means = self._mean_square() * max(self.statistics.n_scattered, 1)
        return 8 * eps * turnover + (64 * eps) ** 2 * of_means

    def leave_one_out(self, rows: Array, labels: Sequence[Label]) -> np.ndarray:
        """Scores that learned samples would have got, had they not been learned.

        With ``R = (S + rho I)^-1`` and ``v = z - mu_c`` for a sample of a class of n samples,
        leaving it out makes ``mu_c - v / (n - 1)`` of its mean and ``R + k (R v)(R v)^T`` of R,
        ``k = a / (1 - a v^T R v)``, ``a = n / (n - 1)``. Classes must have two samples or more.

        Parameters
        ----------
        rows : array of shape (n, D)
            Features of the samples.
        labels : sequence
            Their classes.

        Returns
        -------
        ndarray of shape (n, M)
            In the order of the solution's labels.
        """
        statistics, solved = self.statistics, self._solved
        assert solved is not None
        wide, n = self.backend.widen, statistics.n_scattered
        here = statistics.locate(labels)
        position = np.empty_like(solved.order)
        position[solved.order] = np.arange(len(position))
        at = position[here]
        own_means, own_weights = solved.plain.of(here)
        relative = rows - solved.plain.centre
        v = relative - own_means
        lever = solved.precision.apply(v)
        numpy = self.backend.to_numpy
        vv = numpy(wide((v * lever).sum(1)))
        zv = numpy(wide((relative * lever).sum(1)))
        # R is symmetric: the scores N (z - g) R (mu_m - g) need no weights but the own class's.
        means_v, linear = self._with_all_means([lever, n * lever + own_weights])
        counts = statistics.counts[solved.order][at].astype(np.float64)
        ratio, step = counts / (counts - 1), 1 / (counts - 1)
        k = ratio / np.maximum(1 - ratio * vv, SMALLEST_LEVERAGE_SLACK)
        pick = np.arange(len(at))
        linear += n * (k * zv)[:, None] * means_v
        linear[pick, at] -= n * (step * zv + k * zv * step * vv)
        mixed = solved.mixing.apply(means_v)
        part = solved.mixing.column(at)
        moved = mixed - part * (step * vv)[:, None]
        squares = solved.squares + n * (
            -2 * step[:, None] * part * mixed
            + (step**2 * vv)[:, None] * part**2
            + k[:, None] * moved**2
        )
        return solved.mixing.apply(linear) - 0.5 * squares + solved.extra

    def overlap(self, rows: Array) -> tuple[np.ndarray, float]:
        """Return ``rows (S + rho I)^-1 rows^T``, how much of the scatter rows make up, and rho."""
        assert self._solved is not None
        precision = self._solved.precision
        found = self.backend.linear(precision.apply(rows), rows)
        return self.backend.to_numpy(self.backend.widen(found)), precision.rho

    def _with_all_means(self, vectors: list[Array]) -> list[np.ndarray]:
        """Inner products with the means of all classes, relative to the mean of means."""
        assert self._solved is not None
        means, centre = self.statistics.means, self._solved.plain.centre
        stacked = self.backend.concatenate(vectors)
        products = np.empty((len(stacked), len(means)))
        for part in _parts(len(means)):
            found = stacked @ (means[part] - centre).T
            products[:, part] = self.backend.to_numpy(self.backend.widen(found))
        return np.split(products[:, self._solved.order], len(vectors))

    def _solve_with(
        self, rho: float, nominal: float, priors: str, correct: bool
    ) -> Steps[Solution]:
        statistics = self.statistics
        precision: _ThinPrecision | _DensePrecision
        if statistics.scatter.is_thin:
            precision = _ThinPrecision(statistics.scatter, rho)
            plain = _PlainWeights(statistics, precision, None, statistics.means.mean(0))
            trace = self._thin_trace(precision) if correct else 0.0
        else:
            precision = yield from self._up_to_date(rho, nominal)
            plain = _PlainWeights(statistics, precision, self._base(precision), self._reference)
            trace = self._dense_trace(precision) if correct else 0.0
        spread, inflation = self._spread(precision.rho, trace) if correct else (0.0, 1.0)
        return (yield from self._classifier(plain, spread, inflation, priors))

    def _classifier(
        self, plain: _PlainWeights, spread: float, inflation: float, priors: str
    ) -> Steps[Solution]:
        """Order the classes by label, estimate their means, add the biases.

        The anchors come first, then the others a block at a time: beside the means and the weights
        nothing of that size is held.
        """
        statistics, backend = self.statistics, self.backend
        self._solved = None  # what it holds of the last solution makes room for the next
        order = statistics.order
        counts = statistics.counts[order]
        anchors = choose_anchors(counts)
        anchor_means, anchor_weights = plain.of(order[anchors])
        products = backend.widen(backend.linear(anchor_weights, anchor_means))
        yield
        inner = backend.to_numpy(products)
        inner = (inner + inner.T) / 2  # rounding made it uneven
        shrinkage = Shrinkage(inner, anchors, counts, spread=spread, inflation=inflation)
        weights, squares = backend.empty((len(order), statistics.n_components)), counts * 0.0

        lengths = self._lengths(anchor_means, anchor_weights)
        combination, kept, squares[anchors] = shrinkage.mix_anchors(lengths)
        mixed = self._mixed(combination, kept, anchor_weights, anchor_weights)
        weights[backend.index(anchors)] = mixed
        others = np.setdiff1d(np.arange(len(order)), anchors, assume_unique=True)
        leans = shrinkage.leans(others)
        for part in _parts(len(others) - leans.sum()):
            block = others[~leans][part]
            means, own = plain.of(order[block])
            squares[block] = self._lengths(means, own)
            weights[backend.index(block)] = own
            shrinkage.keep(block)
        if leans.any():
            basis = backend.asarray(shrinkage.basis.T)
            anchor_means, anchor_weights = basis @ anchor_means, basis @ anchor_weights
        for part in _parts(leans.sum()):
            block = others[leans][part]
            means, own = plain.of(order[block])
            turned = backend.to_numpy(backend.widen(own @ anchor_means.T))
            lengths = self._lengths(means, own)
            combination, kept, squares[block] = shrinkage.mix_others(block, turned, lengths)
            weights[backend.index(block)] = self._mixed(combination, kept, own, anchor_weights)

        extra = shrinkage.mixing.correction
        if priors == "empirical":
            extra = extra + np.log(counts / counts.sum())
        elif priors == "auto":
            extra = extra + PRIOR_WEIGHT * inflation * log_shares(counts)
        offsets = extra - 0.5 * squares
        mixing, precision = shrinkage.mixing, plain.precision
        self._solved = _Solved(order, precision, plain, mixing, squares, extra)
        return Solution(
            tuple(statistics.labels[i] for i in order),
            weights,
            backend.asarray(offsets) - backend.linear(weights, plain.centre[None])[:, 0],
            counts,
            precision.rho,
            spread,
            inflation,
            Familiarity.of(mixing, inner, anchors, squares, offsets, counts),
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

    def _spread(self, rho: float, trace: float) -> tuple[float, float]:
        """Return ``D_out``, and how much larger it is than the in-sample ``tr(P Sigma)``."""
        statistics = self.statistics
        freedom = statistics.n_scattered - len(statistics.labels)
        if freedom <= 0:
            return 0.0, 1.0
        inside = max(statistics.n_components - rho * trace, 0.0)
        inflation = 1 / max(1 - inside / freedom, SMALLEST_SLACK)
        return inside * inflation, inflation

    def _up_to_date(self, rho: float, nominal: float) -> Steps[_DensePrecision]:
        if self._dense is None or self._nominal != nominal:
            self.reset()
            self._dense = yield from _DensePrecision.factorised(self.statistics.scatter, rho)
            self._nominal = nominal
            self._reference = self.statistics.means.mean(0)
        for rows, sign in self._pending:
            self._dense.extend(rows, sign)
        self._pending.clear()
        self._n_pending = 0
        return self._dense

    def _base(self, dense: _DensePrecision) -> Array:
        """``(means - reference) R0``, solved anew only for classes whose mean moved."""
        known = len(self._base_weights)
        stale = np.array(sorted(i for i in self._stale if i < known), np.int64)
        fresh = np.arange(known, len(self.statistics.labels))
        self._base_weights.extend(len(fresh))
        base, wanted = self._base_weights.values, np.concatenate([stale, fresh])
        for part in _parts(len(wanted)):
            at = self.backend.index(wanted[part])
            base[at] = dense.apply_base(self.statistics.means[at] - self._reference)
        self._stale.clear()
        return base

    def _probe_rows(self) -> tuple[Array, float]:
        """Rows q and a weight such that ``weight * sum q R q^T`` is (close to) the trace of R."""
        size = self.statistics.n_components
        exact = size <= EXACT_TRACE_BELOW
        if self._probes is None:
            self._probes = self.backend.asarray(np.eye(size) if exact else _random_signs(size))
        return self._probes, 1.0 if exact else 1 / N_PROBES

    def _thin_trace(self, precision: _ThinPrecision) -> float:
        probes, weight = self._probe_rows()
        return weight * float((precision.apply(probes) * probes).sum())

    def _dense_trace(self, dense: _DensePrecision) -> float:
        probes, weight = self._probe_rows()
        if self._probed is None:
            self._probed = dense.apply_base(probes)
        return weight * float((dense.bring_up(self._probed, probes) * probes).sum())


@lru_cache(maxsize=4)
def _random_signs(size: int) -> np.ndarray:
    """Probes for a trace: always the same ones, drawn once."""
    return 2.0 * np.random.RandomState(0).randint(0, 2, size=(N_PROBES, size)) - 1


def _solver(backend: Backend, system: Array, definite: bool) -> Callable[[Array], Array]:
    if not len(system):
        return _unchanged
    solve = backend.small_solver(system, definite=definite)
    if solve is None:
        raise NotPositiveDefiniteError
    return solve


def _parts(n_classes: int) -> Iterator[slice]:
    for start in range(0, n_classes, CLASSES_AT_ONCE):
        yield slice(start, start + CLASSES_AT_ONCE)


def _unchanged(rows: Array) -> Array:
    return rows


def _on_grid(value: float) -> float:
    if not np.isfinite(value):
        raise UnsolvableError("The statistics are too large for this precision, or damaged.")
    return float(2.0 ** (round(np.log2(value) * STEPS_AN_OCTAVE) / STEPS_AN_OCTAVE))


def _add_to_diagonal(matrix: Array, values: Array | float) -> None:
    steps = range(len(matrix))
    matrix[steps, steps] += values
