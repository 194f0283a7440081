"""Means of rare classes, and class priors."""

from __future__ import annotations

import numpy as np
import pytest

from klda.engine.engine import Engine
from klda.engine.means import ClassMeans, log_priors, mix_means
from klda.engine.parameters import Parameters
from tests import reference
from tests.reference import DEVICE


def relative_means(m=12, d=40, seed=0):
    means = np.random.default_rng(seed).normal(size=(m, d))
    return means - means.mean(axis=0)


def mix(means, counts, d_out=4.0, inflation=1.6):
    labels = tuple(range(len(means)))
    classes = ClassMeans(labels, counts, counts, means, means, means, means)
    return mix_means(means @ means.T, classes, d_out, inflation)


def dense(mixing):
    return mixing.apply(np.eye(len(mixing.correction))).T


def test_estimated_means_are_those_of_one_ridge_regression_per_class():
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
    estimated = dense(mix(relative, counts, d_out=200.0)) @ relative + noisy.mean(axis=0)
    error, plain = ((estimated - truth) ** 2).sum(1), ((noisy - truth) ** 2).sum(1)
    assert error[0] < 0.5 * plain[0]
    assert error[1:].mean() < 2 * plain[1:].mean()


def test_large_classes_keep_their_means_and_get_the_full_correction():
    means, counts = relative_means(), np.array([2, *[25] * 6, *[26] * 5])
    mixing = mix(means, counts)
    plain = counts > counts.mean()
    assert plain.sum() == 11
    np.testing.assert_array_equal(dense(mixing)[plain], np.eye(12)[plain])
    np.testing.assert_allclose(mixing.correction[plain], 0.5 * 4.0 / counts[plain])
    assert mixing.correction[0] < 0.5 * 4.0 / 2


def test_a_slightly_smaller_class_hardly_changes_the_means():
    means, counts = relative_means(), np.full(12, 10_000)
    counts[3] = 9_999
    mixing = mix(means, counts)
    np.testing.assert_allclose(dense(mixing) @ means, means, atol=1e-4)
    np.testing.assert_allclose(mixing.correction, 0.5 * 4.0 / counts, rtol=1e-2)


def test_one_class_or_no_noise_keeps_the_plain_means():
    for mixing in (mix(np.zeros((1, 4)), np.array([3])), mix(relative_means(1), np.array([5]))):
        np.testing.assert_array_equal(dense(mixing), [[1.0]])
    mixing = mix(relative_means(3), np.ones(3), d_out=0.0)
    np.testing.assert_array_equal(dense(mixing), np.eye(3))
    np.testing.assert_array_equal(mixing.correction, 0)


def test_equal_counts_give_equal_priors_even_beside_one_new_class():
    assert log_priors(np.full(7, 30)) == pytest.approx(-np.log(7))
    priors = np.exp(log_priors(np.array([70] * 149 + [1])))
    assert priors[-1] > 0.9 * priors[0]
    assert priors.sum() == pytest.approx(1)


def test_priors_estimate_those_that_a_dirichlet_distribution_drew():
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


def test_classes_without_names_lean_on_the_others_even_beside_a_declared_one():
    X, y = reference.blobs(400, 8, 6, spread=1.0)
    keep = (y > 1) | (np.arange(400) < 40)  # classes 0 and 1 are rare
    chosen = Parameters(n_components=64, gamma=0.05, device=DEVICE)
    engine = Engine(chosen)
    engine.add(X[keep].astype("f4"), y[keep].tolist())
    assert (engine.solved_rule().mixing.ridges > 0)[:2].all()
    before = engine.solution().scores(X)
    engine.set_name_rows(X[:1].astype("f4"), [9])
    assert (engine.solved_rule().mixing.ridges > 0)[:2].all()
    answers = engine.solution().scores(X)[:, :6].argmax(axis=1)
    assert (answers == before.argmax(axis=1)).mean() > 0.9
