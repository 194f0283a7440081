"""What a classifier checks before it changes or answers anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from klda.backend import Array, is_torch
from klda.checks import check_choice, check_labels, grouped, unusable, usable
from klda.errors import KldaError
from klda.labels import check_lengths, plain
from klda.member import Member
from klda.statistics import Label

SHAPING_PARAMETERS = {"n_components", "gamma", "random_features", "n_members", "dtype"}


class GuardedClassifier(ClassifierMixin, BaseEstimator):
    """The members of a classifier, and the checks of all that is done with them."""

    _torn = False  # whether a change began and did not end

    n_features_in_: int
    device: str
    dtype: str
    _members: list[Member]

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_members")

    # ---------------------------------------------------------------- of the model

    def _check_parameters(self) -> None:
        """Raise if a parameter has a value that can't be used."""
        check_choice("dtype", self.dtype, ("float32", "float64"))

    def _check_started(self) -> None:
        if not hasattr(self, "_members"):
            raise AttributeError(f"This {type(self).__name__} has learned nothing yet.")
        self._check_whole()

    def _check_whole(self) -> None:
        if self._torn:
            raise KldaError(
                f"This {type(self).__name__} was stopped in the middle of a change and is no "
                "longer whole: load it again from where it was saved, or fit it anew."
            )

    def _check_has_classes(self) -> None:
        if not hasattr(self, "_members"):
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has no classes. "
                "Call fit or partial_fit with samples and labels first."
            )
        self._check_whole()
        if not self._members[0].labels:
            raise NotFittedError(
                f"This {type(self).__name__} has no classes left. Call partial_fit first."
            )

    def _check_known(self, labels: Sequence[Label], parameter: str) -> None:
        known = self._members[0].labels
        for label in labels:
            if label not in known:
                some = ", ".join(repr(name) for name in sorted(known)[:5])
                more = f" and {len(known) - 5} more" if len(known) > 5 else ""
                raise KldaError(
                    f"{parameter} names class {label!r}, which was never learned; "
                    f"known classes: {some}{more}."
                )

    def _columns(self, among: Sequence[Label] | None) -> np.ndarray | None:
        if among is None:
            return None
        wanted = [plain(label) for label in among]
        if not wanted:
            raise KldaError("among=[] names no class; give at least one label, or None for all.")
        if len(set(wanted)) < len(wanted):
            raise KldaError(f"among={wanted!r} names a class twice; give each label once.")
        self._check_known(wanted, "among")
        classes = self._members[0].classes
        return np.searchsorted(classes, np.array(wanted))

    # ---------------------------------------------------------------- of another model

    def _check_same_parameters(self, other: Self) -> None:
        """Raise if the other model is not one that this one, still empty, would have become."""
        mine, theirs = self.get_params(), other.get_params()
        for name in SHAPING_PARAMETERS & mine.keys():
            if mine[name] is not theirs[name] and mine[name] != theirs[name]:
                raise KldaError(
                    f"other was made with {name}={theirs[name]!r}, this model with "
                    f"{name}={mine[name]!r}; make both with the same."
                )

    def _check_mergeable(self, other: Self) -> None:
        if self.n_features_in_ != other.n_features_in_:
            raise KldaError(
                f"other has {other.n_features_in_} input features, this model has "
                f"{self.n_features_in_}; merge models of the same features."
            )
        if self.dtype != other.dtype:
            raise KldaError(
                f"other has dtype={other.dtype!r}, this model dtype={self.dtype!r}; make both with "
                "the same."
            )
        if len(self._members) != len(other._members):
            raise KldaError(
                f"other has n_members={len(other._members)}, this model {len(self._members)}."
            )
        for mine, theirs in zip(self._members, other._members, strict=True):
            if mine.kernel is None or theirs.kernel is None:
                continue
            same_size = mine.kernel.n_components == theirs.kernel.n_components
            if not (same_size and mine.kernel.same_as(theirs.kernel)):
                raise KldaError(
                    f"other has different random features (gamma={theirs.kernel.gamma:g}, "
                    f"n_components={theirs.kernel.n_components}; here gamma="
                    f"{mine.kernel.gamma:g}, n_components={mine.kernel.n_components}). Make both "
                    "models with the same gamma (a number, not 'auto'), n_components and "
                    "random_state (a number, not None)."
                )
        self._check_label_kind(other.classes_.tolist())

    # ---------------------------------------------------------------- of what comes in

    def _check_batch(self, X: Any, y: Any, *, fresh: bool) -> tuple[Array, np.ndarray, list]:
        if y is None:
            raise ValueError(
                f"This {type(self).__name__} estimator requires y to be passed, "
                "but the target y is None."
            )
        samples = self._check_samples(X, fresh=fresh)
        values = y.detach().cpu().numpy() if is_torch(y) else y
        if not isinstance(getattr(values, "dtype", None), np.dtype) and hasattr(values, "to_list"):
            values = values.to_list()  # pandas' own integers would become floats
        if isinstance(values, list | tuple):  # NumPy would turn them into one kind
            check_labels([plain(value) for value in values])
        values = column_or_1d(values, warn=True)
        if len(values) != len(samples):
            raise KldaError(
                f"X has {len(samples)} samples and y has {len(values)} labels; "
                "give one label for each sample (inconsistent numbers of samples)."
            )
        if values.dtype.kind == "O":
            found = [plain(value) for value in values.tolist()]
            check_labels(found)
            values = np.array(found)
        if values.dtype.kind == "f":  # labels, or a regression's targets by mistake
            check_classification_targets(values)
        names, groups = grouped(values)
        labels = names.tolist()
        check_lengths(labels, "y")
        if not fresh:
            self._check_label_kind(labels)
        return samples, groups, labels

    def _check_removal(self, X: Any, y: Any) -> tuple[Array, np.ndarray, list]:
        """Check a batch to be removed: of known classes, no more of each than it has."""
        self._check_has_classes()
        samples, groups, labels = self._check_batch(X, y, fresh=False)
        self._check_known(labels, "y")
        statistics = self._members[0].statistics
        for label, n in zip(labels, np.bincount(groups), strict=True):
            held = int(statistics.counts[statistics.positions[label]])
            if n > held:
                raise KldaError(
                    f"y asks to remove {n} samples of class {label!r}, which has {held}; "
                    "remove at most as many as were learned."
                )
        return samples, groups, labels

    def _check_label_kind(self, labels: Sequence[Label]) -> None:
        known = next(iter(self._members[0].labels), None)
        if known is not None and labels and isinstance(known, str) != isinstance(labels[0], str):
            raise KldaError(
                f"y has labels such as {labels[0]!r} ({type(labels[0]).__name__}), the classes "
                f"known are such as {known!r} ({type(known).__name__}); use one kind."
            )

    def _check_samples(self, X: Any, *, fresh: bool) -> Array:
        if is_torch(X):
            samples = self._check_tensor(X)
        else:
            samples = check_array(
                X, dtype=self.dtype, ensure_all_finite=False, estimator=self, input_name="X"
            )
        if not usable(samples):
            raise unusable(samples)
        if not fresh:
            if is_torch(X):
                self._check_width(int(X.shape[1]))
            else:
                validate_data(self, X=X, reset=False, skip_check_array=True)
        return samples

    def _check_tensor(self, X: Array) -> Array:
        if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
            raise KldaError(
                f"X has shape {tuple(X.shape)}; give a tensor of shape (n_samples, n_features) "
                "with at least one sample and one feature."
            )
        return X.detach().to(getattr(sys.modules["torch"], self.dtype))

    def _check_width(self, n_features: int) -> None:
        if n_features != self.n_features_in_:
            raise KldaError(
                f"X has {n_features} features, but {type(self).__name__} is expecting "
                f"{self.n_features_in_} features as input."
            )
