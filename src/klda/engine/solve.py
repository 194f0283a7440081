"""From a model to a linear classifier: ``w_m = P mu_m``, ``b_m = -1/2 mu_m^T w_m``.

``P`` is N times ``R = (S + rho I)^-1``. `solve` is the one path, step by step: choose
the features and the ridge (`klda.engine.ridge`); factorise the scatter, or update its factor
(`klda.engine.inverse`); estimate class means from samples and names (`klda.engine.means`); improve
those of rare classes, and add regression (`klda.engine.rule`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

import numpy as np

from klda.engine import sizes
from klda.engine.arrays import Array, product
from klda.engine.feature_map import FeatureMap, FourierMap, KernelMap
from klda.engine.inverse import InverseScatter, NotPositiveDefiniteError, factorised
from klda.engine.means import class_means
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.ridge import find_ridge, trace_probes
from klda.engine.rule import Rule, linear_rule, unit_of_samples
from klda.engine.solution import Solution
from klda.engine.statistics import ClassStatistics
from klda.labels import group_labels

# Weight of the blocks before the last at one sample of each class; it grows with the root of their
# number, to one. Mean accuracy over fifteen sets with weights of 0.4, 0.7 and 1: 56.2, 56.2, 55.6
# with two samples of each class, 68.3, 68.8, 68.8 with five, 77.3, 78.1, 78.4 with sixteen.
WEIGHT_OF_ONE = 0.4


def solve(model: Model, parameters: Parameters, last: Rule | None = None) -> Rule:
    """Return the rule of a model as it is now; with what the `last` solve left, in less time."""
    feature_map, statistics, names, lifted = _in_features(model, parameters, last)
    labels = model.name_rows.labels.tolist()
    # A choice holds for features of its own kind.
    is_alike = last is not None and type(last.solution.map) is type(feature_map)
    rho, choice = find_ridge(
        statistics,
        names,
        parameters.ridge,
        model.map.n_components,
        random_features=isinstance(feature_map, FourierMap),
        last=last.choice if last is not None and is_alike else None,
    )

    origin, inverse = _inverse(statistics, names, feature_map, rho, last)
    backend, n = statistics.backend, max(statistics.n_scattered, 1)
    d_out, inflation = inverse.d_out(statistics.n_scattered - len(statistics.labels))
    # In the exact kernel plain inner products tell how names and means are related.
    whitened = None if isinstance(feature_map, KernelMap) else d_out
    # Nothing else holds these arrays: with many classes they are freed as soon as can be.
    classes = class_means(
        statistics, labels, inverse.with_r("means"), inverse.with_r("names"), whitened
    )
    centre = origin + classes.means.mean(0)
    classes = classes.centred(n)
    weights, distance, mixing, blend = linear_rule(classes, parameters, d_out, inflation, backend)
    solution = Solution(
        map=feature_map,
        classes=np.array(classes.labels),
        class_counts=classes.counts,
        weights=weights,
        biases=backend.asarray(distance.offsets) - product(weights, centre[:, None])[:, 0],
        rho=inverse.rho,
        distance=distance,
    )
    return Rule(
        solution=solution,
        rho=rho,
        choice=choice,
        inverse=inverse,
        origin=origin,
        name_rows=model.name_rows,
        names=names,
        lifted=lifted,
        classes=classes,
        centre=centre,
        mixing=mixing,
        blend=blend,
        unit=unit_of_samples(distance.lengths, classes, backend),
        n_samples=n,
    )


def _inverse(
    statistics: ClassStatistics,
    names: Array,
    feature_map: FeatureMap | KernelMap,
    rho: float,
    last: Rule | None,
) -> tuple[Array, InverseScatter]:
    """Return the inverse, applied to all that is needed, and the row that this is relative to.

    It is the last one, updated, if features and ridge are the same and only a few samples differ.
    """
    backend, scatter, means = statistics.backend, statistics.scatter, statistics.means
    is_same = last and last.solution.map is feature_map and last.rho == rho
    if last and is_same and last.inverse.is_for(scatter):
        with suppress(NotPositiveDefiniteError):  # a new factor may succeed with the same ridge
            vectors = _vectors(statistics, names, last.origin)
            return last.origin, last.inverse.advanced(scatter, vectors)
    origin = means.mean(0) if len(means) else backend.zeros(means.shape[1:])
    return origin, factorised(statistics, rho, _vectors(statistics, names, origin))


def _vectors(statistics: ClassStatistics, names: Array, origin: Array) -> dict[str, Array]:
    """Return what the inverse is applied to: class means, names and the probes of its trace."""
    means, probes = statistics.means - origin, trace_probes(statistics.scatter.size)
    return {"means": means, "names": names - origin, "probes": statistics.backend.asarray(probes)}


# A map to features; the statistics and lifted names in these; the samples, if they span these.
InFeatures: TypeAlias = tuple[FeatureMap | KernelMap, ClassStatistics, Array, Array | None]


def _in_features(model: Model, parameters: Parameters, last: Rule | None) -> InFeatures:
    """Return the features to solve a model in, and what it learned in these.

    They are the exact kernel between the samples and names of a small model (`klda.engine.sizes`),
    else the model's own. All later steps are the same. Names that the last solve had are not lifted
    again.
    """
    rows, name_rows = model.rows, model.name_rows
    can_use_kernel = parameters.rule != "lda" and isinstance(model.map, FourierMap)
    size = len(rows or ()) + len(name_rows)
    if can_use_kernel and model.is_small and 0 < size <= sizes.EXACT_KERNEL_SIZE:
        return _in_exact_kernel(model, parameters.last_block)
    if last is not None and last.solution.map is model.map and last.name_rows is name_rows:
        names = last.names
    else:
        names = model.map.lift(name_rows.values) if len(name_rows) else model.statistics.means[:0]
    return model.map, model.statistics, names, None


def _in_exact_kernel(model: Model, last_block: int) -> InFeatures:
    """Return the exact kernel between the samples and names of a model, and both in it."""
    rows, name_rows = model.rows, model.name_rows
    assert rows is not None
    assert isinstance(model.map, FourierMap)
    # With few samples of a class, what the earlier blocks say is noise more than signal.
    usual = len(rows) / max(len(rows.counts), 1)
    weight = min(1.0, WEIGHT_OF_ONE * float(np.sqrt(usual)))
    scales = np.where(np.arange(model.n_features) < last_block, weight, 1.0)
    both = np.concatenate([some.values for some in (rows, name_rows) if len(some)])
    kernel_map, lifted = KernelMap.of(both, model.map.gamma, scales, model.backend)
    backend = kernel_map.backend
    statistics = ClassStatistics.empty(kernel_map.n_components, backend)
    if len(rows):
        classes, groups = group_labels(np.array(rows.labels.tolist()))
        by_class = lifted[backend.index(np.argsort(groups, kind="stable"))]
        statistics = statistics.change([(by_class, np.bincount(groups), classes)], 1)
    return kernel_map, statistics, lifted[len(rows) :], lifted[: len(rows)]
