from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from klda import KLDA, KLDAEnsemble
from klda_bench.data.datasets import Samples
from klda_bench.runs.protocol import run, split_classes

pytest.importorskip("torch")
from klda_bench.methods.authors import AuthorsKLDA


def stream(n_classes=20, per_class=30, dimension=16, seed=0):
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(n_classes, dimension))
    names = np.asarray([f"c{i:02d}" for i in range(n_classes)])

    def part(rows):
        X = np.concatenate([c + 0.7 * rng.normal(size=(rows, dimension)) for c in centres])
        X /= np.linalg.norm(X, axis=1, keepdims=True)
        return Samples(X.astype(np.float32), np.repeat(names, rows))

    return part(per_class), part(15)


def test_the_authors_form_is_its_formulas_on_a_small_case():
    train, test = stream(n_classes=4, per_class=60)
    method = AuthorsKLDA(n_components=20, gamma=0.5, random_state=2)
    for task in split_classes(train.y.tolist(), 2, 0):
        rows = train.of_classes(task)
        method.learn_task(rows.X, rows.y)
    omega, beta = method._omega.numpy().astype(float), method._beta.numpy().astype(float)
    assert omega.std() == pytest.approx(1.0, abs=0.1), "N(0, 2 gamma) with gamma = 0.5"

    def lift(X):
        return np.sqrt(2 / 20) * np.cos(X.astype(float) @ omega + beta)

    Z, labels = lift(train.X), np.unique(train.y)
    means = np.stack([Z[train.y == label].mean(axis=0) for label in labels])
    centred = Z - means[np.searchsorted(labels, train.y)]
    inverse = np.linalg.pinv(centred.T @ centred)
    difference = lift(test.X)[:, None, :] - means[None]
    distance = np.einsum("nkd,de,nke->nk", difference, inverse, difference)
    np.testing.assert_array_equal(method.predict(test.X), labels[distance.argmin(axis=1)])


def test_the_engine_gives_the_answers_of_the_plain_form_on_the_same_random_features():
    train, test = stream(per_class=60)
    model = KLDAEnsemble.paper(gamma=0.5, n_components=400, n_members=3, random_state=0)
    model.fit(train.X, train.y)
    total = 0.0
    for member in model.members_:
        own_map = member.model_.map
        Z, Z_test = (own_map.backend.to_numpy(own_map.lift(X)) for X in (train.X, test.X))
        means = np.stack([Z[train.y == label].mean(axis=0) for label in model.classes_])
        centred = (Z - means[np.searchsorted(model.classes_, train.y)]).astype(float)
        scatter = centred.T @ centred
        ridge = member.ridge_ * np.trace(scatter) / len(scatter)
        inverse = np.linalg.pinv(scatter + ridge * np.eye(len(scatter)))
        difference = Z_test[:, None, :] - means
        distance = np.einsum("nkd,de,nke->nk", difference, inverse, difference)
        total += softmax(-0.5 * len(Z) * distance, axis=1)
    plain = model.classes_[np.argmax(total, axis=1)]
    assert np.mean(plain == model.predict(test.X)) >= 0.995
    assert model.score(test.X, test.y) > 0.8


def test_while_samples_are_fewer_than_components_ours_holds_and_the_authors_form_falls():
    """N passes through D = 400 in the middle of the stream."""
    train, test = stream()
    tasks = split_classes(train.y.tolist(), 10, 0)
    outcome = run(AuthorsKLDA(n_components=400, gamma=0.5), train, test, tasks)
    early = np.asarray(outcome.samples_seen) < 400
    assert early.sum() == 6
    authors = np.asarray(outcome.seen_accuracy)
    for estimator in (
        KLDA.paper(gamma=0.5, n_components=400, random_state=0),
        KLDA(n_components=400, random_state=0),
    ):
        ours = np.asarray(run(estimator, train, test, tasks).seen_accuracy)
        assert np.all(ours > 85), ours
        assert np.all((ours - authors)[early] > 20), (ours, authors)
