"""Logistic regression, which needs all rows at once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

COSTS = (1.0, 10.0, 100.0, 1000.0)  # C
FOLDS = 3
USUAL_COST = 100.0  # where classes have fewer samples than there are folds


class Logistic:
    """scikit-learn's logistic regression, C by cross-validation where there are enough samples."""

    joint = True

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Fit all rows."""
        self.model: Any = LogisticRegression(C=USUAL_COST, max_iter=1000)
        self.classes_, counts = np.unique(y, return_counts=True)
        if int(np.median(counts)) >= FOLDS:
            self.model = GridSearchCV(self.model, {"C": COSTS}, cv=FOLDS)
        with warnings.catch_warnings():  # of classes with fewer samples than folds
            warnings.filterwarnings("ignore", "The (number of unique|least populated) class")
            self.model.fit(X, y)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows."""
        return self.model.predict(X)

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the probability of each class, in the order of `classes_`."""
        return self.model.predict_proba(X)
