"""What to label next."""

from __future__ import annotations

import numpy as np
import pytest

from klda import Learner
from klda.errors import KldaError
from tests import reference


@pytest.fixture(scope="module")
def blobs():
    X, y = reference.blobs(600, 20, 12, spread=0.5)
    return X, np.array([f"class {i:02}" for i in y])


def test_with_nothing_known_every_class_is_asked_for(blobs):
    X, labels = blobs
    found = Learner("features").suggest(X, n=24)
    assert {labels[one.row] for one in found} == set(labels)
    assert all(one.label is None and one.known is None for one in found)


def test_what_is_like_nothing_known_comes_first(blobs):
    X, labels = blobs
    known = labels < "class 09"
    learner = Learner("features").learn(X[known], labels[known])
    found = learner.suggest(X, n=10)
    new = [one for one in found if not known[one.row]]
    assert found[: len(new)] == new
    assert {labels[one.row] for one in new} == {"class 09", "class 10", "class 11"}
    assert all(one.known is False for one in new)
    # Inputs that look alike are of one class.
    alike = [(labels[row], labels[one.row]) for one in new for row in one.alike]
    assert len(alike) > 50
    assert np.mean([one == other for one, other in alike]) > 0.95


def test_no_two_are_near_duplicates():
    X = np.random.default_rng(0).normal(size=(40, 20))
    found = Learner("features").suggest(np.concatenate([X, X + 1e-4]), n=80)
    rows = [one.row % 40 for one in found]
    assert sorted(rows) == list(range(40))


def test_few_inputs_and_refusals(blobs):
    X, labels = blobs
    assert [one.row for one in Learner("features").suggest(X[:1])] == [0]
    with pytest.raises(KldaError, match="n=0"):
        Learner("features").suggest(X, n=0)
    learner = Learner("features").learn(X, labels)
    before = learner.scores(X)
    assert learner.suggest(X, n=5)[0].to_dict().keys() >= {"row", "label", "alike"}
    np.testing.assert_array_equal(learner.scores(X), before)
