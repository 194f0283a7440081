"""Frozen foundation models: from a text or an image to a feature row.

>>> from klda import encoders
>>> encoder = encoders.load("minilm")
>>> encoder.encode(["where is my card?"]).shape
(1, 384)
"""

from __future__ import annotations

from klda.encoders.base import Encoder, same_features
from klda.encoders.cache import FeatureCache, FeatureCacheWarning
from klda.encoders.files import OfflineModelError
from klda.encoders.loading import load, modality_of
from klda.encoders.models import MODELS, ModelInfo
from klda.encoders.precomputed import PrecomputedFeatures

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
