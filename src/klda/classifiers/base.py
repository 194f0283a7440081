"""What all classifiers share: a scikit-learn estimator around a model and its solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import validate_data

from klda import __version__
from klda.classifiers.validation import (
    check_labels_known,
    check_mergeable,
    check_parameters,
    check_removable,
    checked_batch,
    checked_name,
    checked_samples,
    columns_of,
    stored_parameters,
)
from klda.engine.arrays import Array, Backend
from klda.engine.check_learned import check_learned
from klda.engine.feature_map import FeatureMap
from klda.engine.fitted import Fitted
from klda.engine.model import Model, choose_backend
from klda.engine.rule import Settings
from klda.engine.solution import Answer, Solution, softmax
from klda.errors import REFUSED, KldaError, check_count, check_fraction
from klda.labels import Label


def _has_scatter(estimator: ContinualClassifier) -> bool:
    return not estimator.nearest_mean


class ContinualClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that learns new classes at any time: settings, a model and its solution.

    Subclasses have a constructor, and say which feature maps they draw.
    """

    nearest_mean: ClassVar[bool] = False  # by class means alone, without a covariance

    device: str
    dtype: str
    n_features_in_: int
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

        Labels never seen before start new classes. ``classes`` is ignored; it is accepted so that
        code written for scikit-learn's ``partial_fit`` runs.
        """
        if not self.__sklearn_is_fitted__():
            return self._start(X, y)
        settings, batch = self._settings(), checked_batch(self, X, y, self._known().backend)
        with self._fitted.changing() as model:
            model.add(*batch, gather=settings.calibrated)
        return self

    def _start(self, X: Any, y: Any, *, solved: bool = False) -> Self:
        """Learn the first batch into a new model; on an error the old one stays."""
        settings, backend = self._settings(), choose_backend(self.device, self.dtype, X)
        batch = checked_batch(self, X, y, backend, first=True)
        model = self._new_model(batch[0], backend)
        model.add(*batch, gather=settings.calibrated)
        fitted = Fitted(model)
        if solved:
            fitted.calibrated_solution(settings)
        validate_data(self, X=X, reset=True, skip_check_array=True)
        self._fitted = fitted
        return self

    def _new_model(self, samples: Array, backend: Backend) -> Model:
        maps = self._maps(samples, backend)
        return Model.of_maps(maps, with_scatter=not self.nearest_mean)

    def remove(self, X: Any, y: Any) -> Self:
        """Undo what learning these samples did, exactly; a class without samples left is dropped.

        The samples and their labels must have been learned before.
        """
        batch = self._checked_removal(X, y)
        with self._fitted.changing() as model:
            model.remove(*batch)
        return self

    def _checked_removal(self, X: Any, y: Any) -> tuple[Array, np.ndarray, list[Label]]:
        """Check a batch to be removed: of known classes, no more of each than it has."""
        known = self._known(with_classes=True)
        samples, groups, labels = checked_batch(self, X, y, known.backend)
        check_removable(known, groups, labels)
        return samples, groups, labels

    def check_learned(self, X: Any, y: Any) -> None:
        """Raise `NotLearnedError` if samples can't have been learned with these labels."""
        batch = self._checked_removal(X, y)
        if not self.nearest_mean:
            self._fitted.ensure_solved(self._settings())
        check_learned(self.model_, *batch)

    def forget(self, label: Label) -> Self:
        """Drop a class from the answers.

        The shared covariance keeps its trace; with the samples at hand, `remove` leaves none.
        """
        self.detach(label)
        return self

    def detach(self, label: Label) -> Model:
        """Drop a class from the answers, and return what `attach` brings it back with."""
        check_labels_known(self._known(with_classes=True).classes, [label], "label")
        with self._fitted.changing() as model:
            return model.drop(label)

    def attach(self, part: Model) -> Self:
        """Add a part with the same feature maps: a class that was detached, or a batch's model."""
        settings = self._settings()
        with self._fitted.changing() as model:
            model.merge(part, gather=settings.calibrated)
        return self

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
        first = not self.__sklearn_is_fitted__()
        if first and not len(y):
            return self
        backend = choose_backend(self.device, self.dtype, X) if first else self._known().backend
        hints = checked_batch(self, X, y, backend, first=first) if len(y) else None
        if hints is not None and len(hints[2]) != len(hints[0]):
            raise KldaError("y names a class twice; give one hint per class.")
        if first and hints is not None:
            fitted = Fitted(self._new_model(hints[0], backend))
            validate_data(self, X=X, reset=True, skip_check_array=True)
            self._fitted = fitted
        with self._fitted.changing() as model:
            model.hint(hints)
        return self

    def rename(self, old: Label, new: Label) -> Self:
        """Give a class another name, one that no other class has."""
        new = checked_name(self._known(with_classes=True).classes, old, new)
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
        settings = self._settings()
        with self._fitted.changing() as model:
            model.merge(other.model_, gather=settings.calibrated)
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
        positions = solution.best(checked_samples(self, X, solution.backend), columns)
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
        check_count("k", k)
        solution, columns = self._ask(among, judged=True)
        samples = checked_samples(self, X, solution.backend)
        return solution.likeliest(samples, int(k), columns)

    def scores(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Scores ``(n_samples, n_classes)``, one column per class, even with two classes.

        ``X`` and ``among`` as in `predict`; columns follow ``among``, or ``classes_``.
        """
        solution, columns = self._ask(among)
        return solution.scores(checked_samples(self, X, solution.backend), columns)

    def decision_function(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Scores as scikit-learn has them: for two classes, the second's minus the first's."""
        scores = self.scores(X, among)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Probabilities ``(n_samples, n_classes)``; rows sum to one, columns as in `scores`."""
        solution, columns = self._ask(among, judged=True)
        scores = solution.scores(checked_samples(self, X, solution.backend), columns)
        return softmax(scores.astype(np.float64) / solution.temperature)

    @available_if(_has_scatter)
    def novelty(self, X: Any) -> np.ndarray:
        """Relative Mahalanobis distance: how unlike anything learned samples are."""
        solution, _ = self._ask()
        return solution.novelty(checked_samples(self, X, solution.backend))

    @available_if(_has_scatter)
    def threshold(self, refused: float = REFUSED) -> float:
        """Return the novelty beyond which a sample is unknown; infinity while that is not known.

        ``refused`` is the fraction of samples of known classes that may be taken for unknown. While
        the model still holds its samples, expect about 1.5 times this fraction.
        """
        check_fraction("refused", refused)
        solution = self.solution_
        if solution.evidence is None:
            raise KldaError(
                "calibrated=False: without it nothing is kept that tells known inputs from unknown "
                "ones. Make the model with calibrated=True."
            )
        return solution.threshold(refused)

    @available_if(_has_scatter)
    def is_known(self, X: Any, *, refused: float = REFUSED, by_class: bool = False) -> np.ndarray:
        """Say whether samples are like anything learned; ``refused`` as for `threshold`.

        With ``by_class``, by the threshold of the predicted class, if it has one.
        """
        solution = self.solution_
        samples = checked_samples(self, X, solution.backend)
        limit: Any = self.threshold(refused)
        if by_class:
            own = solution.class_thresholds(refused)
            answers = solution.classes[solution.best(samples)].tolist()
            limit = np.array([own.get(label, limit) for label in answers])
        return solution.novelty(samples) <= limit

    def answer(self, X: Any, *, top: int = 5, refused: float = REFUSED) -> list[Answer]:
        """Answer in one pass: the ``top`` likeliest classes, and whether samples are known.

        ``refused`` as for `threshold`.
        """
        check_fraction("refused", refused)
        solution = self.solution_
        return solution.answer(checked_samples(self, X, solution.backend), top, refused)

    # ---------------------------------------------------------------- what it knows

    @property
    def classes_(self) -> np.ndarray:
        """Labels of the classes known now, sorted."""
        return self._known().classes.copy()

    @property
    def n_classes_(self) -> int:
        """Number of classes known now."""
        return len(self._known().classes)

    @property
    def class_count_(self) -> np.ndarray:
        """Samples learned of each class, in the order of ``classes_``."""
        return self._known().class_counts.copy()

    @property
    def counts_(self) -> dict[Label, int]:
        """Samples learned of each class, sorted by label; empty before anything was learned."""
        if not self.__sklearn_is_fitted__():
            return {}
        known = self._known()
        return dict(zip(known.classes.tolist(), known.class_counts.tolist(), strict=True))

    @property
    def model_(self) -> Model:
        """All that was learned."""
        self._known()
        return self._fitted.model

    @property
    def solution_(self) -> Solution:
        """The solved classifier, with all the evidence there is: immutable."""
        return self._ask(judged=True)[0]

    @property
    def leaves_trace(self) -> bool:
        """Whether a class that is dropped leaves a trace in the covariance."""
        return not self.nearest_mean and not self.holds_samples

    @property
    def holds_samples(self) -> bool:
        """Whether it consists of the samples themselves, because they are few."""
        return self.__sklearn_is_fitted__() and self._fitted.holds_samples

    @property
    def temperature_(self) -> float:
        """What scores are divided by before they become probabilities."""
        return self.solution_.temperature

    @property
    def ridge_(self) -> float:
        """The ridge in use, relative to the mean diagonal of the covariance."""
        size = getattr(self, "n_components", self.n_features_in_)
        self._known()
        return self._settings().relative_ridge(self._fitted.weighed_counts(), size)

    @property
    def means_(self) -> np.ndarray:
        """Class means in feature space, one row per class; one array per member of an ensemble."""
        model = self.model_.folded()
        at, to_numpy = model.statistics.order, model.backend.to_numpy
        return self._each([to_numpy(member.statistics.means)[at] for member in model.members])

    @property
    def covariance_(self) -> np.ndarray:
        """The covariance shared by all classes, without the ridge; one per member."""
        self._known()
        return self._each(self._fitted.covariance())

    @property
    def coef_(self) -> np.ndarray:
        """Weights, one row per class, in the order of ``classes_``; one array per member."""
        solution, _ = self._ask()
        return self._each([solution.backend.to_numpy(rule.weights) for rule in solution.rules])

    @property
    def intercept_(self) -> np.ndarray:
        """Biases, in the order of ``classes_``; one array per member."""
        solution, _ = self._ask()
        return self._each([solution.backend.to_numpy(rule.biases) for rule in solution.rules])

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
        self._known(with_classes=solved)
        arrays, meta = self._fitted.pack(self._settings(), compact=compact, solved=solved)
        names = getattr(self, "feature_names_in_", None)
        own = {
            "kind": type(self).__name__,
            "parameters": stored_parameters(self),
            "feature_names": None if names is None else names.tolist(),
        }
        return arrays, own | meta

    @classmethod
    def unpack(
        cls, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], device: str | None = None
    ) -> Self:
        """Return what `pack` described; see `klda.classifiers.unpack`."""
        parameters = dict(meta["parameters"])
        unknown = sorted(set(parameters) - set(cls._get_param_names()))
        if unknown:
            raise KldaError(
                f"The model was made by a newer version of klda: its {cls.__name__} has a "
                f"parameter {unknown[0]!r}, which klda {__version__} does not know. Upgrade klda."
            )
        if "rule" in cls._get_param_names():  # made before there was another: it answers as it did
            parameters.setdefault("rule", "lda")
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

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def _known(self, *, with_classes: bool = False) -> Model | Solution:
        """Return what knows classes, counts and feature maps; raise if there is nothing."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has no classes. "
                "Call fit or partial_fit with samples and labels first."
            )
        known = self._fitted.known
        if with_classes and not len(known.classes):
            raise NotFittedError(
                f"This {type(self).__name__} has no classes left. Call partial_fit first."
            )
        return known

    def _ask(
        self, among: Sequence[Label] | None = None, *, judged: bool = False
    ) -> tuple[Solution, np.ndarray | None]:
        """Return the solution, solved if it has to be, and the columns of some classes."""
        self._known(with_classes=True)
        solve = self._fitted.calibrated_solution if judged else self._fitted.solution
        solution = solve(self._settings())
        return solution, None if among is None else columns_of(solution, among)

    def _each(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the array of the only member, or of all members of an ensemble."""
        return np.stack(arrays) if hasattr(self, "n_members") else arrays[0]

    def _maps(self, samples: Array, backend: Backend) -> list[FeatureMap]:
        """Return the feature maps of a new model; here the features as they are."""
        return [FeatureMap(backend, int(samples.shape[1]), int(samples.shape[1]))]

    def _settings(self) -> Settings:
        """Return what the user chose; raise if a parameter can't be used."""
        check_parameters(self)
        return Settings.of(vars(self), nearest_mean=self.nearest_mean)

    def _take_over(self, other: Self, fitted: Fitted) -> Self:
        """Become fitted, to the features of another classifier."""
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))
        self._fitted = fitted
        return self
