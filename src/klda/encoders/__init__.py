"""Frozen foundation models: one feature row per text or image.

>>> from klda import encoders
>>> encoder = encoders.load("minilm")
>>> encoder.encode(["where is my card?"]).shape
(1, 384)

An encoder is any object with the attributes and methods of :class:`Encoder`. `text` and `images`
turn inputs into batches for a network, which ONNX Runtime or torch runs as `options` says: `bert`
has the BERT-like ones, `pretrained` those of transformers. `models` is the table of named models,
`sources` says where they come from, and `loading` builds an encoder from a name.
"""

from __future__ import annotations

from klda.encoders.base import Encoder, PrecomputedFeatures, same_features
from klda.encoders.loading import default_text_model, engine_of, load, modality_of
from klda.encoders.models import MODELS, ModelInfo
from klda.encoders.sources import OfflineModelError

__all__ = [
    "MODELS",
    "Encoder",
    "ModelInfo",
    "OfflineModelError",
    "PrecomputedFeatures",
    "default_text_model",
    "engine_of",
    "load",
    "modality_of",
    "same_features",
]
