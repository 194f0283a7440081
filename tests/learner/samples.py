"""What the tests of the learner teach and ask."""

from __future__ import annotations

import numpy as np

from klda import Learner
from klda.engine.parameters import Parameters

DIMENSION = 8


def rows_of(label, n=12, seed=0):
    """Rows around a centre that depends on the label alone."""
    letters = [ord(letter) for letter in str(label)]
    centre = np.random.default_rng(letters).normal(size=DIMENSION)
    noise = np.random.default_rng([seed, *letters]).normal(size=(n, DIMENSION))
    return (2 * centre + noise).astype(np.float32)


def samples(labels, n=12, seed=0):
    """Rows of several classes, and their labels."""
    rows = np.concatenate([rows_of(label, n, seed) for label in labels])
    return rows, [label for label in labels for _ in range(n)]


PROBE = samples("abcdef", n=7, seed=50)[0]


def small(**changes):
    """Parameters of a model that keeps its samples up to 20."""
    defaults = {"n_components": 40, "gamma": 0.02, "device": "cpu"}
    return Parameters(**defaults | changes)


def taught(labels="abcd", n=12, *, keep=None, **changes):
    """A learner that has learned some classes."""
    learner = Learner("features", classifier=small(**changes), keep=keep)
    return learner.learn(*samples(labels, n)) if labels else learner


def assert_same_scores(learner, expected, probe=PROBE, *, rtol=1e-4):
    """Scores are equal but for rounding; most are differences, so relative to the largest."""
    assert learner.classes == expected.classes
    found, wanted = learner.scores(probe), expected.scores(probe)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rtol * np.abs(wanted).max())
