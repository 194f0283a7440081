"""What a fitted classifier tells about itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from sklearn.exceptions import NotFittedError

from klda.classifiers.validation import columns_of
from klda.engine.fitted import Fitted
from klda.engine.model import Model
from klda.engine.solution import Solution
from klda.engine.solve import Settings
from klda.labels import Label


class FittedAttributes:
    """The fitted attributes of a classifier, and how its solution is asked for."""

    nearest_mean: ClassVar[bool] = False

    n_features_in_: int
    _fitted: Fitted

    @property
    def model_(self) -> Model:
        """All that was learned."""
        self._known()
        return self._fitted.model

    @property
    def leaves_trace(self) -> bool:
        """Whether a class that is dropped leaves a trace in the covariance."""
        return not self.nearest_mean and not self.model_.is_holding

    @property
    def solution_(self) -> Solution:
        """The solved classifier, with all the evidence there is: immutable."""
        return self._ask(judged=True)[0]

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
    def temperature_(self) -> float:
        """What scores are divided by before they become probabilities."""
        return self.solution_.temperature

    @property
    def ridge_(self) -> float:
        """The ridge in use, relative to the mean diagonal of the covariance."""
        known = self._known()
        size = getattr(self, "n_components", self.n_features_in_)
        return self._settings().relative_ridge(known.class_counts, size)

    @property
    def means_(self) -> np.ndarray:
        """Class means in feature space, one row per class; one array per member of an ensemble."""
        model = self.model_.plain()
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

    # ---------------------------------------------------------------- inside

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_fitted")

    def _settings(self) -> Settings:
        raise NotImplementedError

    def _known(self) -> Model | Solution:
        """Return what knows classes, counts and feature maps; raise if nothing was learned."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"This {type(self).__name__} instance is not fitted yet: it has no classes. "
                "Call fit or partial_fit with samples and labels first."
            )
        return self._fitted.known

    def _with_classes(self) -> Model | Solution:
        """Return what knows classes; raise if there are none."""
        known = self._known()
        if not len(known.classes):
            raise NotFittedError(
                f"This {type(self).__name__} has no classes left. Call partial_fit first."
            )
        return known

    def _ask(
        self, among: Sequence[Label] | None = None, *, judged: bool = False
    ) -> tuple[Solution, np.ndarray | None]:
        """Return the solution, solved if it has to be, and the columns of some classes."""
        self._with_classes()
        solve = self._fitted.calibrated_solution if judged else self._fitted.solution
        solution = solve(self._settings())
        return solution, None if among is None else columns_of(solution, among)

    def _each(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the array of the only member, or of all members of an ensemble."""
        return np.stack(arrays) if hasattr(self, "n_members") else arrays[0]
