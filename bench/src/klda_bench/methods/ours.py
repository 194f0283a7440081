"""What `klda learn` does, as a method that learns task by task from features."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from klda import Learner
from klda.encoders import Encoder


def default_learner(
    encoder: str | Encoder, seed: int, *, names: bool = False, **parameters: Any
) -> Learner:
    """Make a Learner with its own settings, but for the seed of its random features.

    `names` lets the names of classes count beside samples: peers don't know them.
    """
    learner = Learner(encoder, names=names)
    learner.parameters = dataclasses.replace(learner.parameters, random_state=seed, **parameters)
    return learner


class Default:
    """A `Learner` that is given features; `encoder` made them, and `parameters` replace its own."""

    def __init__(
        self,
        *,
        encoder: Encoder | None = None,
        random_state: int = 0,
        device: str = "cpu",
        names: bool = False,
        **parameters: Any,
    ) -> None:
        parameters |= {"device": device, "names": names}
        self.learner = default_learner(encoder or "features", random_state, **parameters)

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn the task's rows."""
        self.learner.learn_rows(X, y.tolist())

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows."""
        return self.learner.predict_rows(X)
