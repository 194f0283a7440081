"""Linear algebra and bookkeeping that the peers share.

Arrays are NumPy's on the CPU and tensors of torch on a GPU. The two have most operators and methods
in common; :func:`namespace` has the functions of the same names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, blas, cho_factor, cho_solve

from klda_bench.environment import require

Array = Any
"""An array of NumPy or a tensor of torch."""


def place(array: np.ndarray, device: str) -> Array:
    """Move an array to a device: a tensor of torch, but on the CPU the array itself."""
    if device == "cpu":
        return array
    return require("torch", "baselines").from_numpy(np.ascontiguousarray(array)).to(device)


def fetch(array: Array) -> np.ndarray:
    """Return an array of any device as an array of NumPy."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def namespace(array: Array) -> Any:
    """Return the module whose functions take the array: numpy or torch."""
    return np if isinstance(array, np.ndarray) else require("torch", "baselines")


class Peer(ABC):
    """A method that learns rows of numbered classes and answers with the largest score.

    Classes are numbered in the order in which they were first seen.
    """

    def __post_init__(self) -> None:
        self.labels: list[str] = []

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn one task's rows, in their order."""
        if not self.labels:
            self._start(X)
        self.labels += [label for label in np.unique(y).tolist() if label not in self.labels]
        number = {label: i for i, label in enumerate(self.labels)}
        self._learn(X, np.asarray([number[label] for label in np.asarray(y).tolist()]))
        self._solved = False

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows with the class of the largest score."""
        if not self._solved:
            self._solve()
            self._solved = True
        return np.asarray(self.labels)[fetch(self._scores(X)).argmax(axis=1)]

    @abstractmethod
    def _start(self, X: np.ndarray) -> None:
        """Prepare for rows like those of the first task."""

    @abstractmethod
    def _learn(self, X: np.ndarray, columns: np.ndarray) -> None:
        """Add rows and the numbers of their classes to the statistics."""

    def _solve(self) -> None:  # noqa: B027 (not all need it)
        """Compute what the scores need from the statistics, once after a task."""

    @abstractmethod
    def _scores(self, X: np.ndarray) -> Array:
        """Return the score of each row for each class."""


def one_hot(columns: np.ndarray, n_classes: int) -> np.ndarray:
    """Make an indicator matrix of shape (n_samples, n_classes), float32."""
    targets = np.zeros((len(columns), n_classes), dtype=np.float32)
    targets[np.arange(len(columns)), columns] = 1.0
    return targets


def widen(matrix: np.ndarray, n_columns: int) -> np.ndarray:
    """Add columns of zeros up to `n_columns`."""
    missing = n_columns - matrix.shape[1]
    if missing <= 0:
        return matrix
    return np.hstack([matrix, np.zeros((len(matrix), missing), dtype=matrix.dtype)])


def unit_rows(X: Array) -> Array:
    """Rows scaled to unit length; a row of zeros stays."""
    norms = namespace(X).linalg.norm(X, axis=1, keepdims=True)
    return X / norms.clip(min=float(np.finfo(np.float32).tiny))


class Regression:
    """Ridge regression of rows onto their classes: the Gram matrix of the rows and class sums.

    `gram`, of which only the lower triangle counts, lies on the device of the rows. `sums` has one
    column per class.
    """

    def __init__(self, n_features: int, device: str = "cpu") -> None:
        self.device = device
        zeros = np.zeros((n_features, n_features), dtype=np.float32, order="F")
        self.gram = place(zeros, device)
        self.sums = np.zeros((n_features, 0), dtype=np.float32)

    def add(self, H: Array, targets: np.ndarray) -> None:
        """Add rows; `targets` is the indicator matrix of their classes."""
        if isinstance(H, np.ndarray):
            self.gram = blas.ssyrk(1.0, H.T, beta=1.0, c=self.gram, lower=1, overwrite_c=1)
        else:
            self.gram.addmm_(H.T, H)
        new = fetch(H.T @ place(targets, self.device))
        self.sums = widen(self.sums, targets.shape[1]) + new

    def solve(self, ridge: float, right: np.ndarray | None = None) -> Array:
        """Solve ``(G + ridge I) W = right``, by default for the class sums.

        Cholesky in float32. A Gram matrix of fewer rows than columns, summed in float32, can have
        negative eigenvalues larger than a small ridge; then LU in float64, as the peers' own
        programs do (``torch.linalg.solve``).
        """
        right = self.sums if right is None else right
        if self.device != "cpu":
            return _solve_on_gpu(self.gram, place(right, self.device), ridge)
        matrix: Any = np.array(self.gram, order="F")
        matrix[np.diag_indices_from(matrix)] += np.float32(ridge)
        try:
            factor = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            return _solve_indefinite(self.gram, right, ridge)
        return cho_solve(factor, right, check_finite=False)


def _solve_indefinite(gram_lower: np.ndarray, right: np.ndarray, ridge: float) -> np.ndarray:
    full = np.tril(gram_lower).astype(np.float64)
    full += np.tril(full, -1).T
    full[np.diag_indices_from(full)] += ridge
    try:
        solved = np.linalg.solve(full, right.astype(np.float64))
    except np.linalg.LinAlgError:
        solved = np.linalg.lstsq(full, right.astype(np.float64), rcond=None)[0]
    return solved.astype(np.float32)


def _solve_on_gpu(gram: Array, right: Array, ridge: float) -> Array:
    torch = namespace(gram)
    matrix = gram.clone()
    matrix.diagonal().add_(ridge)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not failed:
        return torch.cholesky_solve(right, factor)
    matrix = gram.double()
    matrix.diagonal().add_(ridge)
    return torch.linalg.solve(matrix, right.double()).float()


class ClassMeans:
    """Count and mean of each class, and the scatter of all rows around their class's mean."""

    def __init__(self, dimension: int) -> None:
        self.counts = np.zeros((1, 0))
        self._sums = np.zeros((dimension, 0))
        self._moment = np.zeros((dimension, dimension))

    def add(self, X: np.ndarray, targets: np.ndarray) -> None:
        """Add rows; `targets` is the indicator matrix of their classes."""
        X, targets = X.astype(np.float64), targets.astype(np.float64)
        self.counts = widen(self.counts, targets.shape[1]) + targets.sum(axis=0)
        self._sums = widen(self._sums, targets.shape[1]) + X.T @ targets
        self._moment += X.T @ X

    @property
    def means(self) -> np.ndarray:
        """Return one mean per class, in the order of the columns."""
        return (self._sums / self.counts).T

    @property
    def scatter(self) -> np.ndarray:
        """Return the sum of outer products of rows less their class's mean."""
        return self._moment - self._sums @ self.means
