"""What KLDA and LDA share: scikit-learn's contract around an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import validate_data

from klda.checks import REFUSED, check_count, check_fraction
from klda.classifiers.validation import checked_batch, checked_samples, not_fitted
from klda.engine.checks import check_calibrated, check_same_parameters
from klda.engine.engine import Engine
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.solution import Answer, Solution, softmax
from klda.errors import KldaError
from klda.labels import Label, check_labels_known, checked_name


class ScoringClassifier(ClassifierMixin, BaseEstimator):
    """A classifier that answers by scores, one column per class."""

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores as scikit-learn has them: for two classes, the second's minus the first's."""
        scores = np.asarray(self.scores(X))
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """Labels of the classes with the highest scores."""
        return self.classes_[self.scores(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Softmax of the scores."""
        return softmax(self.scores(X))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class ContinualClassifier(ScoringClassifier):
    """A classifier that learns new classes at any time: parameters and an engine."""

    n_features_in_: int
    _engine: Engine

    # ---------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from scratch, forgetting whatever was learned before.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Samples: NumPy array, sparse matrix, torch tensor, pandas or polars frame.
        y : array-like of shape (n_samples,)
            Labels, strings or integers.
        sample_weight : array-like of shape (n_samples,), optional
            How often each sample counts, in whole numbers; 0 leaves it out.
        """
        self._start(X, y, sample_weight)
        self._engine.calibrated()
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn more samples, of known classes or of new ones, at any time.

        Labels never seen before start new classes. ``classes`` is ignored; it is accepted so that
        code written for scikit-learn's ``partial_fit`` runs. ``sample_weight`` as for `fit`.
        """
        if not self.__sklearn_is_fitted__():
            return self._start(X, y, sample_weight)
        batch = checked_batch(self, X, y, self.counts_, sample_weight=sample_weight)
        self._known(with_classes=False).add(*batch)
        return self

    def _start(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Learn the first batch into a new engine; on an error the old one stays."""
        engine = Engine(self._parameters())
        batch = checked_batch(self, X, y, (), sample_weight=sample_weight, first=True)
        engine.add(*batch)
        validate_data(self, X=X, reset=True, skip_check_array=True)
        self._engine = engine
        return self

    def remove(self, X: Any, y: Any) -> Self:
        """Undo what learning these samples did, exactly; a class without samples left is dropped.

        Samples that were never learned with these labels are refused, as far as that can be told.
        """
        engine = self._known()
        engine.remove(*checked_batch(self, X, y, engine.counts))
        return self

    def forget(self, label: Label) -> Self:
        """Drop a class from the answers.

        The shared covariance keeps its trace, unless the samples are few enough to be kept; with
        the samples at hand, `remove` leaves none.
        """
        engine = self._known()
        engine.drop(*check_labels_known(engine.counts, [label], "label"))
        return self

    def rename(self, old: Label, new: Label) -> Self:
        """Give a class another name, one that no other class has."""
        engine = self._known()
        engine.rename(*checked_name(engine.counts, old, new))
        return self

    def merge(self, other: Self) -> Self:
        """Add all that another model learned, as if its samples had been learned here.

        Parameters
        ----------
        other : estimator of the same kind
            A model with the same random features: the same ``gamma``, ``random_state``,
            ``n_components`` and number of input features. It is not changed.
        """
        if type(other) is not type(self):
            raise KldaError(
                f"other is a {type(other).__name__}; a {type(self).__name__} merges with its kind."
            )
        if not other.__sklearn_is_fitted__():
            return self
        if not self.__sklearn_is_fitted__():
            mine, theirs = self._parameters(), other._parameters()
            has_seed = isinstance(mine.random_state, int | np.integer)
            check_same_parameters(mine, theirs, *["random_state"] * has_seed)
            return self._become(other, other._engine.copy())
        self._engine.merge(other.model_)
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
        """
        return self._solution().answer(checked_samples(self, X), among=among).labels[:, 0]

    def predict_top(
        self, X: Any, k: int = 5, among: Sequence[Label] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Labels and probabilities of the k likeliest classes; ``X`` and ``among`` as in `predict`.

        Both have the shape ``(n_samples, k)``, or fewer columns if there are fewer classes; the
        likeliest first, and of equally likely classes the first in ``classes_``. Memory does not
        grow with samples times classes.
        """
        check_count("k", k)
        answers = self.solution_.answer(checked_samples(self, X), int(k), among=among)
        return answers.labels, answers.probabilities

    def scores(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Scores ``(n_samples, n_classes)``, one column per class, even with two classes.

        ``X`` and ``among`` as in `predict`; columns follow ``among``, or ``classes_``.
        """
        return self._solution().scores(checked_samples(self, X), among)

    def predict_proba(self, X: Any, among: Sequence[Label] | None = None) -> np.ndarray:
        """Probabilities ``(n_samples, n_classes)``; rows sum to one, columns as in `scores`."""
        return self.solution_.probabilities(checked_samples(self, X), among)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the probabilities; see `predict_proba`."""
        return np.log(self.predict_proba(X))

    def novelty(self, X: Any) -> np.ndarray:
        """Relative Mahalanobis distance: how unlike anything learned samples are."""
        return self._solution().novelty(checked_samples(self, X))

    def threshold(self, reject: float = REFUSED) -> float:
        """Return the novelty beyond which a sample is unknown; infinity while that is not known.

        ``reject`` is the fraction of samples of known classes that may be taken for unknown.
        """
        check_fraction("reject", reject)
        check_calibrated(self._parameters())
        return self.solution_.threshold(reject)

    def is_known(self, X: Any, *, reject: float = REFUSED, by_class: bool = False) -> np.ndarray:
        """Whether samples are like anything learned; ``reject`` as for `threshold`.

        With ``by_class``, by the threshold of the predicted class, if it has one.
        """
        self.threshold(reject)  # raises if there is none
        solution = self.solution_
        answers = solution.answer(checked_samples(self, X), novelty=True)
        return answers.novelty <= solution.limits(answers.labels[:, 0], reject, by_class=by_class)

    def answer(self, X: Any, *, top: int = 5, reject: float = REFUSED) -> list[Answer]:
        """Answer in one pass: the ``top`` likeliest classes, and whether samples are known.

        ``reject`` as for `threshold`.
        """
        check_fraction("reject", reject)
        check_count("top", top)
        solution = self.solution_
        answers = solution.answer(checked_samples(self, X), int(top), novelty=True)
        return answers.each(solution.threshold(reject))

    # ---------------------------------------------------------------- what it knows

    @property
    def classes_(self) -> np.ndarray:
        """Labels of the classes known now, sorted."""
        return np.array(list(self._known(with_classes=False).counts))

    @property
    def counts_(self) -> dict[Label, int]:
        """Samples learned of each class, sorted by label; empty before anything was learned."""
        return self._engine.counts if self.__sklearn_is_fitted__() else {}

    @property
    def model_(self) -> Model:
        """All that was learned."""
        return self._known(with_classes=False).model

    @property
    def solution_(self) -> Solution:
        """The solved classifier, with all that the evidence says: immutable."""
        return self._known().calibrated()

    @property
    def temperature_(self) -> float:
        """What scores are divided by before they become probabilities."""
        return self.solution_.temperature

    @property
    def ridge_(self) -> float:
        """The ridge in use, as it is added to the diagonal of the scatter."""
        return self._solution().rho

    def copy(self) -> Self:
        """Return an independent copy."""
        twin = clone(self)
        return twin._become(self, self._engine.copy()) if self.__sklearn_is_fitted__() else twin

    # ---------------------------------------------------------------- inside

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_engine")

    def _known(self, *, with_classes: bool = True) -> Engine:
        """Return the engine with the present parameters; raise if it knows nothing, or no class."""
        was_fitted = self.__sklearn_is_fitted__()
        if not was_fitted or (with_classes and not self._engine.counts):
            raise not_fitted(self, was_fitted=was_fitted)
        self._engine.parameters = self._parameters()
        return self._engine

    def _solution(self) -> Solution:
        return self._known().solution()

    def _parameters(self) -> Parameters:
        """Return what the user chose; raise if a parameter can't be used."""
        return Parameters.of(self.get_params(deep=False))

    def _become(self, other: Self, engine: Engine) -> Self:
        """Become fitted, to the features of another classifier."""
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(other, name):
                setattr(self, name, getattr(other, name))
        self._engine = engine
        return self
