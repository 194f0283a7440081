"""Frozen foundation models: from a text or an image to a feature row.

>>> from klda import features
>>> encoder = features.load("minilm")
>>> encoder.encode(["where is my card?"]).shape
(1, 384)
"""

from __future__ import annotations

from klda.features.base import Encoder, same_features
from klda.features.cache import FeatureCache, FeatureCacheWarning
from klda.features.files import OfflineModelError
from klda.features.loading import load, modality_of
from klda.features.precomputed import PrecomputedFeatures
from klda.features.registry import MODELS, ModelInfo

__all__ = [
    "MODELS",
    "Encoder",
    "FeatureCache",
    "FeatureCacheWarning",
    "ModelInfo",
    "OfflineModelError",
    "PrecomputedFeatures",
    "load",
    "modality_of",
    "same_features",
]
