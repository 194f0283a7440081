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


def test_an_empty_model_suggests_inputs_of_every_class(blobs):
    X, labels = blobs
    found = Learner("features").suggest(X, n=24)
    assert {labels[one.row] for one in found} == set(labels)
    assert all(one.label is None and one.known is None for one in found)


def test_inputs_of_new_classes_come_first(blobs):
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


def test_suggestions_use_the_tuned_thresholds(blobs):
    X, labels = blobs
    learner = Learner("features").learn(X[::2], labels[::2])
    learner.tune_unknown(X[1::4], X[3::4], reject=0.5, by_class=True)
    found = learner.suggest(X, n=30)
    rows = [one.row for one in found]
    assert [one.known for one in found] == learner.is_known(X[rows]).tolist()
    assert 0 < sum(one.known for one in found) < len(found)


def test_a_new_class_is_suggested_once_if_its_inputs_are_alike(blobs):
    X, labels = blobs
    known = labels < "class 11"
    learner = Learner("features").learn(X[known], labels[known])
    found = learner.suggest(X, n=12)
    assert len(found) == 12
    (new,) = [one for one in found if not known[one.row]]
    assert found[0] == new
    assert len(new.alike) == np.sum(~known) - 1
    # Each input is like one suggestion at most.
    rows = [row for one in found for row in (one.row, *one.alike)]
    assert len(rows) == len(set(rows))


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
