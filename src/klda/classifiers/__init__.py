"""The classifiers, as scikit-learn estimators that learn new classes at any time."""

from __future__ import annotations

from klda.classifiers.base import ContinualClassifier
from klda.classifiers.klda import KLDA, LDA, KLDAEnsemble
from klda.classifiers.ncm import NCM

__all__ = ["KLDA", "LDA", "NCM", "ContinualClassifier", "KLDAEnsemble"]
