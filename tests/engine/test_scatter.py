"""The scatter is a value, and its inverse follows changes without another factorisation."""

from __future__ import annotations

import numpy as np
import pytest

from klda.engine.arrays import choose_backend
from klda.engine.inverse import InverseScatter, NotPositiveDefiniteError
from klda.engine.statistics import Scatter
from tests.reference import DEVICE, relative_error

D = 64
RNG = np.random.default_rng(0)


def scatter_of(*changes):
    backend = choose_backend(DEVICE, "float64")
    scatter = Scatter(backend, D)
    for rows, sign in changes:
        scatter = scatter.add(backend.asarray(rows), sign)
    return scatter


def test_small_changes_are_kept_beside_the_matrix_and_large_ones_added_to_it():
    base, few = RNG.normal(size=(90, D)), RNG.normal(size=(3, D))
    before = scatter_of((base, 1))
    after = before.add(before.backend.asarray(few), 1)
    assert after.square is before.square
    assert before.changes == ()
    np.testing.assert_allclose(after.matrix(), base.T @ base + few.T @ few)
    assert after.trace == pytest.approx((base**2).sum() + (few**2).sum())
    for _ in range(4):
        after = after.add(before.backend.asarray(few), -1)
    assert after.square is not before.square
    np.testing.assert_allclose(after.matrix(), base.T @ base - 3 * few.T @ few, atol=1e-10)
    np.testing.assert_allclose(before.matrix(), base.T @ base)


def test_merging_adds_both():
    first, second = RNG.normal(size=(90, D)), RNG.normal(size=(5, D))
    both = scatter_of((first, 1)).merge(scatter_of((second, 1)))
    np.testing.assert_allclose(both.matrix(), first.T @ first + second.T @ second)


def test_the_inverse_follows_rows_that_come_and_go():
    base = RNG.normal(size=(200, D))
    scatter = scatter_of((base, 1))
    inverse, expected = InverseScatter.of(scatter, 3.0), base.T @ base
    for i in range(6):
        rows, sign = (RNG.normal(size=(1, D)), 1) if i % 2 else (base[i : i + 1], -1)
        scatter = scatter.add(scatter.backend.asarray(rows), sign)
        expected = expected + sign * rows.T @ rows
        assert inverse.is_for(scatter)
        vectors = scatter.backend.asarray(RNG.normal(size=(4, D)))
        inverse = inverse.advanced(scatter, {"means": vectors})
        found = inverse.with_r("means")[1]
        vectors = scatter.backend.to_numpy(vectors)
        wanted = np.linalg.solve(expected + 3.0 * np.eye(D), vectors.T).T
        assert relative_error(scatter.backend.to_numpy(found), wanted) < 1e-10
    assert not inverse.is_for(scatter_of((base, 1)))


def test_a_matrix_that_is_not_positive_definite_is_an_error():
    with pytest.raises(NotPositiveDefiniteError):
        InverseScatter.of(scatter_of((RNG.normal(size=(90, D)), -1)), 1e-3)
