"""From scores to answers: probabilities and labels."""

from __future__ import annotations

import numpy as np

from klda.backend import NumpyBackend


def softmax(scores: np.ndarray) -> np.ndarray:
    """Probabilities of scores ``(n, M)``, each row summing to one."""
    return NumpyBackend("float64").softmax(scores)
