"""What `klda learn` does, as a method that learns task by task from features."""

from __future__ import annotations

from typing import Any

import numpy as np

from klda import Learner
from klda.encoders import Encoder


class Default:
    """A `Learner` that is given features; `encoder` made them.

    It has its own settings but for the seed of its random features and the device; `parameters`
    replace others. With `names`, those of classes count beside samples: peers don't know them.
    """

    def __init__(
        self,
        *,
        encoder: Encoder | None = None,
        random_state: int = 0,
        device: str = "cpu",
        names: bool = False,
        **parameters: Any,
    ) -> None:
        parameters |= {"random_state": random_state, "device": device}
        self.learner = Learner(encoder or "features", names=names, classifier=parameters)

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn the task's rows."""
        self.learner.learn_rows(X, y.tolist())

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows."""
        return self.learner.predict_rows(X)
