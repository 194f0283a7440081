"""The nearest class mean."""

from __future__ import annotations

import numpy as np

from klda.backend import Array
from klda.classifiers.continual import ContinualClassifier
from klda.discriminant import Solution


class NCM(ContinualClassifier):
    """Nearest class mean by cosine.

    Parameters
    ----------
    device : str
        ``"auto"``, ``"cpu"``, or a torch device such as ``"cuda"``.
    dtype : {"float32", "float64"}
        Precision of the means.
    """

    _keeps_scatter = False

    def __init__(self, *, device: str = "auto", dtype: str = "float32") -> None:
        self.device = device
        self.dtype = dtype

    @property
    def coef_(self) -> np.ndarray:
        """Class means of unit length, in the order of ``classes_``."""
        means = self.means_
        lengths = np.linalg.norm(means, axis=1, keepdims=True)
        return means / np.maximum(lengths, np.finfo(means.dtype).tiny)

    def _solve(self) -> list[Solution]:
        if self._solutions is None:  # two threads at once make the same one
            backend = self._members[0].backend
            directions = backend.asarray(self.coef_)
            counts = self.class_count_
            biases = backend.zeros((len(counts),))
            labels = tuple(self.classes_.tolist())
            self._solutions = [Solution(labels, directions, biases, counts, 0.0, 0.0, 1.0, None)]
        return self._solutions

    def _lifted(self, samples: Array) -> list[Array]:
        lengths = (samples * samples).sum(1)[:, None] ** 0.5
        return [samples / (lengths + float(np.finfo(self._members[0].backend.dtype).tiny))]
