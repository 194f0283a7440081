"""Frozen foundation models: one feature row per text or image.

>>> from klda import encoders
>>> encoder = encoders.load("minilm")
>>> encoder.encode(["where is my card?"]).shape
(1, 384)

An encoder has the members of :class:`Encoder`; a `fingerprint` identifies its features. The
modules:

- `loading`: :func:`load`, from a name, a folder, a URL or an object to an encoder;
- `encoder`: what an encoder is, its fingerprint, and ``"features"`` for rows computed elsewhere;
- `named_models`: the table of names; `sources`: where models come from, the hub or a Python
  package; `model_files`: what their folders hold; `runtime`: how a network runs;
- `networks`: the encoders that turn inputs into batches for a network, and what a network is.
  `images` reads images for them;
- the networks: `onnx_bert` (ONNX Runtime, with graphs written by `onnx_graph`), `pretrained`
  (transformers) and `multilingual` (NumPy);
- `wrapped`: functions and objects of other libraries; `endpoint`: models behind a server;
- `ngrams`: texts without a foundation model;
- `vectorizer`: an encoder in pipelines of scikit-learn.

To add a model, register a `ModelInfo` in the entry-point group ``klda.models``. Its `network` is a
class with the members of `networks.TextNetwork` or `networks.ImageNetwork`.
"""

from __future__ import annotations

from klda.encoders.encoder import Encoder, PrecomputedFeatures, same_features
from klda.encoders.endpoint import EndpointError
from klda.encoders.loading import default_text_model, is_url, load, modality_of, reopen
from klda.encoders.named_models import MODELS, ModelInfo
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
