"""From statistics to a linear classifier: ``w_m = P mu_m``, ``b_m = -1/2 mu_m^T w_m``.

Scores are relative to a class at the mean of the class means: the constant that all classes share
is left out, so that float32 spends its digits on the differences between classes.

``P`` is N times ``R = (S + rho I)^-1``. The ridge rho is rounded to a fixed grid (eight steps per
octave, at most 4.5% off). A small change then leaves it where it was, so the factor of the scatter
is kept and updated, and the classifier is a function of the statistics alone.

The steps: choose the ridge (`klda.engine.ridge`), factorise or update the factor (`Factored`),
estimate class means from samples and names (`klda.engine.names`), improve those of rare classes
(`klda.engine.shrinkage`), add regression (`klda.engine.rule`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from klda.engine.arrays import Array, Backend
from klda.engine.names import ClassMeans, Names, class_means
from klda.engine.parameters import Parameters
from klda.engine.ridge import RidgeChoice, choose_ridge
from klda.engine.rule import RuleTerms, largest_classes, rule_terms, unit_of
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


@dataclass(frozen=True, eq=False)
class Factored:
    """What one solve leaves for the next: the factor, and what it was applied to."""

    inverse: InverseScatter
    nominal: float  # the ridge, before it was raised if it had to be
    choice: RidgeChoice
    reference: Array  # the factor applies to differences from this row
    statistics: ClassStatistics
    names: Names
    base: Array  # (mu_m - reference) R0
    named: Array  # (names - reference) R0
    probes: Array  # what the trace of R is found with
    probed: Array  # probes R0

    @classmethod
    def of(
        cls,
        statistics: ClassStatistics,
        names: Names,
        nominal: float,
        choice: RidgeChoice,
        rho: float,
    ) -> Factored:
        """Factorise a scatter, and apply the factor to class means and names."""
        inverse, means = InverseScatter.of(statistics.scatter, rho), statistics.means
        reference = means.mean(0) if len(means) else statistics.backend.zeros(means.shape[1:])
        probes = _probes(statistics.scatter.size, statistics.backend)
        parts = [means - reference, *([names.rows - reference] if names.labels else []), probes]
        stacked = statistics.backend.concatenate(parts)
        inverse, solved = inverse.advanced(statistics.scatter, stacked)
        n, m = len(means), len(means) + len(names.labels)
        solved = (solved[:n], solved[n:m], probes, solved[m:])
        return cls(inverse, nominal, choice, reference, statistics, names, *solved)

    def advanced(self, statistics: ClassStatistics, names: Names, choice: RidgeChoice) -> Factored:
        """Return the same for statistics that have changed a little."""
        backend, known = statistics.backend, len(self.statistics.labels)
        wanted = np.arange(len(statistics.labels))
        if statistics.labels[:known] == self.statistics.labels:
            same = statistics.means[:known] == self.statistics.means
            wanted = np.flatnonzero(~backend.to_numpy(same.all(1)).astype(bool))
            wanted = np.concatenate([wanted, np.arange(known, len(statistics.labels))])
        at = backend.index(wanted)
        moved, named = statistics.means[at] - self.reference, self.named
        if names.rows is not self.names.rows and names.labels:
            moved = backend.concatenate([moved, names.rows - self.reference])
        inverse, solved = self.inverse.advanced(statistics.scatter, moved)
        base = backend.zeros(statistics.means.shape)
        if len(wanted) < len(base):
            base[:known] = self.base
        base[at] = solved[: len(wanted)]
        if names.rows is not self.names.rows:
            named = solved[len(wanted) :]
        return replace(
            self,
            inverse=inverse,
            choice=choice,
            statistics=statistics,
            names=names,
            base=base,
            named=named,
        )

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

    def class_means(self, spread: float) -> ClassMeans:
        """Return the means of all classes relative to the reference, names counted."""
        statistics, names = self.statistics, self.names
        own = statistics.means - self.reference
        means = [own, self.inverse.update(self.base, own)]
        said = []
        if names.labels:
            rows = names.rows - self.reference
            said = [rows, self.inverse.update(self.named, rows)]
        return class_means(statistics, names, means, said, spread)


@dataclass(frozen=True, eq=False)
class Solved:
    """A linear rule and what it was made of; classes in the order of their sorted labels.

    Attributes
    ----------
    classes : ClassMeans
        Means relative to ``centre``; those times R are multiplied by the number of samples N.
    centre : array of shape (D,)
        g, the mean of the estimated class means.
    weights, biases : array of shape (M, D), (M,)
        Of the rule.
    unit : float
        What scores and novelty grow with: half the typical squared distance between two class
        means. Where names make the means shorter, samples are as long as ever: the geometric mean.
    """

    factored: Factored
    classes: ClassMeans
    centre: Array
    terms: RuleTerms
    weights: Array
    biases: Array
    unit: float

    @property
    def labels(self) -> tuple[Label, ...]:
        """The classes."""
        return self.classes.labels

    @property
    def counts(self) -> np.ndarray:
        """Samples of each class."""
        return self.classes.counts

    @property
    def n_samples(self) -> int:
        """Samples behind the scatter, at least one."""
        return max(self.factored.statistics.n_scattered, 1)


def solve(
    statistics: ClassStatistics,
    parameters: Parameters,
    size: int,
    names: Names,
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
    names : Names
        What the names of classes say.
    kept : Factored, optional
        What the last solve left.
    random_features : bool
        Whether a part of the features is like all of them.
    """
    if kept and not kept.inverse.is_for(statistics.scatter):
        kept = None
    choice = RidgeChoice()
    if parameters.ridge == "auto":
        last = kept.choice if kept else None
        choice = choose_ridge(statistics, random_features=random_features, last=last)
    nominal, scale = absolute_ridge(statistics, names.rows, parameters, size, choice.r)
    why = (
        f"{statistics.n_scattered} samples is not positive definite in "
        f"{statistics.backend.dtype.name} with ridge={parameters.ridge}"
    )
    if kept and kept.nominal == nominal:
        try:
            return _rule(kept.advanced(statistics, names, choice), parameters)
        except NotPositiveDefiniteError:
            pass  # a new factor may succeed with the same ridge
    least = float(np.finfo(statistics.backend.dtype).eps * scale)
    for rho in _rising_ridges(nominal, scale, least, why):
        try:
            return _rule(Factored.of(statistics, names, nominal, choice, rho), parameters)
        except NotPositiveDefiniteError:
            continue
    raise KldaError(f"The scatter can't be factorised with any ridge: {DAMAGED}")


def _rule(factored: Factored, parameters: Parameters) -> Solved:
    """Estimate the means of the classes, add the biases."""
    statistics, backend = factored.statistics, factored.statistics.backend
    spread, inflation = factored.spread()
    found, reference = factored.class_means(spread), factored.reference
    if not parameters.small_sample_correction:
        spread, inflation = 0.0, 1.0
    centre, found = found.means.mean(0), found.centred(max(statistics.n_scattered, 1))
    means, plain = found.means, found.plain
    at = backend.index(largest_classes(found.worth))
    inner = backend.to_numpy(backend.linear(plain[at], means[at]), np.float64)
    inner = (inner + inner.T) / 2  # rounding made it uneven
    lengths = backend.to_numpy((plain * means).sum(1), np.float64)
    # The estimate of a class without samples carries none of their noise.
    extra = np.where(found.counts == 0, -0.5 * spread / found.worth, 0.0)
    terms = rule_terms(inner, lengths, found.worth, spread, inflation, parameters, extra)
    weights = plain
    if terms.mixing.combination is not None:
        weights = backend.asarray(terms.mixing.combination) @ weights
    if terms.blend is not None:
        weights = backend.asarray(terms.blend.T) @ weights
    centre = centre + reference
    biases = backend.asarray(terms.offsets) - backend.linear(weights, centre[None])[:, 0]
    unit = unit_of(terms.squares)
    if factored.names.labels:
        of_samples = backend.to_numpy((found.own_plain * found.own).sum(1), np.float64)
        shorter = np.median(of_samples) / max(np.median(lengths), np.finfo(float).tiny)
        unit *= float(np.sqrt(shorter)) or 1.0  # of one class alone: its mean is the average
    return Solved(factored, found, centre, terms, weights, biases, unit)


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
