from __future__ import annotations

import numpy as np
import pytest

from klda import shrinkage


def relative_means(m=12, d=40, seed=0):
    means = np.random.default_rng(seed).normal(size=(m, d))
    return means - means.mean(axis=0)


def mix(means, counts, **options):
    settings = {"spread": 4.0, "inflation": 1.6} | options
    anchors = shrinkage.choose_anchors(counts)
    gram = means @ means[anchors].T
    return shrinkage.mix(gram, (means**2).sum(1), counts, anchors, **settings)


def dense(mixing):
    return mixing.apply(np.eye(len(mixing.kept))).T


@pytest.mark.parametrize("n_anchors", [12, 7])
def test_predictions_are_those_of_a_ridge_regression_solved_class_by_class(n_anchors, monkeypatch):
    monkeypatch.setattr(shrinkage, "MOST_ANCHORS", n_anchors)
    means, counts = relative_means(), np.arange(30, 18, -1)
    anchors = shrinkage.choose_anchors(counts)
    assert anchors.tolist() == list(range(n_anchors))
    ridges = 3.0 / counts
    gram = means @ means[anchors].T
    weights = shrinkage._predictions(gram, anchors, ridges, *np.linalg.eigh(gram[anchors]))
    for m in range(12):
        others = np.array([a for a in anchors if a != m])
        system = means[others] @ means[others].T + ridges[m] * np.eye(len(others))
        expected = np.zeros(n_anchors)
        expected[others] = np.linalg.solve(system, means[others] @ means[m])
        np.testing.assert_allclose(weights[m], expected, atol=1e-9)


def test_a_rare_class_leans_on_the_others():
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(4, 200))
    truth = rng.normal(size=(30, 4)) @ basis
    counts = np.array([1] + [1000] * 29)
    noisy = truth + rng.normal(size=truth.shape) / np.sqrt(counts)[:, None]
    relative = noisy - noisy.mean(axis=0)
    estimated = dense(mix(relative, counts, spread=200.0)) @ relative + noisy.mean(axis=0)
    error, plain = ((estimated - truth) ** 2).sum(1), ((noisy - truth) ** 2).sum(1)
    assert error[0] < 0.5 * plain[0]
    assert error[1:].mean() < 2 * plain[1:].mean()


@pytest.mark.parametrize(
    "counts, inflation", [(np.full(12, 10**9), 1.6), (np.full(12, 20), 1.0 + 1e-9)]
)
def test_many_samples_or_a_certain_covariance_leave_the_means_as_they_are(counts, inflation):
    means = relative_means()
    mixing = mix(means, counts, inflation=inflation)
    np.testing.assert_allclose(dense(mixing) @ means, means, atol=1e-5)
    assert (mixing.correction <= 0.5 * 4.0 / counts * (1 + 1e-9)).all()
    if inflation < 1.1:  # nothing is shrunk: the whole noise is made up for
        np.testing.assert_allclose(mixing.correction, 0.5 * 4.0 / counts, rtol=1e-4)


@pytest.mark.parametrize("n_anchors", [12, 7])
def test_squares_and_columns_are_those_of_the_dense_matrix(n_anchors, monkeypatch):
    monkeypatch.setattr(shrinkage, "MOST_ANCHORS", n_anchors)
    means, counts = relative_means(), np.arange(1, 13)
    mixing = mix(means, counts)
    anchors, F = shrinkage.choose_anchors(counts), dense(mixing)
    gram, lengths = means @ means.T, (means**2).sum(1)
    squares = mixing.squares(gram[:, anchors], lengths)
    np.testing.assert_allclose(squares, np.diag(F @ gram @ F.T))
    np.testing.assert_allclose(mixing.column(np.array([3, 0, 3])), F[:, [3, 0, 3]].T)


def test_one_class_or_no_spread_keeps_the_plain_means():
    for mixing in (mix(np.zeros((1, 4)), np.array([3])), mix(relative_means(1), np.array([5]))):
        np.testing.assert_array_equal(dense(mixing), [[1.0]])
    mixing = mix(relative_means(3), np.ones(3), spread=0.0)
    np.testing.assert_array_equal(dense(mixing), np.eye(3))
    np.testing.assert_array_equal(mixing.correction, 0)
