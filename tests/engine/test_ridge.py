"""The ridge by generalised cross-validation, from the statistics alone."""

from __future__ import annotations

import numpy as np
import pytest

from klda.classifiers import LDA
from klda.engine import ridge, sizes
from klda.engine.arrays import NumpyBackend
from klda.engine.engine import Engine
from klda.engine.feature_map import Draw, FourierMap
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.ridge import GRID, between_classes
from tests import reference


def statistics_of(X, y, n_components=None, seed=0):
    backend = NumpyBackend("float64")
    size = n_components or 40
    own_map = FourierMap(backend, X.shape[1], size, 0.02, Draw("gaussian", seed))
    return Model.new(own_map).add(X, y.tolist()).statistics, own_map


def choose_r(statistics, *, random_features, last=None):
    between = between_classes(statistics, statistics.means)
    v = (statistics.scatter.trace + between) / statistics.n_scattered
    return ridge.choose_r(statistics, v, random_features=random_features, last=last)


def brute_force(Z, y, rho):
    """N log GCV of ridge regression onto the classes, by its hat matrix; and its trace."""
    n = len(y)
    Y = (y[:, None] == np.unique(y)) - np.bincount(np.unique(y, return_inverse=True)[1]) / n
    Z = Z - Z.mean(axis=0)
    hat = Z @ np.linalg.solve(Z.T @ Z + rho * np.eye(Z.shape[1]), Z.T)
    residual = ((Y - hat @ Y) ** 2).sum()
    freedom = np.trace(hat)
    return n * np.log(residual / n / (1 - (freedom + 1) / n) ** 2), freedom


@pytest.mark.parametrize("spread", [0.5, 4.0])
def test_the_criterion_is_that_of_the_regression_itself(spread):
    X, y = reference.blobs(300, 8, 5, spread=spread)
    statistics, own_map = statistics_of(X, y)
    Z = reference.lifted(own_map, X)
    v = ((Z - Z.mean(axis=0)) ** 2).sum() / len(y)
    expected = {}
    for r in GRID:
        loss, freedom = brute_force(Z, y, r * v)
        if freedom <= ridge.MOST_FREEDOM * len(y):
            expected[float(r)] = loss + ridge.RIDGE_PRIOR * np.log10(r / ridge.USUAL) ** 2
    chosen = choose_r(statistics, random_features=True).r
    assert chosen == min(expected, key=expected.get)


def test_classes_that_overlap_want_a_larger_ridge():
    chosen = []
    for spread in (0.3, 6.0):
        X, y = reference.blobs(600, 8, 5, spread=spread)
        chosen.append(choose_r(statistics_of(X, y)[0], random_features=True).r)
    assert chosen[0] < chosen[1]


def test_a_block_of_features_chooses_the_same_ridge_as_all(monkeypatch):
    X, y = reference.blobs(700, 12, 6, spread=2.0)
    statistics, _ = statistics_of(X, y, n_components=1200)
    by_all = choose_r(statistics, random_features=False).r
    monkeypatch.setattr(sizes, "BLOCK", 300)
    by_block = choose_r(statistics, random_features=True).r
    assert abs(np.log10(by_block / by_all)) <= 0.5  # a step of the grid


@pytest.mark.parametrize("spread", [0.4, 1.0, 4.0])
def test_a_block_judges_ridges_that_are_too_small_for_it(spread):
    X, y = reference.blobs(1000, 60, 6, spread=spread)
    statistics, _ = statistics_of(X, y, n_components=1500)
    by_all = choose_r(statistics, random_features=False).r
    by_block = choose_r(statistics, random_features=True).r  # of 1,000
    assert abs(np.log10(by_block / by_all)) <= 0.5  # a step of the grid


def test_where_nothing_can_be_judged_the_usual_ridge_is_used():
    X, y = reference.blobs(5, 4, 5)
    assert choose_r(statistics_of(X, y)[0], random_features=True).r == ridge.USUAL


def test_a_ridge_is_kept_while_too_little_has_changed_to_move_it(monkeypatch):
    monkeypatch.setattr(sizes, "ALWAYS_JUDGED", 0)
    X, y = reference.blobs(4000, 8, 5, spread=0.5)
    statistics, own_map = statistics_of(X, y)
    choice = choose_r(statistics, random_features=True)
    room = int(choice.holds_until - statistics.n_changes)
    assert room >= 1
    looks = []
    monkeypatch.setattr(ridge, "_block_gcv", lambda *args: looks.append(args))
    grown = Model.new(own_map).add(X, y.tolist()).add(X[:1], y[:1].tolist()).statistics
    assert choose_r(grown, random_features=True, last=choice) is choice
    assert not looks


@pytest.mark.parametrize("label", [0, 9])
def test_an_outlier_makes_the_ridge_be_chosen_again(label, monkeypatch):
    monkeypatch.setattr(sizes, "ALWAYS_JUDGED", 0)
    X, y = reference.blobs(2500, 16, 5, spread=2.0)
    outlier = 1000 * X[:1]
    asked = LDA().partial_fit(X, y)
    asked.predict(X[:1])  # chooses a ridge
    asked.partial_fit(outlier, [label])
    never_asked = LDA().partial_fit(X, y).partial_fit(outlier, [label])
    assert asked.ridge_ == never_asked.ridge_


def test_of_few_features_the_ridge_does_not_depend_on_when_somebody_asked():
    for seed in (16, 26, 32):
        rng = np.random.default_rng(seed)
        centres, y = rng.normal(size=(2, 120)), rng.integers(0, 2, 900)
        asked = LDA().partial_fit(centres[y] + rng.normal(size=(900, 120)), y)
        for _ in range(4):
            true, wrong = rng.integers(0, 2, 2)  # a label by chance moves the criterion most
            asked.partial_fit(centres[[true]] + rng.normal(size=(1, 120)), [wrong])
            assert (
                asked.ridge_
                == Engine(Parameters.of(asked.get_params()), asked.model_).solution().rho
            )
