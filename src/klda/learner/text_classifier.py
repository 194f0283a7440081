"""A Learner with scikit-learn's contract, for pipelines, grid searches and cross-validation."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from klda.encoders.vectorizer import Vectorizer
from klda.learner.learner import Learner


class TextClassifier(ClassifierMixin, BaseEstimator):
    """Texts or images in, classes out: a :class:`klda.Learner` as an estimator of scikit-learn.

    Its clones share the foundation model, so that a grid search loads it once.

    Parameters
    ----------
    model : str, path-like, callable or object, default="minilm"
        The foundation model, as for :func:`klda.encoders.load`.
    classifier : KLDA or LDA, optional
        Whose parameters to use; searched as ``classifier__ridge`` and so on.
    names : bool, default=True
        Whether the names of classes count beside their samples.
    layers, device, batch_size, prompt
        How the foundation model is loaded, as for :class:`klda.Vectorizer`.

    Attributes
    ----------
    learner_ : Learner
        What was fitted, with all its other methods.
    classes_ : ndarray
        Labels, sorted.

    Examples
    --------
    >>> from klda import TextClassifier
    >>> texts = ["where is my card?", "my card is lost", "will it rain?", "is it sunny?"]
    >>> model = TextClassifier("ngrams").fit(texts, ["card", "card", "weather", "weather"])
    >>> model.predict(["a lost card"]).tolist()
    ['card']
    """

    def __init__(
        self,
        model: Any = "minilm",
        *,
        classifier: Any = None,
        names: bool = True,
        layers: Any = "auto",
        device: str = "auto",
        batch_size: int | None = None,
        prompt: str | None = None,
    ) -> None:
        self.model = model
        self.classifier = classifier
        self.names = names
        self.layers = layers
        self.device = device
        self.batch_size = batch_size
        self.prompt = prompt

    def fit(self, X: Any, y: Any) -> Self:
        """Learn texts or images from the start, one label for each."""
        self.learner_ = self._new().learn(X, y)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more: new classes, or more of known ones; `classes` need not be given."""
        learner = self.learner_ if hasattr(self, "learner_") else self._new()
        self.learner_ = learner.learn(X, y)
        return self

    def _new(self) -> Learner:
        options = {"layers": self.layers, "device": self.device, "batch_size": self.batch_size}
        encoder = Vectorizer(self.model, prompt=self.prompt, **options).encoder
        how: Any = {"names": self.names, "device": self.device, "undo": 0}
        return Learner(encoder, classifier=self.classifier, **how)

    @property
    def classes_(self) -> np.ndarray:
        """Labels, sorted: the columns of `predict_proba`."""
        check_is_fitted(self, "learner_")
        return np.array(list(self.learner_.classes))

    def predict(self, X: Any) -> np.ndarray:
        """Return the likeliest class of each input."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability ``(n, n_classes)`` of every class."""
        check_is_fitted(self, "learner_")
        return self.learner_.predict_proba(X)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learner_")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags
