"""Each peer against its formula: a dense one-shot solve, a plain loop, or numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import erf

pytest.importorskip("torch")
import torch

from klda_bench.methods.peers.anacp import AnaCP, separate
from klda_bench.methods.peers.fecam import FeCAM
from klda_bench.methods.peers.linear import Regression
from klda_bench.methods.peers.relu_ridge import GACL, RIDGES, RanPAC, choose_ridge

N_CLASSES, DIMENSION = 6, 8
tensor = torch.from_numpy


@pytest.fixture
def tasks():
    """Three tasks of two overlapping classes each."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(N_CLASSES, DIMENSION)) * 1.5
    parts = []
    for task in range(3):
        columns = np.repeat([2 * task, 2 * task + 1], 30)
        X = centres[columns] + rng.normal(size=(60, DIMENSION))
        order = rng.permutation(60)
        labels = np.asarray([f"c{column}" for column in columns])
        parts.append((X[order].astype(np.float32), labels[order]))
    return parts


@pytest.fixture
def queries():
    return np.random.default_rng(9).normal(size=(200, DIMENSION)).astype(np.float32) * 1.5


def joined(tasks):
    X = np.concatenate([part for part, _ in tasks])
    y = np.concatenate([labels for _, labels in tasks])
    return X, y


def one_hot(y):
    return (y[:, None] == np.unique(y)[None]).astype(np.float64)


def gelu(x):
    return x * 0.5 * (1 + erf(x / math.sqrt(2)))


def labels_of(scores):
    return np.asarray([f"c{column}" for column in scores.argmax(axis=1)])


def learn(method, tasks):
    for X, y in tasks:
        method.learn_task(X, y)
    return method


# --- RanPAC --------------------------------------------------------------------------------------


def test_ranpac_is_one_ridge_regression_on_all_rows(tasks, queries):
    method = learn(RanPAC(n_components=64, random_state=3), tasks)
    answers = method.predict(queries)  # which chooses the ridge
    W = np.random.default_rng(3).standard_normal((DIMENSION, 64), dtype=np.float32)
    X, y = joined(tasks)
    H = np.maximum(X.astype(np.float64) @ W, 0)
    weights = np.linalg.solve(H.T @ H + method.ridge * np.eye(64), H.T @ one_hot(y))
    scores = np.maximum(queries @ W, 0) @ weights
    np.testing.assert_array_equal(answers, labels_of(scores))
    np.testing.assert_allclose(method._weights, weights, atol=2e-3)


def test_ranpac_chooses_the_ridge_that_the_papers_search_chooses():
    rng = np.random.default_rng(1)
    chosen = set()
    for noise in (0.01, 1.0, 30.0):
        H = np.maximum(rng.normal(size=(100, 40)), 0).astype(np.float32)
        targets = H @ rng.normal(size=(40, 3)) + noise * rng.normal(size=(100, 3))
        targets = targets.astype(np.float32)
        train, hold = H[:80].astype(np.float64), H[80:].astype(np.float64)
        losses = []
        for ridge in RIDGES:
            W = np.linalg.solve(train.T @ train + ridge * np.eye(40), train.T @ targets[:80])
            losses.append(np.mean((hold @ W - targets[80:]) ** 2))
        best = choose_ridge(tensor(H), tensor(targets))
        assert losses[RIDGES.index(best)] == pytest.approx(min(losses), rel=1e-4)
        chosen.add(best)
        assert choose_ridge(tensor(H), tensor(targets), least=5e6) == 1e7
    assert len(chosen) > 1, "the cases must ask for different ridges"


# --- GACL / ACIL ---------------------------------------------------------------------------------


def test_gacl_is_its_papers_recursion(tasks, queries):
    method = learn(GACL(n_components=50, ridge=2.0, random_state=4), tasks)
    B = np.random.default_rng(4).standard_normal((DIMENSION, 50), dtype=np.float32)
    inverse, weights = np.eye(50) / 2.0, np.zeros((50, N_CLASSES))
    for X, y in tasks:
        H = np.maximum(X.astype(np.float64) @ B, 0)
        targets = (y[:, None] == [f"c{k}" for k in range(N_CLASSES)]).astype(float)
        gain = inverse @ H.T @ np.linalg.inv(np.eye(len(H)) + H @ inverse @ H.T)
        inverse -= gain @ H @ inverse
        weights += inverse @ H.T @ (targets - H @ weights)
    scores = np.maximum(queries @ B, 0) @ weights
    np.testing.assert_array_equal(method.predict(queries), labels_of(scores))
    np.testing.assert_allclose(method._weights, weights, atol=2e-4)


def test_gacl_covers_a_class_that_comes_again(tasks):
    X, y = joined(tasks)
    whole = learn(GACL(n_components=50, ridge=2.0), [(X, y)])
    halves = learn(GACL(n_components=50, ridge=2.0), [(X[::2], y[::2]), (X[1::2], y[1::2])])
    np.testing.assert_array_equal(halves.predict(X), whole.predict(X))
    np.testing.assert_allclose(halves._weights, whole._weights, atol=2e-4)


# --- FeCAM ---------------------------------------------------------------------------------------


def test_fecam_is_the_mahalanobis_distance_of_its_formula(tasks, queries):
    method = learn(FeCAM(), tasks)
    X, y = joined(tasks)

    def unit(rows):
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    rows, points = unit(X.astype(np.float64)), unit(queries.astype(np.float64))
    distances = []
    for label in np.unique(y):
        own = rows[y == label]
        cov = np.cov(own.T)
        cov = cov + np.mean(np.diag(cov)) * np.eye(DIMENSION)
        sd = np.sqrt(np.diag(cov))
        inverse = np.linalg.pinv(cov / np.outer(sd, sd))
        difference = points - unit(own.mean(axis=0))
        distances.append(np.sum(difference @ inverse * difference, axis=1))
    np.testing.assert_array_equal(method.predict(queries), labels_of(-np.stack(distances, 1)))


def test_fecam_takes_the_square_root_of_features_without_negative_entries(tasks):
    positive = [(np.abs(X), y) for X, y in tasks]
    method = learn(FeCAM(), positive)
    X, y = joined(positive)
    rows = np.sqrt(X) / np.linalg.norm(np.sqrt(X), axis=1, keepdims=True)
    for label, mean in zip(method.labels, method._means, strict=True):
        own = rows[y == label].mean(axis=0)
        np.testing.assert_allclose(mean, own / np.linalg.norm(own), atol=1e-6)


def test_fecam_survives_a_class_of_one_sample():
    method = FeCAM()
    method.learn_task(np.eye(3), np.array(["a", "b", "c"]))
    assert method.predict(np.eye(3)).tolist() == ["a", "b", "c"]


# --- AnaCP ---------------------------------------------------------------------------------------


def test_anacp_is_its_regressions_solved_in_one_piece(tasks, queries):
    method = AnaCP(n_components=40, ridge=3.0, n_heads=2, samples_per_class=20, random_state=6)
    learn(method, tasks)
    answers = method.predict(queries)

    X, y = joined(tasks)
    rows = X.astype(np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    columns = np.asarray([int(label[1:]) for label in y])
    means = np.stack([rows[columns == k].mean(axis=0) for k in range(N_CLASSES)])
    centred = rows - means[columns]
    covariance = centred.T @ centred / len(rows) + 1e-4 * np.eye(DIMENSION)
    targets = separate(tensor(means), tensor(covariance)).numpy()

    rng = np.random.default_rng(6)
    shape = (DIMENSION, 40)
    head_layer = rng.standard_normal(shape, dtype=np.float32).astype(np.float64)
    layers = [rng.standard_normal(shape, dtype=np.float32).astype(np.float64) for _ in range(2)]

    def contrast(inputs):
        outputs = []
        for layer in layers:
            Z = gelu(rows @ layer)
            theta = np.linalg.solve(Z.T @ Z + 3.0 * np.eye(40), Z.T @ targets[columns])
            out = gelu(inputs @ layer) @ theta
            outputs.append(out / np.linalg.norm(out, axis=1, keepdims=True))
        return np.mean(outputs, axis=0)

    noise_rng = np.random.default_rng((6, N_CLASSES))
    drawn = np.repeat(np.arange(N_CLASSES), 20)
    noise = noise_rng.standard_normal((len(drawn), DIMENSION))
    samples = means[drawn] + noise @ np.linalg.cholesky(covariance).T
    H = gelu(contrast(samples) @ head_layer)
    head = np.linalg.solve(H.T @ H + 3.0 * np.eye(40), H.T @ np.eye(N_CLASSES)[drawn])
    points = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    scores = gelu(contrast(points) @ head_layer) @ head
    np.testing.assert_array_equal(answers, labels_of(scores))
    np.testing.assert_allclose(method._head, head, atol=5e-3)


def test_anacp_separation_raises_each_singular_value_by_one():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, 4))
    # With a unit covariance whitening is nothing.
    found = separate(tensor(means), torch.eye(4, dtype=torch.float64))
    centre = means.mean(axis=0)
    U, S, Vt = np.linalg.svd(means - centre, full_matrices=False)
    assert S[2] < 1e-12, "three centred means span two directions"
    expected = U @ np.diag([S[0] + 1, S[1] + 1, 0]) @ Vt + centre
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected, atol=1e-6)


# --- what they share -----------------------------------------------------------------------------


def test_a_regression_with_a_singular_matrix_is_finite():
    regression = Regression(6)
    regression.add(torch.ones(4, 6), torch.ones(4, 1))
    assert torch.isfinite(regression.solve(1e-8)).all()


def test_classes_keep_their_column():
    method = GACL(n_components=10)
    X = np.eye(4, dtype=np.float32)
    for labels, expected in (("ba", ["a", "b"]), ("ca", ["a", "b", "c"])):
        method.learn_task(X[:2], np.array(list(labels)))
        assert method.labels == expected
