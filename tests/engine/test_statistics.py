from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klda.engine.arrays import NumpyBackend
from klda.engine.statistics import ClassStatistics
from tests import reference

TOLERANCE = {"float32": 1e-4, "float64": 1e-10}


def learn(statistics, Z, y, sign=1):
    labels, counts = np.unique(y, return_counts=True)
    rows = statistics.backend.asarray(Z)[np.argsort(y, kind="stable")]
    return statistics.change([(rows, counts, labels.tolist())], sign)


def fresh(dtype, D=24):
    return ClassStatistics.empty(D, NumpyBackend(dtype))


def samples(n, D=24, m=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)) + 3 * rng.normal(size=D), rng.integers(0, m, n)


def assert_equal_statistics(statistics, Z, y, tolerance):
    labels, counts, means, scatter = reference.statistics(Z, y)
    assert sorted(statistics.labels) == labels.tolist()
    order = statistics.locate(labels.tolist())
    assert statistics.counts[order].tolist() == counts.tolist()
    assert reference.relative_error(statistics.means[order], means) < tolerance
    dense = statistics.scatter.matrix()
    if np.abs(scatter).max() == 0:
        assert np.abs(dense).max() == 0
    else:
        assert reference.relative_error(dense, scatter) < tolerance
    assert statistics.n_scattered == len(y)


@st.composite
def batchings(draw):
    n = draw(st.integers(2, 60))
    cuts = sorted(draw(st.sets(st.integers(1, n - 1), max_size=6)))
    return n, cuts, draw(st.integers(0, 10_000))


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(batching=batchings())
@settings(max_examples=40, deadline=None)
def test_any_order_and_batching_gives_the_one_shot_statistics(dtype, batching):
    n, cuts, seed = batching
    Z, y = samples(n, seed=seed)
    order = np.random.default_rng(seed).permutation(n)
    statistics = fresh(dtype)
    for part in np.split(order, cuts):
        statistics = learn(statistics, Z[part], y[part])
    assert_equal_statistics(statistics, Z, y, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(batching=batchings())
@settings(max_examples=40, deadline=None)
def test_removing_undoes_learning(dtype, batching):
    n, _, seed = batching
    Z, y = samples(n, seed=seed)
    rng = np.random.default_rng(seed)
    gone = rng.random(n) < 0.5
    gone[rng.integers(n)] = False
    statistics = fresh(dtype)
    statistics = learn(statistics, Z, y)
    if gone.any():
        statistics = learn(statistics, Z[gone], y[gone], sign=-1)
    assert_equal_statistics(statistics, Z[~gone], y[~gone], 10 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(batching=batchings())
@settings(max_examples=40, deadline=None)
def test_merging_equals_learning_both(dtype, batching):
    n, _, seed = batching
    Z, y = samples(n, seed=seed)
    split = np.random.default_rng(seed).random(n) < 0.5
    one, other = fresh(dtype), fresh(dtype)
    if split.any():
        one = learn(one, Z[split], y[split])
    if not split.all():
        other = learn(other, Z[~split], y[~split])
    assert_equal_statistics(one.merge(other), Z, y, TOLERANCE[dtype])


def test_one_sample_per_class_leaves_no_rounding_in_the_scatter():
    Z, _ = samples(10)
    statistics = fresh("float32")
    statistics = learn(statistics, Z, np.arange(10))
    assert statistics.scatter.trace == 0
    statistics = learn(statistics, Z + 1, np.arange(10))
    statistics = learn(statistics, Z + 1, np.arange(10), sign=-1)
    assert statistics.scatter.trace == 0


def test_dropping_a_class_keeps_its_trace_in_the_scatter():
    Z, y = samples(40, D=100)
    statistics = fresh("float64", D=100)
    statistics = learn(statistics, Z, y)
    before = statistics.scatter.matrix()
    statistics = statistics.drop([2])
    assert 2 not in statistics.labels
    assert statistics.n_scattered == 40
    np.testing.assert_array_equal(statistics.scatter.matrix(), before)
    statistics = learn(statistics, Z[:5] + 1, np.full(5, 2))
    assert statistics.counts[statistics.positions[2]] == 5
