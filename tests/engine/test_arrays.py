from __future__ import annotations

import numpy as np
import pytest

from klda.engine.arrays import NumpyBackend, TorchBackend, choose_backend, product
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


def test_gram_fills_the_lower_triangle(backend):
    rows = random_rows(40)
    start = random_rows(SIZE, seed=1)
    square = backend.xp.asarray(backend.asarray(start), copy=True)
    backend.add_gram(square, backend.asarray(rows), 1)
    result = backend.to_numpy(square)
    np.testing.assert_allclose(np.tril(result), np.tril(start + rows.T @ rows), atol=1e-3)
    backend.add_gram(square, backend.asarray(rows), -1)
    np.testing.assert_allclose(np.tril(backend.to_numpy(square)), np.tril(start), atol=1e-4)


@pytest.mark.parametrize("size", [SIZE, 1501])  # of one block and of several on a GPU
def test_factorise_and_solve_leave_the_scatter_in_place(backend, size):
    rows = random_rows(2000, size)
    scatter = rows.T @ rows
    square = backend.asarray(np.tril(scatter))
    factor = backend.factorise(square, 50.0)
    np.testing.assert_allclose(np.tril(backend.to_numpy(square)), np.tril(scatter), rtol=1e-5)
    vectors = random_rows(7, size, seed=3)
    expected = np.linalg.solve(scatter + 50.0 * np.eye(size), vectors.T).T
    solved = backend.to_numpy(backend.solve(factor, backend.asarray(vectors)))
    assert np.abs(solved - expected).max() / np.abs(expected).max() < tolerance(backend)


def test_factorising_an_indefinite_matrix_returns_none(backend):
    scatter = np.tril(random_rows(10, 10)) - 5 * np.eye(10)
    square = backend.xp.asarray(backend.asarray(scatter), copy=True)
    assert backend.factorise(square, 0.5) is None
    kept = np.tril(backend.to_numpy(square))
    np.testing.assert_array_equal(kept, scatter.astype(backend.dtype))


@pytest.mark.parametrize("counts", [(3, 3, 4), (256, 1, 512), (700,), (1,)])
def test_rows_are_summed_and_centred_by_class(backend, counts):
    rows, classes = random_rows(sum(counts), 4), np.repeat(np.arange(len(counts)), counts)
    given = backend.xp.asarray(backend.asarray(rows), copy=True)
    expected = np.stack([rows[classes == c].sum(0) for c in range(len(counts))])
    sums = backend.class_sums(given, np.array(counts))
    np.testing.assert_allclose(backend.to_numpy(sums), expected, atol=1e-3)
    backend.centre(given, backend.asarray(expected), np.array(counts))
    np.testing.assert_allclose(backend.to_numpy(given), rows - expected[classes], atol=1e-3)


def test_devices_are_chosen_by_name():
    assert choose_backend("cpu", "float32").device == "cpu"
    with pytest.raises(KldaError, match="device='nonsense'"):
        choose_backend("nonsense", "float32")


@pytest.mark.parametrize("n", [3, 40])  # few rows are multiplied by NumPy, more by BLAS
def test_features_are_cosines(backend, n):
    samples, frequencies = random_rows(n, 8), random_rows(8, seed=1)
    phases = random_rows(1, seed=2)[0]
    found = backend.cosine_map(
        *(backend.asarray(part) for part in (samples, frequencies, phases)), 0.5
    )
    expected = 0.5 * np.cos(samples @ frequencies + phases)
    np.testing.assert_allclose(backend.to_numpy(found), expected, atol=tolerance(backend))


@pytest.mark.parametrize("n", [3, 40])  # few rows are multiplied by NumPy, more by BLAS
def test_products_are_the_same_on_all_devices(backend, n):
    rows, weights = random_rows(n, 8), random_rows(5, 8, seed=1)
    given, expected = [backend.asarray(part) for part in (rows, weights)], rows @ weights.T
    found = backend.to_numpy(product(given[0], given[1].T))
    np.testing.assert_allclose(found, expected, atol=tolerance(backend))
    some = product(given[0], given[1][1:3].T)
    np.testing.assert_allclose(backend.to_numpy(some), expected[:, 1:3], atol=tolerance(backend))
