"""Two classes become one, exactly."""

from __future__ import annotations

import numpy as np
import pytest

from klda import KLDA, Learner
from klda.errors import KldaError
from tests import reference


@pytest.mark.parametrize("n", [200, 3000], ids=["rows are kept", "statistics alone"])
@pytest.mark.parametrize("solved_before", [False, True])
def test_the_model_is_as_if_both_had_been_learned_as_one(n, solved_before):
    X, y = reference.blobs(n + 50, 10, 5)
    labels = np.array(list("abcde"))[y]
    joined = np.where(labels == "a", "d", labels)
    settings = KLDA(n_components=300, gamma=0.05, random_state=0)
    learner = Learner("features", classifier=settings).learn(X[:n], labels[:n])
    if solved_before:
        learner.predict(X[:1])
    learner.rename("a", "d", merge=True)
    wanted = Learner("features", classifier=settings).learn(X[:n], joined[:n])
    assert learner.classes == wanted.classes
    expected = wanted.scores(X[n:])
    assert np.abs(learner.scores(X[n:]) - expected).max() < 1e-4 * np.abs(expected).max()


def test_a_declared_class_can_become_part_of_another():
    learner = Learner("ngrams").learn(["my card is lost", "send it back"], ["card", "refund"])
    learner.declare(["Refund", "loan"])
    learner.rename("Refund", "refund", merge=True)
    assert learner.classes == {"card": 1, "loan": 0, "refund": 1}
    learner.rename("card", "loan", merge=True)
    assert learner.classes == {"loan": 1, "refund": 1}
    assert learner.predict(["is my card lost?"]).tolist() == ["loan"]


def test_nothing_is_merged_unless_asked():
    X, y = reference.blobs(60, 4, 3)
    learner = Learner("features").learn(X, y)
    with pytest.raises(KldaError, match="merge=True"):
        learner.rename(0, 1)
    with pytest.raises(KldaError, match="name two classes"):
        learner.rename(1, 1, merge=True)
    assert len(learner.classes) == 3
