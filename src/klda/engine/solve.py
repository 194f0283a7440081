"""From statistics to a linear classifier: ``w_m = P mu_m``, ``b_m = -1/2 mu_m^T w_m``.

Scores are relative to a class at the mean of the class means: a constant that all classes share is
left out, so that float32 spends its digits on the differences between classes.

``P`` is N times ``R = (S + rho I)^-1``. The ridge rho is rounded to a fixed grid (eight steps per
octave, at most 4.5% off): a small change then leaves it where it was, the factor of the scatter is
kept, and the classifier is a function of the statistics alone, not of when it was solved.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np

from klda.engine.arrays import Array, Backend
from klda.engine.parameters import Parameters
from klda.engine.ridge import RidgeChoice, choose_ridge
from klda.engine.rule import RuleTerms, largest_classes, rule_terms
from klda.engine.scatter import InverseScatter, NotPositiveDefiniteError
from klda.engine.statistics import ClassStatistics
from klda.errors import KldaError
from klda.labels import Label

STEPS_PER_OCTAVE = 8
EXACT_TRACE_BELOW = 1024  # components; above, the trace of R is estimated from fixed probes
N_PROBES = 64
MOST_RAISES = 12
SMALLEST_SLACK = 0.05  # of 1 - D_eff / (N - M), below which D_out is not to be trusted
DAMAGED = "the model was damaged. Restore it from a copy."


class RidgeRaisedWarning(UserWarning):
    """The ridge was raised because the scatter was not positive definite in this precision."""


@dataclass(frozen=True)
class Declared:
    """Features of classes that have hints and no samples, for a model of statistics."""

    labels: list[Label] = field(default_factory=list)
    rows: Array = None  # one per class
    # Of classes that have both: their positions in the statistics, and the features of their hints.
    taught: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    taught_rows: Array = None


@dataclass(frozen=True, eq=False)
class Factored:
    """What one solve leaves for the next: the factor, and the means that it was applied to."""

    inverse: InverseScatter
    nominal: float  # the ridge, before it was raised if it had to be
    choice: RidgeChoice
    reference: Array  # the factor applies to differences from this row
    statistics: ClassStatistics
    base: Array  # (mu_m - reference) R0
    probes: Array  # what the trace of R is found with
    probed: Array  # probes R0

    @classmethod
    def of(
        cls, statistics: ClassStatistics, nominal: float, choice: RidgeChoice, rho: float
    ) -> Factored:
        """Factorise a scatter, and apply the factor to the class means."""
        inverse, means = InverseScatter.of(statistics.scatter, rho), statistics.means
        reference = means.mean(0) if len(means) else statistics.backend.zeros(means.shape[1:])
        probes = _probes(statistics.scatter.size, statistics.backend)
        stacked = statistics.backend.concatenate([means - reference, probes])
        inverse, solved = inverse.advanced(statistics.scatter, stacked)
        base, probed = solved[: len(means)], solved[len(means) :]
        return cls(inverse, nominal, choice, reference, statistics, base, probes, probed)

    def advanced(self, statistics: ClassStatistics, choice: RidgeChoice) -> Factored:
        """Return the same for statistics that have changed a little."""
        backend, known = statistics.backend, len(self.statistics.labels)
        wanted = np.arange(len(statistics.labels))
        base = self.base
        if statistics.labels[:known] == self.statistics.labels:
            same = statistics.means[:known] == self.statistics.means
            wanted = np.flatnonzero(~backend.to_numpy(same.all(1)).astype(bool))
            wanted = np.concatenate([wanted, np.arange(known, len(statistics.labels))])
        at = backend.index(wanted)
        moved = statistics.means[at] - self.reference
        inverse, solved = self.inverse.advanced(statistics.scatter, moved)
        grown = backend.zeros(statistics.means.shape)
        if len(wanted) < len(grown):
            grown[:known] = base
        grown[at] = solved
        rest = (self.probes, self.probed)
        return Factored(inverse, self.nominal, choice, self.reference, statistics, grown, *rest)

    def spread(self) -> tuple[float, float]:
        """Return ``tr(P Sigma)`` as a new sample sees it, and how many times the in-sample one.

        The trace of R is exact for few components and estimated from fixed probes for many.
        """
        statistics, size = self.statistics, self.statistics.scatter.size
        freedom = statistics.n_scattered - len(statistics.labels)
        if freedom <= 0:
            return 0.0, 1.0
        trace = float((self.inverse.update(self.probed, self.probes) * self.probes).sum())
        trace /= 1 if len(self.probes) == size else N_PROBES
        inside = max(size - self.inverse.rho * trace, 0.0)
        inflation = 1 / max(1 - inside / freedom, SMALLEST_SLACK)
        return inside * inflation, inflation


@dataclass(frozen=True, eq=False)
class Solved:
    """A linear rule and what it was made of; classes in the order of their sorted labels.

    Attributes
    ----------
    labels : tuple
        The classes.
    counts : ndarray of shape (M,)
        Samples of each class; one for a class that is known by its hint alone.
    means : array of shape (M, D)
        Class means, relative to their own mean.
    plain : array of shape (M, D)
        ``N (mu_m - g) R``: the weights of the plain means.
    centre : array of shape (D,)
        g, the mean of the class means.
    weights, biases : array of shape (M, D), (M,)
        Of the rule.
    """

    factored: Factored
    labels: tuple[Label, ...]
    counts: np.ndarray
    means: Array
    plain: Array
    centre: Array
    terms: RuleTerms
    weights: Array
    biases: Array
    spread: float
    inflation: float

    @property
    def n_samples(self) -> int:
        """Samples behind the scatter, at least one."""
        return max(self.factored.statistics.n_scattered, 1)


def solve(
    statistics: ClassStatistics,
    parameters: Parameters,
    size: int,
    declared: Declared,
    kept: Factored | None = None,
    *,
    random_features: bool = False,
) -> Solved:
    """Return the rule of statistics as they are now.

    Parameters
    ----------
    statistics : ClassStatistics
        Of the lifted samples.
    parameters : Parameters
        What the user chose.
    size : int
        Components that a ridge given as a number is relative to.
    declared : Declared
        Classes that have no samples, known by their names.
    kept : Factored, optional
        What the last solve left.
    random_features : bool
        Whether a part of the features is like all of them.
    """
    choice = RidgeChoice()
    if parameters.ridge == "auto":
        last = kept.choice if kept else None
        choice = choose_ridge(statistics, random_features=random_features, last=last)
    nominal, scale = absolute_ridge(statistics, declared.rows, parameters, size, choice.r)
    why = (
        f"{statistics.n_scattered} samples is not positive definite in "
        f"{statistics.backend.dtype.name} with ridge={parameters.ridge}"
    )
    if kept and kept.nominal == nominal and kept.inverse.is_for(statistics.scatter):
        try:
            return _rule(kept.advanced(statistics, choice), parameters, declared)
        except NotPositiveDefiniteError:
            pass  # a new factor may succeed with the same ridge
    least = float(np.finfo(statistics.backend.dtype).eps * scale)
    for rho in _rising_ridges(nominal, scale, least, why):
        try:
            return _rule(Factored.of(statistics, nominal, choice, rho), parameters, declared)
        except NotPositiveDefiniteError:
            continue
    raise KldaError(f"The scatter can't be factorised with any ridge: {DAMAGED}")


def _rule(factored: Factored, parameters: Parameters, declared: Declared) -> Solved:
    """Estimate the means of the classes, add the biases."""
    statistics, inverse = factored.statistics, factored.inverse
    backend, reference = statistics.backend, factored.reference
    labels, counts, means = statistics.labels, statistics.counts, statistics.means - reference
    plain = inverse.update(factored.base, means)
    told, n_samples = 1.0, max(statistics.n_scattered, 1)
    if declared.labels:
        added = declared.rows - reference
        told = _told_by_names(factored, declared)
        means = backend.concatenate([means, added])
        plain = backend.concatenate([plain, inverse.apply(added)])
        labels = (*labels, *declared.labels)
        usual = max(int(counts.mean()), 1) if len(counts) else 1
        counts = np.concatenate([counts, np.full(len(declared.labels), usual, np.int64)])
    order = np.array(sorted(range(len(labels)), key=labels.__getitem__), np.int64)
    means, plain = means[backend.index(order)], plain[backend.index(order)]
    labels, counts = tuple(labels[i] for i in order), counts[order]
    centre = means.mean(0)
    means -= centre
    plain = (plain - plain.mean(0)) * n_samples

    spread, inflation = factored.spread() if parameters.small_sample_correction else (0.0, 1.0)
    at = backend.index(largest_classes(counts))
    inner = backend.to_numpy(backend.linear(plain[at], means[at]), np.float64)
    inner = (inner + inner.T) / 2  # rounding made it uneven
    lengths = backend.to_numpy((plain * means).sum(1), np.float64)
    named = np.isin(order, np.arange(len(statistics.labels), len(labels)))
    # Of a name's squared length, only a part is the class's; the noise of samples is not in it.
    extra = np.where(named, 0.5 * (1 - told) * lengths - 0.5 * spread / counts, 0.0)
    terms = rule_terms(inner, lengths, counts, spread, inflation, parameters, extra)
    weights = plain
    if terms.mixing.combination is not None:
        weights = backend.asarray(terms.mixing.combination) @ weights
    if terms.blend is not None:
        weights = backend.asarray(terms.blend.T) @ weights
    centre = centre + reference
    biases = backend.asarray(terms.offsets) - backend.linear(weights, centre[None])[:, 0]
    parts = (labels, counts, means, plain, centre, terms, weights, biases, spread, inflation)
    return Solved(factored, *parts)


def _told_by_names(factored: Factored, declared: Declared) -> float:
    """Return how much of a class mean its name tells, relative to what it says.

    The slope of the means of classes that have both on their names, in the whitened space.
    """
    if len(declared.taught) < 2:
        return 1.0
    statistics, backend = factored.statistics, factored.statistics.backend
    means = statistics.means[backend.index(declared.taught)]
    names, means = declared.taught_rows - means.mean(0), means - means.mean(0)
    whitened = factored.inverse.apply(names)
    said = float((names * whitened).sum())
    return float(np.clip(float((means * whitened).sum()) / said, 0.0, 1.0)) if said > 0 else 1.0


def absolute_ridge(
    statistics: ClassStatistics, names: Array, parameters: Parameters, size: int, r: float
) -> tuple[float, float]:
    """Return the ridge on the scale of the scatter, rounded to the grid, and that scale.

    A number is relative to the mean diagonal of the scatter; "auto" is ``r v``, as in
    `klda.engine.ridge`.
    """
    scatter, counts, backend = statistics.scatter, statistics.counts, statistics.backend
    scale, turnover = max(scatter.trace, 0.0) / scatter.size, scatter.turnover / scatter.size
    means = statistics.means if len(statistics.means) else names
    weights = counts if len(counts) else np.ones(len(means))
    at = backend.asarray(weights / weights.sum())
    spread = ((means - at @ means) ** 2).sum(1)
    between = float((at * spread).sum()) * max(float(weights.sum()), 1.0)  # sum over the samples
    eps = float(np.finfo(backend.dtype).eps)
    noise = 8 * eps * turnover + (64 * eps) ** 2 * between / size  # what rounding alone may leave
    if parameters.ridge == "auto":
        rho = r * (max(scatter.trace, 0.0) + between) / max(statistics.n_scattered, 1)
        # With far more samples than components this is next to nothing, and solving would magnify
        # rounding errors.
        rho = max(rho, float(np.sqrt(eps)) * scale)
    elif scale <= noise:  # without known spread within classes all directions are equal
        rho = between / size
    else:
        rho = float(parameters.ridge) * max(scatter.trace, 0.0) / size
    rho = max(rho, noise) or 1.0
    if not np.isfinite(rho):
        raise KldaError(f"The statistics are not finite: {DAMAGED}")
    return float(2.0 ** (round(np.log2(rho) * STEPS_PER_OCTAVE) / STEPS_PER_OCTAVE)), scale


def _rising_ridges(rho: float, scale: float, least: float, why: str) -> Iterator[float]:
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
