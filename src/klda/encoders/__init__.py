"""Frozen foundation models: one feature row per text or image.

>>> from klda import encoders
>>> encoder = encoders.load("minilm")
>>> encoder.encode(["where is my card?"]).shape
(1, 384)

An encoder is any object with the attributes and methods of :class:`Encoder`; a `fingerprint`
identifies its features. :func:`load` makes one:

- of a name, a folder or a hub name: `named_models` is the table of names, `sources` says where
  models come from, and `model_files` what their folders hold. `text` and `images` turn inputs into
  batches for a network, which `onnx_bert`, `pretrained` (transformers) or `multilingual` (NumPy)
  runs as `options` says;
- of a function, or an object of another library (`wrapped`), or the URL of a server (`endpoint`);
- without a foundation model: `ngrams`, and `precomputed` for rows computed elsewhere.

`vectorizer` is an encoder in pipelines of scikit-learn, `bandwidth` the kernel's for its features.
"""

from __future__ import annotations

from klda.encoders.encoder import Encoder, same_features
from klda.encoders.endpoint import EndpointError, is_url
from klda.encoders.loading import default_text_model, load, modality_of, reopen
from klda.encoders.named_models import MODELS, ModelInfo
from klda.encoders.precomputed import PrecomputedFeatures
from klda.encoders.sources import OfflineModelError

__all__ = [
    "MODELS",
    "Encoder",
    "EndpointError",
    "ModelInfo",
    "OfflineModelError",
    "PrecomputedFeatures",
    "default_text_model",
    "is_url",
    "load",
    "modality_of",
    "reopen",
    "same_features",
]
