"""What all classifiers share: a scikit-learn estimator around a model and its solution."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from klda.classifiers.attributes import FittedAttributes
from klda.classifiers.validation import (
    check_labels_known,
    check_mergeable,
    check_number,
    check_parameters,
    check_refused,
    check_removable,
    checked_batch,
    checked_name,
    checked_samples,
    described,
    known_parameters,
)
from klda.engine.arrays import Array, Backend
from klda.engine.check_learned import check_learned
from klda.engine.feature_map import FeatureMap
from klda.engine.fitted import Fitted
from klda.engine.held_rows import HeldRows
from klda.engine.model import Model, choose_backend
from klda.engine.solution import Answer, softmax
from klda.engine.solve import Settings
from klda.errors import KldaError
from klda.labels import Label


def _has_scatter(estimator: ContinualClassifier) -> bool:
    return not estimator.nearest_mean


class ContinualClassifier(FittedAttributes, ClassifierMixin, BaseEstimator):
    """A classifier that learns new classes at any time: settings, a model and its solution.

    Subclasses have a constructor, and say which feature maps they draw.
    """

    device: str
    dtype: str
    _fitted: Fitted

    # ---------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch, forgetting whatever was learned before.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples: NumPy array, torch tensor, pandas or polars frame.
        y : array-like of shape (n_samples,)
            Labels, strings or integers.

        Returns
        -------
        self
        """
        return self._start(X, y, solved=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more samples, of known classes or of new ones, at any time.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        y : array-like of shape (n_samples,)
            Labels; labels never seen before start new classes.
        classes : ignored
            Accepted so that code written for scikit-learn's ``partial_fit`` runs.

        Returns
        -------
        self
        """
        if not self.__sklearn_is_fitted__():
            return self._start(X, y)
        settings, batch = self._settings(), checked_batch(self, X, y)
        with self._fitted.changing() as model:
            model.add(*batch, gather=settings.calibrated)
        return self

    def _start(self, X: Any, y: Any, *, solved: bool = False) -> Self:
        """Learn the first batch into a new model; on an error the old one stays."""
        settings = self._settings()
        samples, groups, labels = checked_batch(self, X, y, first=True)
        backend = choose_backend(self.device, self.dtype, samples)
        model = self._new_model(samples, backend)
        model.add(samples, groups, labels, gather=settings.calibrated)
        fitted = Fitted(model)
        if solved:
            fitted.calibrated_solution(settings)
        validate_data(self, X=X, reset=True, skip_check_array=True)
        self._fitted = fitted
        return self

    def _new_model(self, samples: Array, backend: Backend) -> Model:
        return Model.of_maps(
            self._maps(samples, backend),
            with_scatter=not self.nearest_mean,
            holds=self._settings().rule == "auto",
        )

    def remove(self, X: Any, y: Any) -> Self:
        """Undo what learning these samples did, exactly.

        A class without samples left is dropped.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples that were learned before.
        y : array-like of shape (n_samples,)
            Their labels.

        Returns
        -------
        self
        """
        batch = self._checked_removal(X, y)
        with self._fitted.changing() as model:
            model.remove(*batch)
        return self

    def _checked_removal(self, X: Any, y: Any) -> tuple[Array, np.ndarray, list[Label]]:
        """Check a batch to be removed: of known classes, no more of each than it has."""
        known = self._with_classes()
        samples, groups, labels = checked_batch(self, X, y)
        check_removable(known, groups, labels)
        return samples, groups, labels

    def forget(self, label: Label) -> Self:
        """Drop a class from the answers.

        The shared covariance keeps its trace; with the samples at hand, `remove` leaves none.

        Parameters
        ----------
        label : str or int
            The class.

        Returns
        -------
        self
        """
        self.detach(label)
        return self

    def detach(self, label: Label) -> Model:
        """Drop a class from the answers, and return what `attach` brings it back with."""
        check_labels_known(self._with_classes().classes, [label], "label")
        with self._fitted.changing() as model:
            return model.drop(label)

    def attach(self, part: Model) -> Self:
        """Add a part with the same feature maps: a class that was detached, or a batch's model."""
        with self._fitted.changing() as model:
            model.merge(part)
        return self

    def check_learned(self, X: Any, y: Any) -> None:
        """Raise `NotLearnedError` if samples can't have been learned with these labels."""
        batch = self._checked_removal(X, y)
        if not self.nearest_mean:
            self._fitted.ensure_solved(self._settings())
        check_learned(self.model_, *batch)

    def hint(self, X: Any, y: Any) -> Self:
        """Say what classes are like, one row each, in place of all hints given before.

        A hint, such as the encoded name of a class, counts as a sample while the class has few of
        its own, if hints prove to tell classes apart. A class can be known by its hint alone.

        Parameters
        ----------
        X : array-like of shape (n_classes, n_features)
            The hints.
        y : array-like of shape (n_classes,)
            Their classes, each once.

        Returns
        -------
        self
        """
        if not len(y):
            if self.__sklearn_is_fitted__():
                with self._fitted.changing() as model:
                    model.hint(model.hints.drop(model.hints.counts))
            return self
        first = not self.__sklearn_is_fitted__()
        rows, groups, labels = checked_batch(self, X, y, first=first)
        if len(labels) != len(rows):
            raise KldaError("y names a class twice; give one hint per class.")
        if first:
            backend = choose_backend(self.device, self.dtype, rows)
            fitted = Fitted(self._new_model(rows, backend))
            validate_data(self, X=X, reset=True, skip_check_array=True)
            self._fitted = fitted
        with self._fitted.changing() as model:
            empty = HeldRows(np.empty((0, model.n_features), model.backend.dtype))
            model.hint(empty.add(rows, groups, labels))
        return self

    def rename(self, old: Label, new: Label) -> Self:
        """Give a class another name.

        Parameters
        ----------
        old, new : str or int
            The class, and a name no other class has.

        Returns
        -------
        self
        """
        new = checked_name(self._with_classes().classes, old, new)
        with self._fitted.changing() as model:
            model.rename(old, new)
        return self

    def merge(self, other: Self) -> Self:
        """Add all that another model learned, as if its samples had been learned here.

        Parameters
        ----------
        other : estimator of the same kind
            A model with the same random features: the same ``gamma``, ``random_state``,
            ``n_components`` and number of input features. It is not changed.

        Returns
        -------
        self
        """
        check_mergeable(self, other)
        if not other.__sklearn_is_fitted__():
            return self
        if not self.__sklearn_is_fitted__():
            return self._take_over(other, other._fitted.copy())
        with self._fitted.changing() as model:
            model.merge(other.model_)
        return self

    # ---------------------------------------------------------------- answers

    def predict(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Labels of the likeliest classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        among : list of labels, optional
            Answer within these classes only.

        Returns
        -------
        ndarray of shape (n_samples,)
        """
        solution, columns = self._ask(among)
        positions = solution.best(checked_samples(self, X), 1, columns)[0][:, 0]
        return solution.classes[positions if columns is None else columns[positions]]

    def predict_top(
        self, X: Any, k: int = 5, among: Sequence[Label] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Labels and probabilities of the k likeliest classes; ``X`` and ``among`` as in `predict`.

        Memory does not grow with samples times classes.

        Returns
        -------
        labels : ndarray of shape (n_samples, k)
            The likeliest first; of equally likely classes, the first in ``classes_``.
        probabilities : ndarray of shape (n_samples, k)
            Fractions of all classes' probability, not only of these k.
        """
        check_number("k", k, kind=numbers.Integral)
        solution, columns = self._ask(among, judged=True)
        samples, temperature = checked_samples(self, X), solution.temperature
        positions, scores, log_total = solution.best(samples, int(k), columns, temperature)
        labels = solution.classes[positions if columns is None else columns[positions]]
        # In float32 some probabilities would exceed one.
        return labels, np.exp(scores.astype(np.float64) / temperature - log_total[:, None])

    def scores(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Scores ``(n_samples, n_classes)``, one column per class also if there are two.

        ``X`` and ``among`` as in `predict`; columns follow ``among``, or ``classes_``.
        """
        solution, columns = self._ask(among)
        return solution.scores(checked_samples(self, X), columns)

    def decision_function(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Scores as scikit-learn has them: for two classes, the second's minus the first's."""
        scores = self.scores(X, among)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Probabilities ``(n_samples, n_classes)``; rows sum to one, columns as in `scores`."""
        solution, columns = self._ask(among, judged=True)
        scores = solution.scores(checked_samples(self, X), columns)
        return softmax(scores.astype(np.float64) / solution.temperature)

    # ---------------------------------------------------------------- known and unknown

    @available_if(_has_scatter)
    def novelty(self, X: Any) -> np.ndarray:
        """Relative Mahalanobis distance: how unlike anything learned samples are."""
        solution, _ = self._ask()
        return solution.novelty(checked_samples(self, X))

    @available_if(_has_scatter)
    def threshold(self, refused: float = 0.05) -> float:
        """Return the novelty beyond which a sample is unknown; infinity while that is not known.

        ``refused`` is the fraction of samples of known classes that may be taken for unknown.
        """
        check_refused(refused)
        solution = self.solution_
        if solution.evidence is None:
            raise KldaError(
                "calibrated=False: without it nothing is kept that tells known inputs from unknown "
                "ones. Make the model with calibrated=True."
            )
        return solution.threshold(refused)

    @available_if(_has_scatter)
    def is_known(self, X: Any, *, refused: float = 0.05, by_class: bool = False) -> np.ndarray:
        """Say whether samples are like anything learned.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples.
        refused : float
            Fraction of samples of known classes that may be taken for unknown.
        by_class : bool
            Use the threshold of the class that a sample would be given, if it has one.

        Returns
        -------
        ndarray of bool, shape (n_samples,)
        """
        solution, samples = self.solution_, checked_samples(self, X)
        limit: Any = self.threshold(refused)
        if by_class:
            own = solution.class_thresholds(refused)
            answers = solution.classes[solution.best(samples, 1)[0][:, 0]].tolist()
            limit = np.array([own.get(label, limit) for label in answers])
        return solution.novelty(samples) <= limit

    def answer(self, X: Any, *, top: int = 5, refused: float = 0.05) -> list[Answer]:
        """Answer in one pass: the ``top`` likeliest classes, and whether samples are known.

        ``refused`` is the fraction of samples of known classes that may be taken for unknown.
        """
        check_refused(refused)
        return self.solution_.answer(checked_samples(self, X), top, refused)

    # ---------------------------------------------------------------- as a value

    def copy(self) -> Self:
        """Return an independent copy; one that can only predict shares its arrays."""
        if self.__sklearn_is_fitted__() and self._fitted.predicts_only:
            return self.frozen()
        return clone(self).merge(self)

    def empty(self) -> Self:
        """Return a classifier with the same feature maps that has learned nothing."""
        return clone(self)._take_over(self, Fitted(self.model_.empty()))

    def frozen(self) -> Self:
        """Return a classifier that answers as this one does now, by the same solution, forever."""
        return clone(self)._take_over(self, Fitted(None, self.solution_, self._settings()))

    def pack(
        self, compact: bool = False, solved: bool = True
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return all that the classifier knows as named arrays and JSON-able values.

        ``compact`` leaves out what only learning needs; not ``solved``, what only answering needs.
        """
        self._with_classes() if solved else self._known()
        arrays, meta = self._fitted.pack(self._settings(), compact=compact, solved=solved)
        return arrays, described(self) | meta

    @classmethod
    def unpack(
        cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], device: str | None = None
    ) -> Self:
        """Return the classifier that `pack` described; see `klda.classifiers.unpack`."""
        parameters = known_parameters(cls, meta["parameters"])
        if "rule" in cls().get_params() and "rule" not in parameters:
            parameters["rule"] = "lda"  # made before there was another: it answers as it did
        model = cls(**parameters)
        if device is not None:
            model.set_params(device=device)
        model.n_features_in_ = meta["n_features"]
        if meta.get("feature_names") is not None:
            model.feature_names_in_ = np.array(meta["feature_names"], dtype=object)
        backend = choose_backend(model.device, model.dtype)
        model._fitted = Fitted.unpack(arrays, meta, model._settings(), backend)
        return model

    # ---------------------------------------------------------------- inside

    def _maps(self, samples: Array, backend: Backend) -> list[FeatureMap]:
        """Return the feature maps of a new model; here the features as they are."""
        return [FeatureMap(backend, int(samples.shape[1]), int(samples.shape[1]))]

    def _settings(self) -> Settings:
        """Return what the user chose; raise if a parameter can't be used."""
        check_parameters(self)
        names = [each.name for each in fields(Settings) if hasattr(self, each.name)]
        return Settings(**{name: getattr(self, name) for name in names})

    def _take_over(self, other: Self, fitted: Fitted) -> Self:
        """Become fitted, to the features of another classifier."""
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))
        self._fitted = fitted
        return self
