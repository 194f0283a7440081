"""Forgetting: all of it or nothing, and only what was learned."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from klda import KLDA, Learner
from klda.learner import ForgetTraceWarning

CENTRES = np.random.default_rng(5).normal(size=(4, 12)) * 2


def drawn(label, n=30, seed=0):
    rng = np.random.default_rng([seed, ord(label)])
    return (CENTRES["abcd".index(label)] + rng.normal(size=(n, 12))).astype(np.float32)


def klda(**changes):
    return KLDA(**({"n_components": 400, "gamma": 0.02, "random_state": 0} | changes))


def taught(labels="abcd", n=30, classifier=None, keep=None):
    learner = Learner("features", classifier=classifier or klda(), keep=keep)
    for label in labels:
        learner.learn(drawn(label, n), [label] * n)
    return learner


PROBE = np.concatenate([drawn(label, 20, seed=50) for label in "abcd"])


def test_with_warnings_as_errors_a_class_is_not_dropped_halfway():
    learner = taught()
    scores, history = learner.scores(PROBE), learner.history
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ForgetTraceWarning):
            learner.forget("a")
    assert list(learner.classes) == ["a", "b", "c", "d"]
    assert learner.history == history
    np.testing.assert_array_equal(learner.scores(PROBE), scores)
    with pytest.warns(ForgetTraceWarning, match="'a'"):
        learner.forget("a")
    assert learner.history[-1]["dropped_classes"] == ["a"]
