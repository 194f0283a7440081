"""The nearest class mean."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.utils.validation import validate_data

from klda.classifiers.base import ScoringClassifier
from klda.classifiers.validation import checked_batch, checked_samples, not_fitted
from klda.engine.arrays import on_cpu
from klda.labels import Label


class NCM(ScoringClassifier):
    """Nearest class mean by cosine, learned class by class.

    Parameters
    ----------
    dtype : {"float32", "float64"}
        Precision of the samples; means are kept in double precision.
    """

    n_features_in_: int
    sums_: dict[Label, np.ndarray]  # of the samples of each class
    counts_: dict[Label, int]

    def __init__(self, *, dtype: str = "float32") -> None:
        self.dtype = dtype

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch, forgetting whatever was learned before."""
        batch = checked_batch(self, X, y, (), first=True)
        validate_data(self, X=X, reset=True, skip_check_array=True)
        self.sums_, self.counts_ = {}, {}
        return self._add(*batch)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more samples, of known classes or of new ones; ``classes`` is ignored."""
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y)
        return self._add(*checked_batch(self, X, y, self.counts_))

    def _add(self, samples: Any, labels: list[Label]) -> Self:
        rows, names = on_cpu(samples).astype(np.float64), np.asarray(labels)
        sums, counts = dict(self.sums_), dict(self.counts_)
        for label in dict.fromkeys(labels):
            own = rows[names == label]
            sums[label] = sums.get(label, 0.0) + own.sum(axis=0)
            counts[label] = counts.get(label, 0) + len(own)
        self.sums_, self.counts_ = sums, counts
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "sums_")

    @property
    def classes_(self) -> np.ndarray:
        """Labels of the classes known now, sorted."""
        if not self.__sklearn_is_fitted__():
            raise not_fitted(self, was_fitted=False)
        return np.array(sorted(self.counts_))

    @property
    def means_(self) -> np.ndarray:
        """Class means, in the order of ``classes_``."""
        return np.stack([self.sums_[c] / self.counts_[c] for c in self.classes_.tolist()])

    def scores(self, X: Any) -> np.ndarray:
        """Cosines ``(n_samples, n_classes)`` with the class means."""
        means = self.means_
        rows, tiny = on_cpu(checked_samples(self, X)).astype(np.float64), np.finfo(np.float64).tiny
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), tiny)
        means = means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), tiny)
        return np.asarray(rows @ means.T)
