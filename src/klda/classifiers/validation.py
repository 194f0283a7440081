"""What is checked at the door of an estimator: parameters, samples, labels, other models."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from klda.engine.arrays import Array, Backend, is_torch, on_cpu
from klda.engine.feature_map import RANDOM_FEATURES
from klda.engine.model import MOVED_AT_ONCE, Model
from klda.engine.solution import Solution
from klda.errors import KldaError, check_count
from klda.labels import Label, check_names, checked_label, grouped, plain, plain_labels

if TYPE_CHECKING:
    from klda.classifiers.base import ContinualClassifier

CHOICES = {
    "dtype": ("float32", "float64"),
    "priors": ("auto", "uniform", "empirical"),
    "random_features": RANDOM_FEATURES,
    "combine": ("scores", "probabilities"),
    "rule": ("auto", "lda"),
}
SHAPING_PARAMETERS = {"n_components", "gamma", "random_features", "n_members", "dtype"}
LARGEST_SUM = 1e-8  # of squares of a batch, relative to the largest number


# ---------------------------------------------------------------- parameters


def check_parameters(estimator: BaseEstimator) -> None:
    """Raise if a parameter has a value that can't be used."""
    for name, choices in CHOICES.items():
        value: Any = getattr(estimator, name, choices[0])
        if value not in choices:
            raise KldaError(
                f"{name}={value!r} is not known; use one of {', '.join(map(repr, choices))}."
            )
    for name in ("n_components", "n_members"):
        check_count(name, getattr(estimator, name, 1))
    for name in ("gamma", "ridge"):
        value = getattr(estimator, name, "auto")
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if value != "auto" and not (is_number and np.isfinite(value) and value > 0):
            raise KldaError(f"{name}={value!r} can't be used; give a number above 0, or 'auto'.")


def stored_parameters(estimator: BaseEstimator) -> dict[str, Any]:
    """Return an estimator's parameters as JSON has them."""
    parameters = {
        name: list(value) if isinstance(value, tuple) else plain(value)
        for name, value in estimator.get_params().items()
    }
    if not isinstance(parameters.get("random_state"), int | None):
        parameters["random_state"] = None  # the features drawn with it are stored
    return parameters


# ---------------------------------------------------------------- samples and labels


def checked_samples(
    estimator: ContinualClassifier, X: Any, backend: Backend, *, first: bool = False
) -> Array:
    """Return samples in the estimator's precision, on its device; raise if they can't be used."""
    if is_torch(X):
        if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
            raise KldaError(
                f"X has shape {tuple(X.shape)}; give a tensor of shape (n_samples, n_features) "
                "with at least one sample and one feature."
            )
        samples = X.detach().to(getattr(sys.modules["torch"], estimator.dtype))
    else:
        samples = check_array(
            X, dtype=estimator.dtype, ensure_all_finite=False, estimator=estimator, input_name="X"
        )
    # A GPU looks at samples in less time than it takes to send them.
    if samples.nbytes <= MOVED_AT_ONCE:
        samples = backend.asarray(samples)
    if not _is_usable(samples):
        raise _unusable(samples)
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


def checked_batch(
    estimator: ContinualClassifier, X: Any, y: Any, backend: Backend, *, first: bool = False
) -> tuple[Array, np.ndarray, list[Label]]:
    """Return samples, the group of each, and the label of each group."""
    if y is None:
        raise ValueError(
            f"This {type(estimator).__name__} estimator requires y to be passed, "
            "but the target y is None."
        )
    samples = checked_samples(estimator, X, backend, first=first)
    values = column_or_1d(plain_labels(y, "y"), warn=True)
    if len(values) != len(samples):
        raise KldaError(
            f"X has {len(samples)} samples and y has {len(values)} labels; "
            "give one label for each sample (inconsistent numbers of samples)."
        )
    if values.dtype.kind == "f":  # labels, or a regression's targets by mistake
        check_classification_targets(values)
    labels, groups = grouped(values)
    check_names(labels, "y")
    if not first:
        check_label_kind(estimator.classes_, labels)
    return samples, groups, labels


def _is_usable(samples: Array) -> bool:
    """Whether all values are finite, and their squares too.

    A sum of squares proves it at a fraction of the cost of looking at each value.
    """
    largest = LARGEST_SUM * np.finfo(str(samples.dtype).removeprefix("torch.")).max
    if is_torch(samples):
        return bool(sys.modules["torch"].linalg.vector_norm(samples) < largest**0.5)
    with np.errstate(over="ignore", invalid="ignore"):
        flat = samples.reshape(-1)
        return bool(np.einsum("i,i->", flat, flat) < largest)  # BLAS would wake its threads


def _unusable(samples: Array) -> KldaError:
    """Return the error that says which value can't be used."""
    values = on_cpu(samples)
    strange = np.argwhere(~np.isfinite(values))
    if len(strange):
        row, column = strange[0]
        kind = "NaN" if np.isnan(values[row, column]) else "infinity (inf)"
        return KldaError(
            f"X contains {kind} (row {row}, column {column}); remove such samples or fill the "
            "values."
        )
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    return KldaError(
        f"X contains {values[row, column]:g} (row {row}, column {column}), whose square is too "
        f"large for {values.dtype.name}; scale the features, or use dtype='float64'."
    )


# ---------------------------------------------------------------- known classes


def check_label_kind(classes: np.ndarray, labels: Sequence[Label], parameter: str = "y") -> None:
    """Raise if labels are strings where the known ones are integers, or the other way round."""
    if len(classes) and labels and (classes.dtype.kind == "U") != isinstance(labels[0], str):
        known = classes[0].item()
        raise KldaError(
            f"{parameter} has labels such as {labels[0]!r} ({type(labels[0]).__name__}), but the "
            f"known classes are such as {known!r} ({type(known).__name__}); use one kind."
        )


def check_labels_known(classes: np.ndarray, labels: Sequence[Label], parameter: str) -> None:
    """Raise if a label is none of the known ones, which are sorted."""
    known = set(classes.tolist())
    for label in labels:
        if label not in known:
            some = ", ".join(repr(name) for name in classes[:5].tolist())
            more = f" and {len(known) - 5} more" if len(known) > 5 else ""
            raise KldaError(
                f"{parameter} names class {label!r}, which was never learned; "
                f"known classes: {some}{more}."
            )


def check_removable(known: Model | Solution, groups: np.ndarray, labels: Sequence[Label]) -> None:
    """Raise if more samples are to be removed than were learned."""
    check_labels_known(known.classes, labels, "y")
    counts = dict(zip(known.classes.tolist(), known.class_counts.tolist(), strict=True))
    for label, n in zip(labels, np.bincount(groups).tolist(), strict=True):
        if n > counts[label]:
            raise KldaError(
                f"y asks to remove {n} samples of class {label!r}, which has {counts[label]}; "
                "remove at most as many as were learned."
            )


def checked_name(classes: np.ndarray, old: Label, new: Any) -> Label:
    """Return a class's new name; raise if it can't have that one."""
    check_labels_known(classes, [old], "old")
    new = checked_label("new", new)
    check_label_kind(classes, [new], "new")
    if new in classes.tolist():
        raise KldaError(f"new={new!r} is already a class; choose another name.")
    return new


def columns_of(solution: Solution, among: Sequence[Label]) -> np.ndarray:
    """Return the columns of some classes in a solution's scores."""
    wanted = [plain(label) for label in among]
    if not wanted:
        raise KldaError("among=[] names no class; give at least one label, or None for all.")
    if len(set(wanted)) < len(wanted):
        raise KldaError(f"among={wanted!r} names a class twice; give each label once.")
    check_labels_known(solution.classes, wanted, "among")
    return np.searchsorted(solution.classes, np.array(wanted))


# ---------------------------------------------------------------- another model


def check_mergeable(estimator: ContinualClassifier, other: Any) -> None:
    """Raise if another classifier is of another kind, or has other features or kinds of labels."""
    if type(other) is not type(estimator):
        raise KldaError(
            f"other is a {type(other).__name__}; a {type(estimator).__name__} merges with its kind."
        )
    if not other.__sklearn_is_fitted__():
        return
    if not estimator.__sklearn_is_fitted__():
        _check_same_parameters(estimator, other)
        return
    _check_same_features(estimator, other)
    check_label_kind(estimator.classes_, other.classes_.tolist(), "other")


def _check_same_parameters(estimator: ContinualClassifier, other: ContinualClassifier) -> None:
    """Raise if the other model is not one that this one, still empty, would have become."""
    mine, theirs = estimator.get_params(), other.get_params()
    for name in SHAPING_PARAMETERS & mine.keys():
        if mine[name] is not theirs[name] and mine[name] != theirs[name]:
            raise KldaError(
                f"other was made with {name}={theirs[name]!r}, this model with "
                f"{name}={mine[name]!r}; make both with the same."
            )


def _check_same_features(estimator: ContinualClassifier, other: ContinualClassifier) -> None:
    if estimator.n_features_in_ != other.n_features_in_:
        raise KldaError(
            f"other has {other.n_features_in_} input features, this model has "
            f"{estimator.n_features_in_}; merge models of the same features."
        )
    if estimator.dtype != other.dtype:
        raise KldaError(
            f"other has dtype={other.dtype!r}, this model dtype={estimator.dtype!r}; make both "
            "with the same."
        )
    maps, theirs = estimator.model_.maps, other.model_.maps
    if len(maps) != len(theirs):
        raise KldaError(f"other has n_members={len(theirs)}, this model {len(maps)}.")
    for mine, their in zip(maps, theirs, strict=True):
        if mine.n_components != their.n_components or not mine.same_as(their):
            raise KldaError(
                f"other has different random features (gamma={their.gamma:g}, "
                f"n_components={their.n_components}; here gamma={mine.gamma:g}, "
                f"n_components={mine.n_components}). Make both models with the same gamma (a "
                "number, not 'auto'), n_components and random_state (a number, not None), and both "
                "with klda 0.1 or both with a later version."
            )
