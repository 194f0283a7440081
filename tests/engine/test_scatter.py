"""The scatter is a value, and its inverse follows changes without another factorisation."""

from __future__ import annotations

import numpy as np
import pytest

from klda.engine.backends import choose_backend
from klda.engine.scatter import InverseScatter, NotPositiveDefiniteError, Scatter
from tests.reference import DEVICE, relative_error

D = 64
RNG = np.random.default_rng(0)


def scatter_of(*changes):
    backend = choose_backend(DEVICE, "float64")
    draft = Scatter(backend, D).draft()
    for rows, sign in changes:
        draft.add(backend.asarray(rows), sign)
    return draft.done()


def test_small_changes_stand_beside_the_matrix_and_large_ones_go_into_it():
    base, few = RNG.normal(size=(90, D)), RNG.normal(size=(3, D))
    before = scatter_of((base, 1))
    draft = before.draft()
    draft.add(before.backend.asarray(few), 1)
    after = draft.done()
    assert after.square is before.square
    assert before.changes == ()
    np.testing.assert_allclose(after.matrix(), base.T @ base + few.T @ few)
    assert after.trace == pytest.approx((base**2).sum() + (few**2).sum())
    for _ in range(4):
        draft.add(before.backend.asarray(few), -1)
    done = draft.done()
    assert done.square is not before.square
    np.testing.assert_allclose(done.matrix(), base.T @ base - 3 * few.T @ few, atol=1e-10)
    np.testing.assert_allclose(before.matrix(), base.T @ base)


def test_merging_adds_both():
    first, second = RNG.normal(size=(90, D)), RNG.normal(size=(5, D))
    both = scatter_of((first, 1)).merge(scatter_of((second, 1)))
    np.testing.assert_allclose(both.matrix(), first.T @ first + second.T @ second)


def test_the_inverse_follows_rows_that_come_and_go():
    base = RNG.normal(size=(200, D))
    scatter = scatter_of((base, 1))
    inverse, expected = InverseScatter(scatter, 3.0), base.T @ base
    for i in range(6):
        rows, sign = (RNG.normal(size=(1, D)), 1) if i % 2 else (base[i : i + 1], -1)
        draft = scatter.draft()
        draft.add(scatter.backend.asarray(rows), sign)
        scatter = draft.done()
        expected = expected + sign * rows.T @ rows
        assert inverse.is_for(scatter, 3.0)
        inverse, _ = inverse.advanced(scatter)
        vectors = RNG.normal(size=(4, D))
        found = inverse.apply(scatter.backend.asarray(vectors))
        wanted = np.linalg.solve(expected + 3.0 * np.eye(D), vectors.T).T
        assert relative_error(scatter.backend.to_numpy(found), wanted) < 1e-10
    assert not inverse.is_for(scatter_of((base, 1)), 3.0)
    assert not inverse.is_for(scatter, 2.0)


def test_a_matrix_that_is_not_positive_definite_is_said_to_be_one():
    with pytest.raises(NotPositiveDefiniteError):
        InverseScatter(scatter_of((RNG.normal(size=(90, D)), -1)), 1e-3)
