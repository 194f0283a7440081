"""Forgetting: all of it or nothing, and only what was learned."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest

from klda import KLDA, NCM, KldaError, Learner
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


def test_a_large_class_is_found_in_the_ledger_in_little_memory():
    """A matrix of all pairs took 8 bytes each: 20 GB for a class of 50,000."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 6)).astype(np.float32)
    rows[:500] = rows[0]  # the same sample learned many times
    learner = Learner("features", classifier=NCM(), keep="features")
    learner.learn(rows, ["a"] * 5999 + ["b"])
    again = rows[:5999] * (1 + 1e-4 * rng.normal(size=(5999, 1))).astype(np.float32)
    again[:250] = rows[:250]
    tracemalloc.start()
    learner.forget("a", again[rng.permutation(5999)])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1e8  # all pairs: 2.9e8, several times over
    assert learner.classes == {"b": 1}
    assert len(learner.ledger) == 1


def test_a_sample_learned_twice_can_be_forgotten_twice_and_no_more():
    learner = Learner("features", classifier=NCM(), keep="features")
    learner.learn(np.repeat(PROBE[:1], 3, axis=0), ["a"] * 3).learn(PROBE[1:5], ["a"] * 4)
    learner.forget("a", np.repeat(PROBE[:1], 2, axis=0))
    with pytest.raises(KldaError, match="'a'"):
        learner.forget("a", np.repeat(PROBE[:1], 2, axis=0))
    assert learner.classes == {"a": 5}
