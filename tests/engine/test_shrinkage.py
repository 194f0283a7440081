from __future__ import annotations

import numpy as np
import pytest

from klda.engine.shrinkage import log_priors, mix_means


def relative_means(m=12, d=40, seed=0):
    means = np.random.default_rng(seed).normal(size=(m, d))
    return means - means.mean(axis=0)


def mix(means, counts, spread=4.0, inflation=1.6):
    return mix_means(means @ means.T, counts, spread, inflation)


def dense(mixing):
    return mixing.apply(np.eye(len(mixing.correction))).T


def test_predictions_are_those_of_a_ridge_regression_solved_class_by_class():
    means, counts = relative_means(), np.arange(30, 18, -1)
    ridges = 12 * 1.6 * (1 / counts - 1 / counts.mean())
    estimated = dense(mix(means, counts)) @ means
    for m in range(6, 12):  # the other half has more samples than the average
        others = np.array([a for a in range(12) if a != m])
        system = means[others] @ means[others].T + ridges[m] * np.eye(len(others))
        expected = np.linalg.solve(system, means[others] @ means[m]) @ means[others]
        np.testing.assert_allclose(estimated[m], expected, atol=1e-9)


def test_estimates_follow_when_a_plain_mean_moves():
    means, counts = relative_means(), np.arange(1, 13)
    F, moved = dense(mix(means, counts)), means.copy()
    moved[4] += 0.3
    centre = moved.mean(axis=0)
    np.testing.assert_allclose(F @ moved, F @ (moved - centre) + centre)


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


def test_classes_as_large_as_most_keep_their_means_and_all_noise_is_made_up_for():
    means, counts = relative_means(), np.array([2, *[25] * 6, *[26] * 5])
    mixing = mix(means, counts)
    plain = counts > counts.mean()
    assert plain.sum() == 11
    np.testing.assert_array_equal(dense(mixing)[plain], np.eye(12)[plain])
    np.testing.assert_allclose(mixing.correction[plain], 0.5 * 4.0 / counts[plain])
    assert mixing.correction[0] < 0.5 * 4.0 / 2


def test_the_means_change_little_where_a_class_is_a_little_smaller_than_most():
    means, counts = relative_means(), np.full(12, 10_000)
    counts[3] = 9_999
    mixing = mix(means, counts)
    np.testing.assert_allclose(dense(mixing) @ means, means, atol=1e-4)
    np.testing.assert_allclose(mixing.correction, 0.5 * 4.0 / counts, rtol=1e-2)


def test_one_class_or_no_spread_keeps_the_plain_means():
    for mixing in (mix(np.zeros((1, 4)), np.array([3])), mix(relative_means(1), np.array([5]))):
        np.testing.assert_array_equal(dense(mixing), [[1.0]])
    mixing = mix(relative_means(3), np.ones(3), spread=0.0)
    np.testing.assert_array_equal(dense(mixing), np.eye(3))
    np.testing.assert_array_equal(mixing.correction, 0)


def test_priors_of_even_counts_are_even_and_one_new_class_is_not_taken_for_rare():
    assert log_priors(np.full(7, 30)) == pytest.approx(-np.log(7))
    priors = np.exp(log_priors(np.array([70] * 149 + [1])))
    assert priors[-1] > 0.9 * priors[0]
    assert priors.sum() == pytest.approx(1)


def test_priors_of_counts_from_a_dirichlet_distribution_are_near_the_true_ones():
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.full(200, 0.8))
    counts = rng.multinomial(4000, true)
    priors = np.exp(log_priors(counts))
    assert priors.sum() == pytest.approx(1)
    assert np.corrcoef(priors, true)[0, 1] > 0.98
    # No class is ruled out, and log-loss is lower than that of even priors by most of what can be.
    gain = true @ np.log(priors * 200)
    assert gain > 0.8 * (true @ np.log(true * 200))


@pytest.mark.parametrize("counts", [[5], [1, 1], [1000, 1], [0, 3]])
def test_priors_are_finite(counts):
    assert np.isfinite(log_priors(np.array(counts))).all()
