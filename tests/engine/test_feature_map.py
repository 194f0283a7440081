from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from klda.engine.arrays import NumpyBackend
from klda.engine.feature_map import (
    RANDOM_FEATURES,
    Draw,
    FourierMap,
    median_squared_distance,
    unpack_map,
)


def kernel_errors(kind, D, gamma=0.3, seed=0, n=60, d=12):
    rng = np.random.default_rng(7)
    X = rng.normal(size=(n, d)) * rng.uniform(0.1, 1.0, size=(n, 1))
    features = FourierMap(NumpyBackend("float64"), d, D, gamma, Draw(kind, seed))
    Z = features.lift(X)
    exact = np.exp(-gamma * ((X[:, None] - X[None]) ** 2).sum(-1))
    return (Z @ Z.T - exact)[np.triu_indices(n, 1)]


@pytest.mark.parametrize("kind", RANDOM_FEATURES)
def test_features_approximate_the_rbf_kernel(kind):
    # Bias, mean error and largest error are bounded apart: a missing factor of 2 in the
    # bandwidth would pass a loose bound on any one of them.
    D = 4000
    errors = np.concatenate([kernel_errors(kind, D, seed=seed) for seed in range(5)])
    assert abs(errors.mean()) < 0.01
    assert np.abs(errors).mean() < 1.2 / np.sqrt(D)
    assert np.abs(errors).max() < 6 / np.sqrt(D)


def test_error_falls_with_the_root_of_the_number_of_features():
    few = np.abs(kernel_errors("gaussian", 250)).mean()
    many = np.abs(kernel_errors("gaussian", 16000)).mean()
    assert 5 < few / many < 12  # sqrt(64) = 8


def test_orthogonal_directions_are_orthogonal_with_gaussian_lengths():
    d, D = 40, 4000
    features = FourierMap(NumpyBackend("float64"), d, D, 0.5, Draw("orthogonal", 0))
    directions = features.spectrum[0]
    block = directions[:, :d].T @ directions[:, :d]
    assert np.abs(block - np.diag(np.diag(block))).max() < 1e-10
    squared_lengths = (directions**2).sum(0)
    # Chi-squared with d degrees of freedom, of excess kurtosis 12 / d: 4.5 standard deviations.
    assert squared_lengths.mean() == pytest.approx(d, rel=4.5 * np.sqrt(2 / (d * D)))
    assert squared_lengths.var() == pytest.approx(2 * d, rel=4.5 * np.sqrt((2 + 12 / d) / D))


@pytest.mark.parametrize("scale, offset", [(1e-3, 0), (1.0, 0), (1e3, 0), (1.0, 1e6)])
def test_median_distance_follows_the_scale_and_no_offset(scale, offset):
    X = np.random.default_rng(0).normal(size=(3000, 8))
    found = median_squared_distance(scale * X + offset)
    # Between two samples: twice a chi-squared number. Every eighth of 1,000 is compared with all:
    # its own squared length, 8 with a deviation of 4, moves its distances, which are about 16.
    deviation = 4 / 16 / np.sqrt(125)
    assert found == pytest.approx(scale**2 * 2 * chi2.median(8), rel=3 * deviation)


def test_median_distance_of_equal_samples_is_their_squared_length():
    assert median_squared_distance(np.full((5, 4), 3.0)) == pytest.approx(36.0)
    assert median_squared_distance(np.ones((1, 4))) == pytest.approx(4.0)
    assert median_squared_distance(np.zeros((3, 4))) == 1.0


def test_median_distance_of_many_samples_is_that_of_all_pairs():
    X = np.random.default_rng(0).normal(size=(1000, 20)) * np.linspace(0.5, 2, 20)
    squared = ((X[:, None] - X[None]) ** 2).sum(-1)[np.triu_indices(1000, 1)]
    assert median_squared_distance(X) == pytest.approx(np.median(squared), rel=0.02)
    few = X[:100]
    squared = ((few[:, None] - few[None]) ** 2).sum(-1)[np.triu_indices(100, 1)]
    assert median_squared_distance(few) == pytest.approx(np.median(squared), rel=1e-12)


def test_random_features_are_stored_only_if_they_were_used():
    backend = NumpyBackend("float64")
    drawn = FourierMap(backend, 8, 60, 0.1, Draw("gaussian", 3))
    arrays, meta = drawn.pack()
    assert not arrays
    again = unpack_map(arrays, meta, 8, backend)
    np.testing.assert_array_equal(again.spectrum[0], drawn.spectrum[0])
    assert sorted(drawn.pack()[0]) == ["frequencies", "phases"]
    assert unpack_map(*drawn.pack(), 8, backend).same_as(again)


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "other"}, {"n_components": 0}, {"n_components": 2.5}, {"key": 0.5}, {"key": -1}],
)
def test_an_impossible_draw_is_refused(wrong):
    backend = NumpyBackend("float64")
    drawn = FourierMap(backend, 8, 60, 0.1, Draw("gaussian", 3))
    _, meta = drawn.pack()
    assert unpack_map({}, meta, 8, backend).same_as(drawn)
    with pytest.raises(ValueError, match="can't be drawn"):
        unpack_map({}, meta | {"draw": meta["draw"] | wrong}, 8, backend)
