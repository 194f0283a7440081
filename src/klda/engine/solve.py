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
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from klda.engine.arrays import Array, Backend
from klda.engine.names import fit_names
from klda.engine.parameters import Parameters
from klda.engine.ridge import RidgeChoice, choose_ridge
from klda.engine.rule import MOST_CLASSES, RuleTerms, largest_classes, rule_terms, unit_of
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
class Names:
    """Features of the names of classes, with samples or without."""

    labels: tuple[Label, ...] = ()
    rows: Array = None  # one per label
    source: object = None  # what the features were computed from
    whitened: bool = True  # which inner products tell how names and class means are related


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


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """Means of all classes, relative to one row: those of their samples, and with names counted.

    Attributes
    ----------
    labels : tuple
        The classes.
    counts : ndarray of shape (M,)
        Samples of each class; none of a class that is known by its name alone.
    worth : ndarray of shape (M,)
        How many samples the estimate of each mean is worth, its name counted.
    own, own_plain : array of shape (M, D)
        The means of the samples, and these times R.
    means, plain : array of shape (M, D)
        The estimates, and these times R.
    pull : ndarray of shape (M,)
        How far an estimate moves with the mean of its samples.
    """

    labels: tuple[Label, ...]
    counts: np.ndarray
    worth: np.ndarray
    own: Array
    own_plain: Array
    means: Array
    plain: Array
    pull: np.ndarray

    def sorted(self, backend: Backend) -> ClassMeans:
        """Return the same in the order of labels."""
        order = np.array(sorted(range(len(self.labels)), key=self.labels.__getitem__), np.int64)
        at, labels = backend.index(order), tuple(self.labels[i] for i in order)
        rows = (self.own[at], self.own_plain[at], self.means[at], self.plain[at])
        return ClassMeans(labels, self.counts[order], self.worth[order], *rows, self.pull[order])


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
    found = class_means(factored, spread).sorted(backend)
    if not parameters.small_sample_correction:
        spread, inflation = 0.0, 1.0
    n, centre, shift = max(statistics.n_scattered, 1), found.means.mean(0), found.plain.mean(0)
    found = replace(
        found,
        own=found.own - centre,
        own_plain=(found.own_plain - shift) * n,
        means=found.means - centre,
        plain=(found.plain - shift) * n,
    )
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
    centre = centre + factored.reference
    biases = backend.asarray(terms.offsets) - backend.linear(weights, centre[None])[:, 0]
    unit = unit_of(terms.squares)
    if factored.names.labels:
        of_samples = backend.to_numpy((found.own_plain * found.own).sum(1), np.float64)
        shorter = np.median(of_samples) / max(np.median(lengths), np.finfo(float).tiny)
        unit *= float(np.sqrt(shorter))
    return Solved(factored, found, centre, terms, weights, biases, unit)


def class_means(factored: Factored, spread: float) -> ClassMeans:
    """Return the means of the classes, those with names estimated as in `klda.engine.names`.

    With very many classes, only those without samples use their names.
    """
    statistics, names, inverse = factored.statistics, factored.names, factored.inverse
    backend, n, labels = statistics.backend, statistics.n_scattered, statistics.labels
    own = statistics.means - factored.reference
    own_plain = inverse.update(factored.base, own)
    counts = statistics.counts
    if not names.labels:
        same = (own, own_plain, own, own_plain)
        return ClassMeans(labels, counts, counts, *same, np.ones(len(counts)))
    few = len(labels) + len(names.labels) <= 2 * MOST_CLASSES
    taught = [i for i, label in enumerate(names.labels) if label in statistics.positions and few]
    declared = [i for i, label in enumerate(names.labels) if label not in statistics.positions]
    both = statistics.locate(names.labels[i] for i in taught)
    at, chosen = backend.index(both), backend.index(np.array(taught + declared, np.int64))
    told = names.rows - factored.reference
    told, told_plain = told[chosen], inverse.update(factored.named, told)[chosen]
    found, parts = [], [(own, told), (own_plain, told_plain)]
    for means, said in parts:
        average = means[at].mean(0) if taught else means.mean(0) if len(means) else said.mean(0)
        # Names have an average of their own: they differ from samples in all classes alike.
        of_names = said[: len(both)].mean(0) if taught else average
        found.append((means[at] - average, said - of_names, average))
    stacked = [backend.concatenate([means, said]) for means, said, _ in found]
    left = stacked[1] * n if names.whitened else stacked[0]
    gram = backend.to_numpy(backend.linear(left, stacked[0]), np.float64)
    within = spread * (n - len(labels)) if names.whitened else max(statistics.scatter.trace, 0.0)
    k = len(both)
    fit = fit_names(gram[:k, :k], gram[:k, k : 2 * k], gram[k:, k:], counts[both], within, n)
    gains, estimates = backend.asarray(fit.gains), []
    for (means, said, average), (plain_means, _) in zip(found, parts, strict=True):
        estimate = average + fit.slope * said + gains @ (means - fit.slope * said[:k])
        all_means = backend.concatenate([plain_means, estimate[k:]])
        all_means[at] = estimate[:k]
        estimates.append((backend.concatenate([plain_means, average + said[k:]]), all_means))
    usual = np.floor(counts.mean()) + 1 if len(counts) else 1.0
    worth = np.concatenate([counts, np.full(len(declared), usual)]) + 0.0
    worth[both] += fit.worth
    worth[len(labels) :] += fit.worth
    pull = np.ones(len(worth))
    pull[both] = fit.gains[np.arange(k), np.arange(k)]
    (own, means), (own_plain, plain) = estimates
    return ClassMeans(
        (*labels, *(names.labels[i] for i in declared)),
        np.concatenate([counts, np.zeros(len(declared), np.int64)]),
        worth,
        own,
        own_plain,
        means,
        plain,
        pull,
    )


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
