"""From scores to answers: probabilities and labels."""

from __future__ import annotations

import numpy as np


def softmax(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Probabilities of scores ``(n, M)``, each row summing to one."""
    scaled = np.asarray(scores, dtype=np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    np.exp(scaled, out=scaled)
    scaled /= scaled.sum(axis=1, keepdims=True)
    return scaled
