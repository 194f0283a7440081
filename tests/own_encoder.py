"""A foundation model for tests: small, and like none that klda brings."""

from __future__ import annotations

import numpy as np


class LetterCounts:
    """What the documentation of an encoder asks for, and no more."""

    name, modality, dimension = "letters", "text", 26

    def encode(self, inputs, *, progress=False):
        letters = "abcdefghijklmnopqrstuvwxyz"
        return np.array([[text.count(letter) for letter in letters] for text in inputs], np.float32)

    def fingerprint(self):
        return {
            "name": self.name,
            "modality": self.modality,
            "dimension": self.dimension,
            "source": "",
            "revision": "1",
            "pooling": "none",
            "layers": "last",
        }
