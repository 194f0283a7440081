"""What is checked at the door of an estimator, as scikit-learn does it: samples and labels."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from klda.engine.arrays import Array, is_torch
from klda.engine.checks import check_rows
from klda.errors import KldaError
from klda.labels import Label, check_label_kind, plain_labels

MOST_DENSE = 2**31  # bytes that sparse rows may have as an array


def checked_samples(estimator: BaseEstimator, X: Any, *, first: bool = False) -> Array:
    """Return samples in the estimator's precision; raise if they can't be used.

    The first ones fix the number of features and their names.
    """
    dtype: str = estimator.dtype
    if is_torch(X):
        if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
            raise KldaError(
                f"X has shape {tuple(X.shape)}; give a tensor of shape (n_samples, n_features) "
                "with at least one sample and one feature."
            )
        samples = X.detach().to(getattr(sys.modules["torch"], dtype))
    else:
        samples = check_array(
            X,
            accept_sparse="csr",
            dtype=dtype,
            ensure_all_finite=False,
            estimator=estimator,
            input_name="X",
        )
        samples = _dense(samples) if issparse(samples) else samples
    check_rows(samples)
    if first:
        return samples
    if not is_torch(X):
        try:
            validate_data(estimator, X=X, reset=False, skip_check_array=True)
        except ValueError as error:
            raise KldaError(str(error)) from error
    elif X.shape[1] != estimator.n_features_in_:
        raise KldaError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input."
        )
    return samples


def _dense(rows: Any) -> np.ndarray:
    """Return sparse rows as an array, which is what they would become in any product."""
    size = rows.shape[0] * rows.shape[1] * rows.dtype.itemsize
    if size > MOST_DENSE:
        raise KldaError(
            f"X is sparse, with {rows.shape[0]:,} samples of {rows.shape[1]:,} features: as an "
            f"array it has {size / 2**30:.1f} GiB. Give fewer samples at a time, with partial_fit, "
            "or fewer features, for instance with TruncatedSVD."
        )
    return rows.toarray()


def checked_batch(
    estimator: BaseEstimator,
    X: Any,
    y: Any,
    classes: Iterable[Label],
    *,
    sample_weight: Any = None,
    first: bool = False,
) -> tuple[Array, list[Label]]:
    """Return samples and their labels, of the same kind as the known classes.

    A sample counts as often as its weight says.
    """
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, "
            "but the target y is None."
        )
    samples = checked_samples(estimator, X, first=first)
    values = column_or_1d(plain_labels(y, "y"), warn=True)
    if len(values) != len(samples):
        raise KldaError(
            f"X has {len(samples)} samples and y has {len(values)} labels; "
            "give one label for each sample (inconsistent numbers of samples)."
        )
    if values.dtype.kind == "f":  # labels, or a regression's targets by mistake
        check_classification_targets(values)
    labels: list[Label] = values.tolist()
    check_label_kind(classes, labels)
    if sample_weight is None:
        return samples, labels
    times = _times(sample_weight, len(labels))
    return samples[times], [labels[i] for i in times]


def _times(sample_weight: Any, count: int) -> np.ndarray:
    """Return the number of each sample, as often as its weight says."""
    weights = np.asarray(sample_weight, dtype=float)
    if weights.shape != (count,):
        raise KldaError(
            f"sample_weight has shape {weights.shape}; give one weight for each of {count} samples."
        )
    if not ((weights >= 0) & (weights == np.floor(weights)) & (weights < np.inf)).all():
        raise KldaError(
            "sample_weight must be whole numbers from 0 on: a weight is how often a sample counts."
        )
    if not weights.any():
        raise KldaError("sample_weight is zero for every sample: nothing would be learned.")
    return np.repeat(np.arange(count), weights.astype(np.int64))


def not_fitted(estimator: BaseEstimator, *, was_fitted: bool) -> NotFittedError:
    """Return the error of an estimator without classes."""
    name = type(estimator).__name__
    if was_fitted:
        return NotFittedError(f"This {name} has no classes left. Call partial_fit first.")
    return NotFittedError(
        f"This {name} instance is not fitted yet: it has no classes. "
        "Call fit or partial_fit with samples and labels first."
    )
