from __future__ import annotations

import numpy as np
import pytest

from klda.backend import NumpyBackend, TorchBackend, choose_backend
from klda.errors import KldaError

torch = pytest.importorskip("torch")

BACKENDS = [
    NumpyBackend("float64"),
    NumpyBackend("float32"),
    TorchBackend("cpu", "float64"),
    TorchBackend("cpu", "float32"),
]
if torch.cuda.is_available():
    BACKENDS += [TorchBackend("cuda", "float64"), TorchBackend("cuda", "float32")]

SIZE = 1500  # above the block sizes, so that block edges are crossed


@pytest.fixture(params=BACKENDS, ids=lambda b: f"{type(b).__name__}-{b.device}-{b.dtype}")
def backend(request):
    return request.param


def tolerance(backend):
    return 1e-10 if backend.dtype == np.float64 else 2e-4


def random_rows(n, size=SIZE, seed=0):
    return np.random.default_rng(seed).normal(size=(n, size))


def test_gram_fills_the_lower_triangle_and_leaves_the_upper(backend):
    rows = random_rows(40)
    start = random_rows(SIZE, seed=1)
    square = backend.copy(backend.asarray(start))
    backend.add_gram(square, backend.asarray(rows), 1)
    result = backend.to_numpy(square)
    np.testing.assert_allclose(np.tril(result), np.tril(start + rows.T @ rows), atol=1e-3)
    np.testing.assert_allclose(np.triu(result, 1), np.triu(start, 1), atol=1e-6)
    backend.add_gram(square, backend.asarray(rows), -1)
    np.testing.assert_allclose(backend.to_numpy(square), start, atol=1e-4)


def test_factorise_and_solve_leave_the_scatter_in_place(backend):
    rows = random_rows(2000)
    scatter = rows.T @ rows
    square = backend.asarray(np.tril(scatter))
    pivots = backend.factorise(square, 50.0, backend.empty((SIZE, SIZE)))
    np.testing.assert_allclose(np.tril(backend.to_numpy(square)), np.tril(scatter), rtol=1e-5)
    vectors = random_rows(7, seed=3)
    solved = backend.to_numpy(backend.solve(square, pivots, backend.asarray(vectors)))
    expected = np.linalg.solve(scatter + 50.0 * np.eye(SIZE), vectors.T).T
    assert np.abs(solved - expected).max() / np.abs(expected).max() < tolerance(backend)


def test_factorise_says_no_to_an_indefinite_matrix(backend):
    square = backend.asarray(-np.eye(10))
    assert backend.factorise(square, 0.5, backend.empty((10, 10))) is None


@pytest.mark.parametrize("definite", [True, False])
def test_small_solve(backend, definite):
    rows = random_rows(30, 20)
    matrix = rows.T @ rows + np.eye(20)
    if not definite:
        matrix -= 60 * np.diag(np.arange(20) % 2)
    vectors = random_rows(4, 20, seed=5)
    solve = backend.small_solver(backend.asarray(matrix), definite=definite)
    solved = solve(backend.asarray(vectors))
    expected = np.linalg.solve(matrix, vectors.T).T
    np.testing.assert_allclose(
        backend.to_numpy(solved), expected, atol=tolerance(backend) * np.abs(expected).max() * 10
    )


def test_small_solve_says_no_to_a_singular_matrix(backend):
    singular = backend.asarray(np.zeros((3, 3)))
    for definite in (True, False):
        assert backend.small_solver(singular, definite=definite) is None


def test_group_sums(backend):
    rows = random_rows(10, 4)
    groups = np.array([2, 0, 1, 2, 2, 0, 1, 1, 0, 2])
    sums = backend.to_numpy(backend.group_sums(backend.asarray(rows), groups, 3))
    expected = np.stack([rows[groups == g].sum(0) for g in range(3)])
    np.testing.assert_allclose(sums, expected, atol=1e-5)


def test_devices_are_chosen_by_name():
    assert choose_backend("cpu", "float32").device == "cpu"
    with pytest.raises(KldaError, match="device='nonsense'"):
        choose_backend("nonsense", "float32")
    with pytest.raises(KldaError, match="dtype='float16'"):
        choose_backend("cpu", "float16")
