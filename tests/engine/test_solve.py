"""Scores equal a dense one-shot computation, by random features and by the exact kernel."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from klda import KLDA, LDA
from klda.engine import leave_one_out as left_out
from klda.engine import solve as solving
from klda.engine.engine import Engine
from klda.engine.feature_map import KernelMap
from klda.engine.parameters import Parameters
from tests import reference
from tests.reference import DEVICE

TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


def parameters(**given):
    base = {"n_components": 48, "gamma": 0.05, "ridge": 1e-2, "device": DEVICE, "rule": "lda"}
    return Parameters(**(base | {"dtype": "float64", "priors": "uniform"} | given))


def learned(X, y, chosen):
    engine = Engine()
    engine.add(np.asarray(X, chosen.dtype), np.asarray(y).tolist(), parameters=chosen)
    return engine


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("n", [30, 200])
def test_scores_equal_a_dense_solve(n, dtype, correct):
    X, y = reference.blobs(n, 6, 5)
    y[y == 4] = np.where(np.arange((y == 4).sum()) < 2, 4, 3)  # a rare class
    chosen = parameters(dtype=dtype, small_sample_correction=correct)
    engine = learned(X, y, chosen)
    Z = reference.lifted(engine.model.map, X)
    expected = reference.scores(Z, Z, y, ridge=1e-2, correct=correct)
    assert reference.relative_error(engine.solution(chosen).scores(X), expected) < TOLERANCE[dtype]


def test_the_exact_kernel_is_what_many_random_features_come_to():
    X, y = reference.blobs(60, 6, 4)
    kernel = parameters(rule="auto", ridge="auto", n_components=400)
    exact = learned(X, y, kernel)
    solution = exact.solution(kernel)
    assert isinstance(solution.map, KernelMap)
    test = reference.blobs(40, 6, 4, seed=1)[0]
    errors = []
    for size in (200, 20_000):
        chosen = parameters(rule="lda", n_components=size, ridge="auto")
        many = learned(X, y, chosen).solution(chosen).scores(test)
        same = solution.distance  # LDA's part alone
        linear = solution.scores(test) - same.offsets
        of_lda = linear @ same.unblend + same.offsets if len(same.unblend) else linear
        errors.append(np.abs(_centred(of_lda) - _centred(many)).max())
    assert errors[1] < 0.25 * errors[0]


def _centred(scores):
    return scores - scores.mean(axis=1, keepdims=True)


def test_kernel_features_have_the_kernel_for_inner_products():
    X = np.random.default_rng(0).normal(size=(30, 5))
    X = np.concatenate([X, X[:4]])  # equal rows span nothing new
    backend = learned(X, np.arange(34) % 3, parameters()).model.backend
    own_map, Z = KernelMap.of(X, 0.1, np.ones(5), backend)
    Z = own_map.backend.to_numpy(Z)
    assert Z.shape == (34, 30)
    exact = np.exp(-0.1 * ((X[:, None] - X) ** 2).sum(-1))
    H = np.eye(34) - 1 / 34
    np.testing.assert_allclose(H @ Z @ Z.T @ H, H @ exact @ H, atol=1e-12)
    np.testing.assert_allclose(own_map.backend.to_numpy(own_map.lift(X)), Z, atol=1e-8)


@pytest.mark.parametrize("rule", ["lda", "auto"])
def test_small_changes_give_what_a_fresh_solve_gives_without_a_factorisation(rule, monkeypatch):
    X, y = reference.blobs(700, 8, 5)
    chosen = parameters(n_components=400, rule=rule)
    engine = learned(X[:600], y[:600], chosen)
    engine.solution(chosen)
    made = []
    factorise = type(engine.model.backend).factorise
    monkeypatch.setattr(
        type(engine.model.backend), "factorise", lambda *a: made.append(1) or factorise(*a)
    )
    for i in range(600, 640):
        engine.add(X[i : i + 1], [int(y[i])], parameters=chosen)
        engine.solution(chosen)
    assert not made
    engine.add(X[640:650], [9] * 10, parameters=chosen)
    engine.remove(X[600:605], y[600:605].tolist())
    engine.drop(0)
    found = engine.solution(chosen).scores(X[:20])
    fresh = engine.copy()
    fresh._factored = fresh._solved = fresh._solution = None
    assert reference.relative_error(found, fresh.solution(chosen).scores(X[:20])) < 1e-9


def test_a_failed_factorisation_raises_the_ridge_and_says_so(monkeypatch):
    X, y = reference.blobs(120, 6, 3)
    chosen = parameters()
    engine = learned(X, y, chosen)
    backend, calls = type(engine.model.backend), []
    factorise = backend.factorise

    def failing(self, square, rho):
        calls.append(rho)
        return None if len(calls) == 1 else factorise(self, square, rho)

    monkeypatch.setattr(backend, "factorise", failing)
    with pytest.warns(solving.RidgeRaisedWarning, match="120 samples"):
        engine.solution(chosen)
    assert calls[1] == pytest.approx(10 * calls[0])


def test_samples_left_out_score_as_if_never_learned():
    X, y = reference.blobs(150, 6, 4)
    chosen = parameters(small_sample_correction=False)
    engine = learned(X, y, chosen)
    engine.solution(chosen)
    Z, solved = reference.lifted(engine.model.map, X), engine._solved
    _, ours, _ = left_out.leave_one_out(solved, engine.model.map.lift(X[:20]), y[:20].tolist())
    rho, g = solved.factored.inverse.rho, reference.statistics(Z, y)[2].mean(axis=0)
    for i in range(20):
        rest = np.arange(150) != i
        _, _, means, scatter = reference.statistics(Z[rest], y[rest])
        linear = 150 * (Z[i] - g) @ np.linalg.solve(scatter + rho * np.eye(48), (means - g).T)
        # The rule's constants stay: a new input meets them as they are.
        np.testing.assert_allclose(ours[i], linear + solved.terms.offsets, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("few", [True, False])
def test_samples_left_out_follow_fresh_models_with_estimated_means_too(few):
    X, y = reference.blobs(120 if few else 700, 8, 6, spread=2.0)
    chosen = parameters(rule="auto", n_components=64 if not few else 400)
    engine = learned(X, y, chosen)
    solution = engine.solution(chosen)
    at = np.arange(0, len(X), 5 if few else 29)
    lifted = solution.map.lift(X[at])
    _, ours, _ = left_out.leave_one_out(engine._solved, lifted, y[at].tolist())
    fresh = [
        learned(np.delete(X, i, 0), np.delete(y, i), chosen).solution(chosen).scores(X[i : i + 1])
        for i in at
    ]
    same = ours.argmax(axis=1) == np.concatenate(fresh).argmax(axis=1)
    assert same.mean() >= 0.95


def test_novelty_is_the_relative_mahalanobis_distance():
    X, y = reference.blobs(200, 6, 5)
    test = np.random.default_rng(1).normal(size=(30, 6)) * 3
    found = []
    for rule in ("lda", "auto"):
        chosen = parameters(n_components=64, small_sample_correction=False, rule=rule)
        engine = learned(np.tile(X, (3, 1)), np.tile(y, 3), chosen)
        found.append(engine.solution(chosen).novelty(test))
    Z, z = (reference.lifted(engine.model.map, part) for part in (np.tile(X, (3, 1)), test))
    _, counts, means, scatter = reference.statistics(Z, np.tile(y, 3))
    within = (scatter + engine.solution(chosen).rho * np.eye(64)) / 600
    centre = counts @ means / 600
    spread = (means - centre) * np.sqrt(counts / 600)[:, None]
    P, P0 = np.linalg.inv(within), np.linalg.inv(within + spread.T @ spread)
    nearest = np.min([np.einsum("nd,de,ne->n", z - m, P, z - m) for m in means], axis=0)
    overall = np.einsum("nd,de,ne->n", z - centre, P0, z - centre)
    for novelty in found:
        np.testing.assert_allclose(novelty, nearest - overall, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("offset", [0.0, 1e5, 1e6])
def test_an_offset_that_all_features_share_costs_lda_no_digits(offset):
    X, y = reference.blobs(400, 6, 4, spread=0.3)
    X, offset = X * 64, np.float32(offset)  # float32 keeps the differences
    plain, shifted = (LDA().fit(X[:300] + o, y[:300]) for o in (0, offset))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (shifted.predict(X[300:] + offset) == plain.predict(X[300:])).mean() > 0.97


def test_equal_samples_and_single_samples_give_no_nan():
    for X, y in [
        (np.ones((6, 4)), ["a", "a", "a", "b", "b", "b"]),
        (np.ones((1, 4)), ["a"]),
        (np.eye(4), list("abcd")),
    ]:
        for kind in (KLDA(n_components=32, random_state=0), LDA()):
            model = kind.fit(X, y)
            assert np.isfinite(model.predict_proba(X)).all()
            assert np.isfinite(model.novelty(X)).all()
