from __future__ import annotations

import numpy as np
import pytest

from klda import shrinkage


def means(m=12, d=40, seed=0):
    return np.random.default_rng(seed).normal(size=(m, d))


def dense(mixing):
    return mixing.apply(np.eye(len(mixing.own))).T


@pytest.mark.parametrize("n_anchors", [12, 7])
def test_predictions_are_those_of_a_bordered_ridge_system_solved_class_by_class(
    n_anchors, monkeypatch
):
    monkeypatch.setattr(shrinkage, "MOST_ANCHORS", n_anchors)
    A = means()
    counts = np.arange(30, 18, -1)
    anchors = shrinkage.choose_anchors(counts)
    assert anchors.tolist() == list(range(n_anchors))
    gram = A @ A[anchors].T
    ridges = 3.0 / counts
    weights = shrinkage._affine_predictions(gram, anchors, ridges)
    for m in range(12):
        others = np.array([a for a in anchors if a != m])
        k = len(others)
        system = np.zeros((k + 1, k + 1))
        system[:k, :k] = A[others] @ A[others].T + ridges[m] * np.eye(k)
        system[:k, k] = system[k, :k] = 1
        expected = np.zeros(n_anchors)
        expected[others] = np.linalg.solve(system, np.append(A[others] @ A[m], 1))[:k]
        np.testing.assert_allclose(weights[m], expected, atol=1e-9)


def test_weights_sum_to_one_so_that_a_shift_of_all_means_changes_nothing():
    A, counts = means(), np.full(12, 10)
    results = []
    for shift in (0.0, 5.0):
        B = A + shift
        anchors = shrinkage.choose_anchors(counts)
        mixing = shrinkage.mix(B @ B.T, (B**2).sum(1), counts, anchors, spread=4.0, inflation=1.0)
        results.append(dense(mixing))
        np.testing.assert_allclose(dense(mixing).sum(1), 1)
    np.testing.assert_allclose(*results, atol=1e-8)


def test_a_rare_class_leans_on_the_others_and_a_large_one_stands_on_its_own():
    rng = np.random.default_rng(0)
    basis = rng.normal(size=(4, 200))
    truth = rng.normal(size=(30, 4)) @ basis * 3
    counts = np.array([1] + [1000] * 29)
    noisy = truth + rng.normal(size=truth.shape) / np.sqrt(counts)[:, None]
    anchors = shrinkage.choose_anchors(counts)
    mixing = shrinkage.mix(
        noisy @ noisy.T, (noisy**2).sum(1), counts, anchors, spread=200.0, inflation=1.0
    )
    estimated = dense(mixing) @ noisy
    error = ((estimated - truth) ** 2).sum(1)
    plain = ((noisy - truth) ** 2).sum(1)
    assert error[0] < 0.2 * plain[0]
    assert error[1:].mean() < 1.5 * plain[1:].mean()


def test_many_samples_leave_the_means_as_they_are():
    A = means(m=6, d=300)
    counts = np.full(6, 10**7)
    mixing = shrinkage.mix(
        A @ A.T, (A**2).sum(1), counts, np.arange(6), spread=300.0, inflation=1.0
    )
    np.testing.assert_allclose(dense(mixing), np.eye(6), atol=1e-3)


def test_squares_and_columns_are_those_of_the_dense_matrix():
    A, counts = means(), np.arange(1, 13)
    anchors = shrinkage.choose_anchors(counts)
    gram, lengths = A @ A.T, (A**2).sum(1)
    mixing = shrinkage.mix(gram, lengths, counts, anchors, spread=4.0, inflation=1.0)
    F = dense(mixing)
    np.testing.assert_allclose(mixing.squares(gram, lengths), np.diag(F @ gram @ F.T))
    np.testing.assert_allclose(mixing.column(np.array([3, 0, 3])), F[:, [3, 0, 3]].T)


def test_one_class_or_no_spread_keeps_the_plain_means():
    one = shrinkage.mix(
        np.zeros((1, 1)), np.zeros(1), np.array([3]), np.arange(1), spread=5.0, inflation=1.0
    )
    np.testing.assert_array_equal(dense(one), [[1.0]])
    A = means(3)
    none = shrinkage.mix(
        A @ A.T, (A**2).sum(1), np.ones(3), np.arange(3), spread=0.0, inflation=1.0
    )
    np.testing.assert_array_equal(dense(none), np.eye(3))
