"""Scores equal a dense one-shot computation, by random features and by the exact kernel."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, LDA
from klda.engine import leave_one_out as left_out
from klda.engine.engine import Engine
from klda.engine.feature_map import KernelMap
from klda.engine.inverse import RidgeRaisedWarning
from klda.engine.novelty import RelativeMahalanobis
from klda.engine.parameters import Parameters
from tests import reference
from tests.reference import DEVICE


def parameters(**given):
    base = {"n_components": 48, "gamma": 0.05, "ridge": 1e-2, "device": DEVICE, "rule": "lda"}
    return Parameters(**(base | {"dtype": "float64", "priors": "uniform"} | given))


def learned(X, y, chosen):
    engine = Engine(chosen)
    engine.add(np.asarray(X, chosen.dtype), np.asarray(y).tolist())
    return engine


@pytest.mark.parametrize("correct", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [30, 200])
def test_scores_equal_a_dense_solve(n, dtype, correct):
    X, y = reference.blobs(n, 6, 5)
    y[y == 4] = np.where(np.arange((y == 4).sum()) < 2, 4, 3)  # a rare class
    chosen = parameters(dtype=dtype, small_sample_correction=correct)
    engine = learned(X, y, chosen)
    Z = reference.lifted(engine.model.map, X)
    expected = reference.scores(Z, Z, y, ridge=1e-2, correct=correct)
    scatter = reference.statistics(Z, y)[3]
    rho = 1e-2 * np.trace(scatter) / 48
    # A solve loses as many digits as the condition number has.
    rounding = np.linalg.cond(scatter + rho * np.eye(48)) * np.finfo(dtype).eps
    assert reference.relative_error(engine.solution().scores(X), expected) < rounding


def test_many_random_features_approach_the_exact_kernel():
    X, y = reference.blobs(60, 6, 4)
    kernel = parameters(rule="auto", ridge="auto", n_components=400)
    exact = learned(X, y, kernel)
    solution = exact.solution()
    assert isinstance(solution.map, KernelMap)
    test = reference.blobs(40, 6, 4, seed=1)[0]
    errors = []
    for size in (200, 20_000):
        chosen = parameters(rule="lda", n_components=size, ridge="auto")
        many = learned(X, y, chosen).solution().scores(test)
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
def test_small_changes_equal_a_fresh_solve_without_a_factorisation(rule, monkeypatch):
    X, y = reference.blobs(700, 8, 5)
    chosen = parameters(n_components=400, rule=rule)
    engine = learned(X[:600], y[:600], chosen)
    engine.solution()
    made = []
    factorise = type(engine.model.backend).factorise
    monkeypatch.setattr(
        type(engine.model.backend), "factorise", lambda *a: made.append(1) or factorise(*a)
    )
    for i in range(600, 640):
        engine.add(X[i : i + 1], [int(y[i])])
        engine.solution()
    assert not made
    engine.add(X[640:650], [9] * 10)
    engine.remove(X[600:605], y[600:605].tolist())
    engine.drop(0)
    found = engine.solution().scores(X[:20])
    fresh = Engine(chosen, engine.model)
    assert reference.relative_error(found, fresh.solution().scores(X[:20])) < 1e-9


def test_a_declared_class_costs_no_statistics_and_no_factorisation(monkeypatch):
    X, y = reference.blobs(900, 8, 5)
    chosen = parameters(n_components=2000)
    engine = learned(X, y, chosen)
    engine.solution()
    monkeypatch.setattr(type(engine.model.backend), "factorise", None)
    monkeypatch.setattr(type(engine.model), "_batches", None)
    engine.set_name_rows(X[:1], [99])
    assert 99 in engine.solution().classes


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
    with pytest.warns(RidgeRaisedWarning, match="120 samples"):
        engine.solution()
    assert calls[1] == pytest.approx(10 * calls[0])


def test_samples_left_out_score_as_if_never_learned():
    X, y = reference.blobs(150, 6, 4)
    chosen = parameters(small_sample_correction=False)
    engine = learned(X, y, chosen)
    engine.solution()
    Z, rule = reference.lifted(engine.model.map, X), engine.solved_rule()
    _, ours, _ = left_out.leave_one_out(rule, engine.model.map.lift(X[:20]), y[:20].tolist())
    rho, g = rule.inverse.rho, reference.statistics(Z, y)[2].mean(axis=0)
    for i in range(20):
        rest = np.arange(150) != i
        _, _, means, scatter = reference.statistics(Z[rest], y[rest])
        linear = 150 * (Z[i] - g) @ np.linalg.solve(scatter + rho * np.eye(48), (means - g).T)
        # The rule's constants stay: a new input meets them as they are.
        expected = linear + rule.solution.distance.offsets
        np.testing.assert_allclose(ours[i], expected, rtol=1e-6, atol=1e-6)


def test_a_sample_left_out_is_removed_from_all_estimated_means():
    X, y = reference.blobs(150, 6, 4)
    names = reference.blobs(5, 6, 5, seed=1)[0]  # of the four classes, and of a declared one
    chosen = parameters(small_sample_correction=False)
    engine = learned(X, y, chosen)
    engine.set_name_rows(names, [0, 1, 2, 3, 9])
    engine.solution()
    Z, rule = reference.lifted(engine.model.map, X), engine.solved_rule()
    _, ours, _ = left_out.leave_one_out(rule, engine.model.map.lift(X[:20]), y[:20].tolist())
    rho, to_numpy = rule.inverse.rho, engine.model.backend.to_numpy
    g, estimates = to_numpy(rule.centre), to_numpy(rule.classes.means)
    means = reference.statistics(Z, y)[2]
    for i in range(20):
        rest = np.arange(150) != i
        _, _, without, scatter = reference.statistics(Z[rest], y[rest])
        moved = rule.classes.pull[:, :4] @ (without - means)
        P = 150 * np.linalg.inv(scatter + rho * np.eye(48))
        linear = (Z[i] - g) @ P @ (estimates + moved).T
        expected = linear + rule.solution.distance.offsets
        np.testing.assert_allclose(ours[i], expected, rtol=1e-6, atol=1e-6)


def test_what_a_sample_adds_to_the_length_of_its_class_mean_is_left_out():
    X, y = reference.blobs(150, 6, 4)
    engine = learned(X, y, parameters(small_sample_correction=False))
    engine.solution()
    Z, rule = reference.lifted(engine.model.map, X), engine.solved_rule()
    lifted = engine.model.map.lift(X[:20])
    at, _, (_, lengths) = left_out.leave_one_out(rule, lifted, y[:20].tolist())
    rho, means = rule.inverse.rho, reference.statistics(Z, y)[2]
    counts, centred = np.bincount(y), means - means.mean(axis=0)
    for i in range(20):
        rest = np.arange(150) != i
        scatter, c = reference.statistics(Z[rest], y[rest])[3], at[i]
        R = np.linalg.inv(scatter + rho * np.eye(48))
        expected = rule.solution.distance.lengths.copy()
        expected[c] -= 2 * 150 * (Z[i] - means[c]) @ R @ centred[c] / (counts[c] - 1)
        np.testing.assert_allclose(lengths[i], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("few", [True, False])
def test_leaving_out_agrees_with_models_that_never_learned_the_sample(few):
    X, y = reference.blobs(120 if few else 700, 8, 6, spread=2.0)
    chosen = parameters(rule="auto", n_components=64 if not few else 400)
    engine = learned(X, y, chosen)
    solution = engine.solution()
    at = np.arange(0, len(X), 5 if few else 29)
    lifted = solution.map.lift(X[at])
    _, ours, _ = left_out.leave_one_out(engine.solved_rule(), lifted, y[at].tolist())
    fresh = [
        learned(np.delete(X, i, 0), np.delete(y, i), chosen).solution().scores(X[i : i + 1])
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
        found.append(engine.solution().novelty(test))
    Z, z = (reference.lifted(engine.model.map, part) for part in (np.tile(X, (3, 1)), test))
    _, counts, means, scatter = reference.statistics(Z, np.tile(y, 3))
    within = (scatter + engine.solution().rho * np.eye(64)) / 600
    centre = counts @ means / 600
    spread = (means - centre) * np.sqrt(counts / 600)[:, None]
    P, P0 = np.linalg.inv(within), np.linalg.inv(within + spread.T @ spread)
    nearest = np.min([np.einsum("nd,de,ne->n", z - m, P, z - m) for m in means], axis=0)
    overall = np.einsum("nd,de,ne->n", z - centre, P0, z - centre)
    for novelty in found:
        np.testing.assert_allclose(novelty, nearest - overall, rtol=1e-6, atol=1e-6)


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


def test_novelty_is_finite_where_class_means_are_too_far_apart_for_rounding():
    rng = np.random.default_rng(0)
    means = 1e9 * rng.normal(size=(5, 2))
    inner = means @ means.T
    inner += 1e-12 * np.abs(inner).max() * rng.normal(size=(5, 1)) * rng.normal(size=5)
    inner = (inner + inner.T) / 2
    distance = RelativeMahalanobis.of(
        inner, np.arange(5), inner.diagonal(), -inner.diagonal() / 2, np.ones(5), None
    )
    assert np.linalg.eigvalsh(distance.system)[0] < 0
    assert np.isfinite(distance.of_scores(rng.normal(size=(3, 5)))).all()
