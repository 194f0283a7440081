"""An encoder as a transformer of scikit-learn."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags

from klda.encoders.encoder import Encoder
from klda.encoders.loading import load


class Vectorizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Texts or images to features of a frozen foundation model, in pipelines of scikit-learn.

    It has nothing to fit. Its clones share the foundation model, so that a grid search loads it
    once.

    Parameters
    ----------
    model, layers, device, batch_size, prompt
        The foundation model and how it runs, as for :func:`klda.encoders.load`; ``layers="auto"``
        are those that measure best.

    Examples
    --------
    >>> from klda import KLDA, Vectorizer
    >>> from sklearn.pipeline import make_pipeline
    >>> texts = ["where is my card?", "my card is lost", "will it rain?", "is it sunny?"]
    >>> model = make_pipeline(Vectorizer("ngrams"), KLDA())
    >>> model = model.fit(texts, ["card", "card", "weather", "weather"])
    >>> model.predict(["a lost card"]).tolist()
    ['card']
    """

    def __init__(
        self,
        model: Any = "minilm",
        *,
        layers: Any = "auto",
        device: str = "auto",
        batch_size: int | None = None,
        prompt: str | None = None,
    ) -> None:
        self.model = model
        self.layers = layers
        self.device = device
        self.batch_size = batch_size
        self.prompt = prompt

    @property
    def encoder(self) -> Encoder:
        """The foundation model, loaded when first needed."""
        layers = self.layers if isinstance(self.layers, str | int) else tuple(self.layers)
        options = (layers, self.device, self.batch_size, self.prompt)
        if isinstance(self.model, Hashable):
            return _loaded(self.model, *options)
        return _load(self.model, *options)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Load the foundation model; there is nothing to fit."""
        self.encoder  # noqa: B018  raises if a parameter is wrong
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return one float32 row per text or image."""
        return self.encoder.encode(X)

    @property
    def _n_features_out(self) -> int:
        return self.encoder.dimension

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags


def _load(model: Any, layers: Any, device: str, batch_size: int | None, prompt: Any) -> Encoder:
    options = {"layers": layers, "device": device, "batch_size": batch_size, "prompt": prompt}
    return load(model, **options)


_loaded = functools.lru_cache(maxsize=4)(_load)
