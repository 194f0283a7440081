"""The solution while there are few samples: the exact kernel, and choices made late.

As long as a model holds its samples, no random features are needed: the kernel between the samples
gives the same classifier without their noise. In the space that the N samples span, with K their
kernel matrix, C the centring on class means and ``Q = (C K C + rho I)^-1``, the scatter's
``R = (S + rho I)^-1`` is ``(I - Z^T C Q C Z) / rho``, and all that the rule and leave-one-out need
follows from K and Q.

What random features would fix from the start stays open here. A row may consist of blocks (layers
of a network), and texts differ in which of them tells their classes apart: topics are in the last
layer, kinds of questions in the earlier ones. The earlier blocks are weighted by what leave-one-out
favours. While there are few samples of each class, the usual weight is used unless another is
ahead by two standard errors; with more samples, one is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy

from klda.engine.arrays import Array, Backend, product
from klda.engine.evidence import Evidence, left_out_scores
from klda.engine.feature_map import FeatureMap, KernelMap
from klda.engine.few_evidence import (
    FewEvidence,
    heat_of_few_classes,
    refined_temperature,
    usual_temperature,
)
from klda.engine.model import Model
from klda.engine.rule import RuleTerms, Settings, out_of_sample
from klda.engine.shrinkage import Shrinkage
from klda.engine.solution import LinearRule, Solution, softmax
from klda.engine.solve import absolute_ridge, rising_ridges
from klda.errors import KldaError

USUAL_WEIGHT = 0.4  # of the blocks before the last
WEIGHTS = (0.0, 0.4, 0.8, 1.4)
WEIGHT_OF_NAMES = 0.0  # without any sample: what a name means is in the last block
MOST_COMPARED = 1000  # samples that weights are compared on
# A weight must be ahead by 4 / n standard errors with n samples per class, within these limits.
ERRORS = (1.0, 2.0)


def solve_few(model: Model, settings: Settings) -> Solution:
    """Return the classifier of a model that holds its samples.

    LDA's rule is the same with the inner products of random features in the place of the kernel.
    """
    held = model.held.join(model.useful_hints)
    rows, groups, _ = held.grouped()
    is_sample = held.order < len(model.held)
    backend, size = model.backend, model.statistics.n_components
    classes, counts = model.classes, model.class_counts
    if settings.rule == "lda":
        fits = [LinearFit(own_map, rows, groups, settings, is_sample) for own_map in model.maps]
        rules = tuple(fit.rule(backend) for fit in fits)
        maps = tuple(model.maps)
        solution = Solution(backend, maps, classes, counts, rules, settings.combine, None)
        evidence = judge_few(solution, fits) if settings.calibrated else None
        return replace(solution, evidence=evidence)
    kernels = Kernels(rows.astype(np.float64), model.maps[0])
    weight = choose_weight(kernels, held.hashes[held.order], groups, is_sample, settings, size)
    fit = ExactFit(kernels.matrix(weight), groups, settings, size, is_sample)
    usual = fit.evidence(classes) if settings.calibrated else None
    own_map = kernels.map(weight, backend)
    return Solution(backend, (own_map,), classes, counts, (fit.rule(backend),), "scores", usual)


def judge_few(solution: Solution, fits: Sequence[LinearFit]) -> Evidence | FewEvidence:
    """Return what leaving samples out tells about LDA's rule, as with more samples.

    With one sample of each class it tells nothing, and what is usual has to do.
    """
    at = fits[0].left_out
    if not len(at) or len(solution.classes) < 2:
        return fits[0].evidence(solution.classes)
    own = fits[0].groups[at]
    parts = [solution.backend.asarray(fit.scores_left_out[0]) for fit in fits]
    scores = solution.backend.to_numpy(solution.combined(parts))
    each = [fit.terms.familiarity.novelty_of_lda(fit.scores_left_out[1]) for fit in fits]
    novelty = np.mean(each, axis=0)
    labels = solution.classes[own].tolist()
    return Evidence().add(solution.scale, labels, scores, own, novelty)


class Kernels:
    """The kernel between samples, for any weight of the blocks before the last."""

    def __init__(self, rows: np.ndarray, own_map: FeatureMap) -> None:
        self.rows, self._gamma = rows, float(own_map.gamma or 1.0)
        self.start = sum(own_map.blocks[:-1])  # of the last block
        centred = rows - rows.mean(axis=0)
        self.early = _squared_distances(centred[:, : self.start])
        self.last = _squared_distances(centred[:, self.start :])

    def map(self, weight: float, backend: Backend) -> KernelMap:
        """Return the map from an input to its kernel with each sample."""
        scales = np.repeat([weight, 1.0], [self.start, self.rows.shape[1] - self.start])
        scaled = self.rows * scales
        centre = scaled.mean(axis=0)
        support, middle, factors = map(backend.asarray, (scaled - centre, centre, scales))
        return KernelMap(backend, support, middle, factors, self.gamma(weight), self._gamma)

    def gamma(self, weight: float) -> float:
        """Return the bandwidth that makes the kernel as wide, on average, as without weights."""
        early, last = self.early.mean(), self.last.mean()
        weighted = weight**2 * early + last
        return float(self._gamma * (early + last) / weighted) if weighted > 0 else self._gamma

    def matrix(self, weight: float, chosen: np.ndarray | None = None) -> np.ndarray:
        """Return ``exp(-gamma d^2) - 1`` between samples; a constant makes no difference."""
        at = slice(None) if chosen is None else np.ix_(chosen, chosen)
        squares = weight**2 * self.early[at] + self.last[at]
        return np.asarray(np.expm1(-self.gamma(weight) * squares))


def _squared_distances(rows: np.ndarray) -> np.ndarray:
    lengths = np.einsum("ij,ij->i", rows, rows)
    squares = np.maximum(lengths[:, None] + lengths - 2 * rows @ rows.T, 0.0)
    np.fill_diagonal(squares, 0.0)
    return np.asarray(squares)


def choose_weight(
    kernels: Kernels,
    hashes: np.ndarray,
    groups: np.ndarray,
    is_sample: np.ndarray,
    settings: Settings,
    size: int,
) -> float:
    """Return the weight that leave-one-out favours, or the usual one."""
    if not kernels.start:
        return 1.0  # there is one block
    chosen = np.sort(np.argsort(hashes, kind="stable")[:MOST_COMPARED])
    places = np.unique(groups[chosen], return_inverse=True)[1]
    tested = is_sample[chosen] & (np.bincount(places)[places] > 1)
    if not tested.any() or places.max() < 1:
        return USUAL_WEIGHT if is_sample.any() else WEIGHT_OF_NAMES
    losses = {
        weight: ExactFit(
            kernels.matrix(weight, chosen), places, settings, size, is_sample[chosen]
        ).losses
        for weight in WEIGHTS
    }
    best = min(WEIGHTS, key=lambda weight: losses[weight].mean())
    errors = float(np.clip(4 * (groups.max() + 1) / len(groups), *ERRORS))
    for weight in sorted(WEIGHTS, key=lambda weight: abs(weight - USUAL_WEIGHT)):
        gaps = losses[weight] - losses[best]
        if gaps.mean() <= errors * gaps.std() / np.sqrt(len(gaps)):
            return weight
    return best


@dataclass(frozen=True)
class _Means:
    """Averages by class of samples that come class by class."""

    groups: np.ndarray
    counts: np.ndarray

    def of(self, values: np.ndarray) -> np.ndarray:
        """Average the rows of an array by class."""
        starts = np.searchsorted(self.groups, np.arange(len(self.counts)))
        return np.asarray(np.add.reduceat(values, starts, axis=0) / self.counts[:, None])

    def centred(self, values: np.ndarray) -> np.ndarray:
        """Subtract from each row the mean of its class."""
        return np.asarray(values - self.of(values)[self.groups])


class ExactFit:
    """LDA with the kernel matrix K of N samples.

    Parameters
    ----------
    kernel : ndarray of shape (N, N)
        Up to a constant.
    groups : ndarray of shape (N,)
        Class of each sample, in ascending order.
    settings : Settings
        What the user chose.
    size : int
        Number of random features that would stand for the kernel: the ridge is relative to the
        mean diagonal of a covariance of that size.
    is_sample : ndarray of shape (N,)
        False for hints, which are never left out.
    rho : float, optional
        The ridge on the scale of the scatter, if it does not follow from the settings.
    """

    def __init__(
        self,
        kernel: np.ndarray,
        groups: np.ndarray,
        settings: Settings,
        size: int,
        is_sample: np.ndarray,
        rho: float | None = None,
    ) -> None:
        self.is_sample = is_sample
        self.groups, self.settings, self.n = groups, settings, len(groups)
        self.counts = np.bincount(groups).astype(np.float64)
        self.means = _Means(groups, self.counts)
        self.kernel = kernel
        within = self.means.centred(self.means.centred(kernel).T)  # C K C
        within = (within + within.T) / 2
        relative = settings.relative_ridge(self.counts, size)
        self.rho, self.inverse = self._inverted(within, relative, size, rho)
        of_means = self.means.of(kernel)  # M x N: inner products of means with samples
        self.to_centre = of_means.mean(axis=0)
        to_means = of_means - self.to_centre
        self.means_v = self.inverse @ self.means.centred(to_means.T)  # Q C K m^T: N x M
        self.coefficients = -self.means.centred(self.means_v)
        self.coefficients[np.arange(self.n), groups] += 1 / self.counts[groups]
        self.coefficients -= (1 / self.counts[groups] / len(self.counts))[:, None]
        self.coefficients *= self.n / self.rho  # N x M: weights of the plain means
        inner = to_means @ self.coefficients
        inner = (inner + inner.T) / 2
        self.inner = inner - inner.mean(axis=0) - inner.mean(axis=1)[:, None] + inner.mean()
        self.spread, self.inflation = self._spread()
        shrinkage = Shrinkage(
            self.inner,
            np.arange(len(self.counts)),
            self.counts,
            spread=self.spread,
            inflation=self.inflation,
        )
        self.combination, _, squares = shrinkage.mix_anchors(self.inner.diagonal())
        self.terms = RuleTerms.of(shrinkage, squares, self.inflation, settings)
        if settings.rule == "auto" and self.n == len(self.counts) and is_sample.all():
            # How far out a single sample is says nothing about its class.
            flat = replace(self.terms, squares=np.full_like(squares, squares.mean()))
            known = replace(flat.familiarity, offsets=flat.offsets)
            self.terms = replace(flat, familiarity=known)

    def _inverted(
        self, within: np.ndarray, relative: float, size: int, rho: float | None
    ) -> tuple[float, np.ndarray]:
        """Return the ridge and ``(C K C + rho I)^-1``; a ridge that is too small is raised."""
        trace = float(within.trace())
        scale = max(trace, 0.0) / size
        of_means = self.means.of(self.means.of(self.kernel).T).T
        lengths = of_means.diagonal() - 2 * of_means.mean(axis=0) + of_means.mean()
        usual = max(float(np.abs(lengths).mean()) * self.n / size, 1e-12)
        if rho is None:
            rho = usual if scale <= 1e-12 * usual else relative * scale
        least = float(np.finfo(float).eps * max(scale, trace / self.n))
        why = f"{self.n} samples is not positive definite with ridge={relative:g}"
        for raised in rising_ridges(rho, scale, least, why):
            system = within.copy()
            system[np.arange(self.n), np.arange(self.n)] += raised
            with suppress(scipy.linalg.LinAlgError):
                factor = scipy.linalg.cho_factor(system, lower=True, check_finite=False)
                identity = np.eye(self.n)
                return raised, scipy.linalg.cho_solve(factor, identity, check_finite=False)
        raise KldaError("The kernel between the samples can't be factorised with any ridge.")

    def _spread(self) -> tuple[float, float]:
        """Return ``tr(P Sigma)`` as a new sample sees it, and by how much that is inflated."""
        freedom = self.n - len(self.counts)
        if not self.settings.small_sample_correction or freedom <= 0:
            return 0.0, 1.0
        return out_of_sample(self.n - self.rho * float(self.inverse.trace()), freedom)

    @cached_property
    def weights(self) -> np.ndarray:
        """Weights of the classes, of shape (M, N)."""
        weights = self.coefficients.T
        if self.combination.shape[1]:
            weights = self.combination @ weights
        return weights if self.terms.blend is None else self.terms.blend.T @ weights

    def rule(self, backend: Backend) -> LinearRule:
        """Return the rule in terms of the kernel between an input and the samples."""
        biases = backend.asarray(self.terms.offsets - self.weights @ self.to_centre)
        return self._rule(backend.asarray(self.weights), biases)

    def _rule(self, weights: Array, biases: Array) -> LinearRule:
        scales = (self.rho, self.spread, self.inflation)
        return LinearRule(weights, biases, *scales, self.terms.familiarity)

    # ---------------------------------------------------------------- leaving samples out

    @cached_property
    def left_out(self) -> np.ndarray:
        """Positions of the samples that can be left out: their class has others."""
        return np.flatnonzero(self.is_sample & (self.counts[self.groups] > 1))

    @cached_property
    def scores_left_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Scores that these samples would have got, had they not been learned; also LDA's."""
        at = self.left_out
        centred = self.means.centred(self.kernel.T).T  # K C
        vv = 1 - self.rho * self.inverse.diagonal()
        zv = np.einsum("ij,ji->i", centred, self.inverse)
        zv -= self.means.centred(self.to_centre[:, None])[:, 0] @ self.inverse
        linear = self.kernel @ self.coefficients - self.to_centre @ self.coefficients
        own = self.groups[at]
        return left_out_scores(
            self.terms,
            own,
            self.counts[own],
            self.n,
            vv=vv[at],
            zv=zv[at],
            means_v=self.means_v[at],
            linear=linear[at],
        )

    @property
    def temperature(self) -> float:
        """What scores are usually divided by before they become probabilities."""
        blended = self.terms.blend is not None
        usual = usual_temperature(self.inner.diagonal(), self.counts, blended)
        return usual * heat_of_few_classes(len(self.counts))

    @property
    def losses(self) -> np.ndarray:
        """``-log`` of the probability that each sample's class gets when it is left out."""
        probabilities = softmax(self.scores_left_out[0] / self.temperature)
        own = probabilities[np.arange(len(self.left_out)), self.groups[self.left_out]]
        return np.asarray(-np.log(np.maximum(own, 1e-12)))

    def evidence(self, classes: np.ndarray) -> FewEvidence:
        """Return what leaving samples out tells."""
        length, n_classes = float(np.median(self.inner.diagonal())), len(self.counts)
        if not self.is_sample.any():  # names alone don't tell what inputs look like
            n_classes = 0
        if not len(self.left_out) or n_classes < 2:
            return FewEvidence(self.temperature, length, n_classes)
        (scores, of_lda), own = self.scores_left_out, self.groups[self.left_out]
        return FewEvidence.of(
            refined_temperature(self.temperature, scores, own, self.counts),
            length,
            self.counts,
            classes[own].tolist(),
            self.terms.familiarity.novelty_of_lda(of_lda),
            scores.argmax(axis=1) != own,
        )


class LinearFit(ExactFit):
    """LDA's rule in terms of features, solved from the inner products of few samples.

    The same rule as with more samples, of which the scatter is kept (`klda.engine.solve`).
    """

    def __init__(
        self,
        own_map: FeatureMap,
        rows: np.ndarray,
        groups: np.ndarray,
        settings: Settings,
        is_sample: np.ndarray,
    ) -> None:
        backend, counts, size = own_map.backend, np.bincount(groups), own_map.n_components
        features = backend.to_numpy(own_map.lift(rows)).astype(np.float64)
        means = _Means(groups, counts).of(features)
        self.centre = means.mean(axis=0)
        # Relative to their centre: beside an offset that all share, their differences would lose
        # digits.
        self.features = features - self.centre
        scale = float(np.square(features - means[groups]).sum()) / size
        of_means = float(np.square(means).mean()) * len(groups)
        ridge = settings.relative_ridge(counts, size)
        rho = absolute_ridge(ridge, scale, scale, of_means, backend.dtype)
        kernel = product(self.features, self.features.T)
        super().__init__(kernel, groups, settings, size, is_sample, rho)

    def rule(self, backend: Backend) -> LinearRule:
        """Return the rule in terms of features."""
        weights = backend.asarray(product(self.weights, self.features))
        of_centre = backend.linear(weights, backend.asarray(self.centre)[None])[:, 0]
        return self._rule(weights, backend.asarray(self.terms.offsets) - of_centre)
