"""What a learner says of its own accuracy."""

from __future__ import annotations

import numpy as np
import pytest

from klda import Learner
from klda.inspection.evaluation import Evaluation
from klda.inspection.quality import class_changes
from tests import reference


@pytest.fixture(scope="module")
def taught():
    X, y = reference.blobs(4000, 10, 12, spread=2.5)
    labels = np.array([f"class {i}" for i in y])
    return Learner("features").learn(X[:2000], labels[:2000]), X[2000:], labels[2000:]


def test_the_range_holds_the_accuracy_on_new_samples(taught):
    learner, X, labels = taught
    found = learner.quality()
    assert found.low < np.mean(learner.predict(X) == labels) < found.high
    assert found.left_out > 500


def test_the_accuracy_of_each_class_lies_in_its_range(taught):
    learner, X, labels = taught
    found, answers = learner.quality(), learner.predict(X)
    assert [one.label for one in found.classes] == list(learner.classes)
    inside = [
        one.low <= np.mean(answers[labels == one.label] == one.label) <= one.high
        for one in found.classes
    ]
    assert np.mean(inside) >= 0.7  # nine of ten are expected
    assert [one.accuracy for one in found.worst] == sorted(one.accuracy for one in found.classes)


def test_a_saved_learner_says_the_same(taught, tmp_path):
    learner = taught[0]
    learner.save(tmp_path / "model")
    learner.save(tmp_path / "compact", compact=True)
    for name in ("model", "compact"):
        assert Learner.load(tmp_path / name).quality() == learner.quality()


def test_with_one_sample_of_each_class_nothing_is_known():
    X, y = reference.blobs(6, 10, 6)
    found = Learner("features").learn(X, y).quality()
    assert not found.is_known
    assert (found.low, found.high) == (0.0, 1.0)
    assert "two samples" in str(found)
    assert found.to_dict()["accuracy"] is None


def test_changes_by_class_put_the_greatest_loss_first():
    truth, sure = ["a", "a", "b", "b"], np.ones(4)
    before = Evaluation.of(truth, ["a", "a", "b", "a"], sure)
    after = Evaluation.of(truth, ["a", "b", "b", "b"], sure)
    found = class_changes(before, after, "ab")
    assert [(one.label, one.points) for one in found] == [("a", -50.0), ("b", 50.0)]
    assert all(one.points == 0 for one in class_changes(None, after, ""))
    assert [one.before for one in class_changes(before, after, "b")] == [None, 0.5]
