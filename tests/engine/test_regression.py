"""Regression onto the classes, added to LDA's scores."""

import numpy as np
import pytest

from klda import KLDA
from klda.engine.rule import inverted, lda_part
from tests import reference


def make(**parameters):
    options = {"n_components": 64, "gamma": 0.05, "ridge": 1e-2, "random_state": 0}
    return KLDA(**options | {"dtype": "float64", "device": "cpu"} | parameters)


def regression_scores(Z, X_lifted, y, rho):
    """Outputs of ridge regression onto one-hot targets, from the normal equations.

    Classes count by the square roots of their sizes.
    """
    _, counts, means, scatter = reference.statistics(X_lifted, y)
    centre = means.mean(axis=0)
    counts = counts.sum() * np.sqrt(counts) / np.sqrt(counts).sum()
    total = scatter + (means - centre).T @ (counts[:, None] * (means - centre))
    system = total + rho * np.eye(len(total))
    weights = np.linalg.solve(system, (counts[:, None] * (means - centre)).T)
    at_means = np.diag((means - centre) @ weights).mean()
    return (Z - centre) @ weights / at_means, means - centre, scatter


def test_blended_scores_are_those_of_lda_plus_those_of_ridge_regression():
    X, y = reference.blobs(400, 6, 5)
    options = {"small_sample_correction": False, "priors": "uniform"}
    lda, both = (make(rule=rule, **options).fit(X, y) for rule in ("lda", "auto"))
    rho = both.solution_.rules[0].rho
    lift = lambda A: reference.lifted(both.model_.members[0], A)  # noqa: E731
    extra, means, scatter = regression_scores(lift(X[:50]), lift(X), y, rho)
    precision = 400 * np.linalg.inv(scatter + rho * np.eye(64))
    length = np.median(np.einsum("md,de,me->m", means, precision, means))
    expected = lda.scores(X[:50]) + length / lda_part(np.bincount(y)) * extra
    np.testing.assert_allclose(both.scores(X[:50]), expected, rtol=1e-6, atol=1e-6)


def test_novelty_does_not_depend_on_the_rule():
    X, y = reference.blobs(300, 6, 5)
    lda, both = (make(rule=rule).fit(X, y) for rule in ("lda", "auto"))
    strange = np.random.default_rng(0).normal(size=(40, 6)) * 3
    np.testing.assert_allclose(both.novelty(strange), lda.novelty(strange), rtol=1e-6)


def test_regression_fades_with_few_samples():
    few, many = lda_part(np.full(5, 2)), lda_part(np.full(5, 200))
    assert few == lda_part(np.full(5, 5)) > 20 * many > 30


@pytest.mark.parametrize("kind", ["auto", "lda"])
def test_rare_classes_are_found_among_full_ones(kind):
    X, y = reference.blobs(2000, 10, 20, spread=1.0)
    rare = y < 4
    kept = np.concatenate([np.flatnonzero(~rare), *(np.flatnonzero(y == m)[:3] for m in range(4))])
    test_X, test_y = reference.blobs(1000, 10, 20, spread=1.0)
    model = make(rule=kind, n_components=256, ridge="auto").fit(X[kept], y[kept])
    chosen = test_y < 4
    found = (model.predict(test_X[chosen]) == test_y[chosen]).mean()
    plain = make(rule="lda", n_components=256, ridge="auto", small_sample_correction=False)
    without = (plain.fit(X[kept], y[kept]).predict(test_X[chosen]) == test_y[chosen]).mean()
    assert found >= without


def test_a_singular_matrix_has_a_pseudo_inverse():
    matrix = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 4.0]])
    np.testing.assert_allclose(matrix @ inverted(matrix) @ matrix, matrix, atol=1e-12)
    steep = np.diag([1e-30, 1.0, 1e30])
    np.testing.assert_allclose(inverted(steep), np.diag([1e30, 1.0, 1e-30]))
