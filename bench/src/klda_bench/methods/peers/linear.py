"""Linear algebra and bookkeeping that the peers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional


class Peer(ABC):
    """A method that learns rows of numbered classes and answers with the largest score.

    Classes are numbered in the order in which they were first seen.
    """

    device: str

    def __post_init__(self) -> None:
        self.labels: list[str] = []

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn one task's rows, in their order."""
        rows = self._place(X)
        if not self.labels:
            self._start(rows)
        self.labels += [label for label in np.unique(y).tolist() if label not in self.labels]
        number = {label: i for i, label in enumerate(self.labels)}
        columns = [number[label] for label in np.asarray(y).tolist()]
        self._learn(rows, torch.tensor(columns, device=self.device))
        self._solved = False

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows with the class of the largest score."""
        if not self._solved:
            self._solve()
            self._solved = True
        return np.asarray(self.labels)[self._scores(self._place(X)).argmax(dim=1).cpu().numpy()]

    def _place(self, array: Any) -> Tensor:
        """Move an array to the device, in float32."""
        return torch.as_tensor(np.asarray(array, dtype=np.float32), device=self.device)

    def _targets(self, columns: Tensor) -> Tensor:
        """Return the indicator matrix of the rows' classes, (n, classes)."""
        return functional.one_hot(columns, len(self.labels)).float()

    @abstractmethod
    def _start(self, rows: Tensor) -> None:
        """Prepare for rows like those of the first task."""

    @abstractmethod
    def _learn(self, rows: Tensor, columns: Tensor) -> None:
        """Add rows and the numbers of their classes to the statistics."""

    def _solve(self) -> None:  # noqa: B027 (not all need it)
        """Compute what the scores need from the statistics, once after a task."""

    @abstractmethod
    def _scores(self, rows: Tensor) -> Tensor:
        """Return the score of each row for each class."""


def widen(matrix: Tensor, n_columns: int) -> Tensor:
    """Add columns of zeros up to `n_columns`."""
    return functional.pad(matrix, (0, n_columns - matrix.shape[1]))


def unit_rows(rows: Tensor) -> Tensor:
    """Rows scaled to unit length; a row of zeros stays."""
    return functional.normalize(rows, dim=1)


class Regression:
    """Ridge regression of rows onto their classes: the Gram matrix of the rows and class sums."""

    def __init__(self, n_features: int, device: str = "cpu") -> None:
        self.gram = torch.zeros(n_features, n_features, device=device)
        self.sums = torch.zeros(n_features, 0, device=device)

    def add(self, rows: Tensor, targets: Tensor) -> None:
        """Add rows; `targets` is the indicator matrix of their classes."""
        self.gram.addmm_(rows.T, rows)
        self.sums = widen(self.sums, targets.shape[1]) + rows.T @ targets

    def solve(self, ridge: float, right: Tensor | None = None) -> Tensor:
        """Solve ``(G + ridge I) W = right``, by default for the class sums.

        Cholesky in float32. A Gram matrix of fewer rows than columns, summed in float32, can have
        negative eigenvalues larger than a small ridge; then LU in float64, as the peers' own
        programs do.
        """
        right = self.sums if right is None else right
        matrix = self.gram.clone()
        matrix.diagonal().add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if not failed:
            return torch.cholesky_solve(right, factor)
        matrix = self.gram.double()
        matrix.diagonal().add_(ridge)
        return torch.linalg.solve(matrix, right.double()).float()
