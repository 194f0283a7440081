"""Static text encoders: one stored row per token, averaged over a text, without a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from klda.encoders.base import Layers
from klda.encoders.files import ModelFiles
from klda.encoders.pretrained import Options
from klda.errors import KldaError, require

_TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"  # beside the folder of the weights


class StaticNetwork:
    """The token rows of WordLlama, averaged and scaled to unit length."""

    layers: Layers = "last"
    pooling = "mean+unit"
    precision = "float32"
    engine = "numpy"
    batch_size = 1024
    max_tokens = 65536

    def __init__(self, name: str, files: ModelFiles, options: Options) -> None:
        if options.layers != "last":
            raise KldaError(f"layers={options.layers!r}: {name} has no layers. Leave out layers.")
        tokenizers = require("tokenizers", "minilm")
        arrays = require("safetensors.numpy", "minilm").load_file(files.weights[0])
        self._rows = arrays["embedding.weight"].astype(np.float32)
        self.dimension = self._rows.shape[1]
        self._tokenizer = tokenizers.Tokenizer.from_file(str(files.folder.parent / _TOKENIZER))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [tokens.ids for tokens in found]

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        lengths = np.array([len(ids) for ids in tokens])
        rows = self._rows[np.concatenate([np.asarray(ids) for ids in tokens])]
        sums = np.add.reduceat(rows, lengths.cumsum() - lengths, axis=0)
        return sums / np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
