"""Rows that the tests of this folder learn, and what one process makes of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from klda.data import open_table

CLASSES = 12
DIMENSION = 10
SEED = 5


def make_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(SEED).normal(0, 1.5, (CLASSES, DIMENSION))
    labels = rng.integers(0, CLASSES, n)
    rows = (centres[labels] + rng.normal(0, 1, (n, DIMENSION))).astype(np.float32)
    return rows, np.array([f"class {i}" for i in labels])


def learn_alone(learner, *paths):
    """What one process makes of files, in the batches that `klda learn` reads."""
    tables = [open_table(path, modality=learner.modality) for path in paths]
    batches = itertools.chain.from_iterable(table.batches() for table in tables)
    return learner.learn((batch.inputs, batch.labels) for batch in batches)


def assert_same(one, other, inputs):
    """Counts are equal, scores agree as far as float32 sums in another order can.

    Rounding errors of the scatter, relative to its largest eigenvalue, which is at most its trace
    of about 1, are divided by the ridge.
    """
    assert one.classes == other.classes
    mine, theirs = one.scores(inputs), other.scores(inputs)
    rounding = np.finfo(np.float32).eps / min(one.solution.rho, 1)
    assert np.abs(mine - theirs).max() <= max(4 * rounding, 1e-5) * np.abs(theirs).max()
    assert one.solution.rho == pytest.approx(other.solution.rho, rel=1e-3)
    assert one.solution.temperature == pytest.approx(other.solution.temperature, rel=1e-2)
    known = one.is_known(inputs) == other.is_known(inputs)
    assert known.mean() > 0.99  # rounding may turn one that is on the edge
