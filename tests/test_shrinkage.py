from __future__ import annotations

import numpy as np
import pytest

from klda import shrinkage


def relative_means(m=12, d=40, seed=0):
    means = np.random.default_rng(seed).normal(size=(m, d))
    return means - means.mean(axis=0)


def mix(means, counts, **options):
    return mix_all(means, counts, **options)[0]


def mix_all(means, counts, **options):
    """The anchors first, then the other classes in blocks of two; also all squared lengths."""
    settings = {"spread": 4.0, "inflation": 1.6} | options
    anchors, lengths, squares = shrinkage.choose_anchors(counts), (means**2).sum(1), counts * 0.0
    inner = means[anchors] @ means[anchors].T
    made = shrinkage.Shrinkage(inner, anchors, counts, **settings)
    _, _, squares[anchors] = made.mix_anchors(lengths[anchors])
    turned = means @ (made.basis.T @ means[anchors]).T
    others = np.setdiff1d(np.arange(len(means)), anchors)
    for block in np.split(others, range(2, len(others), 2)):
        _, _, squares[block] = made.mix_others(block, turned[block], lengths[block])
    return made.mixing, squares


def dense(mixing):
    return mixing.apply(np.eye(len(mixing.kept))).T


@pytest.mark.parametrize("n_anchors", [12, 7])
def test_predictions_are_those_of_a_ridge_regression_solved_class_by_class(n_anchors, monkeypatch):
    monkeypatch.setattr(shrinkage, "MOST_ANCHORS", n_anchors)
    means, counts = relative_means(), np.arange(30, 18, -1)
    anchors = shrinkage.choose_anchors(counts)
    assert anchors.tolist() == list(range(n_anchors))
    ridges = (
        n_anchors * 1.6 / counts
    )  # A v / n, where v is the inflation, at most 1.75 (v - 1) of it
    weights = mix(means, counts).combination
    for m in range(12):
        others = np.array([a for a in anchors if a != m])
        system = means[others] @ means[others].T + ridges[m] * np.eye(len(others))
        expected = np.zeros(n_anchors)
        expected[others] = np.linalg.solve(system, means[others] @ means[m])
        tolerance = 1e-9 if n_anchors == 12 else 1e-6  # in single precision
        np.testing.assert_allclose(weights[m], expected, atol=tolerance)


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
    mixing, squares = mix_all(means, counts)
    F = dense(mixing)
    np.testing.assert_allclose(squares, np.diag(F @ means @ means.T @ F.T), rtol=1e-5)
    np.testing.assert_allclose(mixing.column(np.array([3, 0, 3])), F[:, [3, 0, 3]].T)


def test_one_class_or_no_spread_keeps_the_plain_means():
    for mixing in (mix(np.zeros((1, 4)), np.array([3])), mix(relative_means(1), np.array([5]))):
        np.testing.assert_array_equal(dense(mixing), [[1.0]])
    mixing = mix(relative_means(3), np.ones(3), spread=0.0)
    np.testing.assert_array_equal(dense(mixing), np.eye(3))
    np.testing.assert_array_equal(mixing.correction, 0)
