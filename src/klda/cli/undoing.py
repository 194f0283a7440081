"""``klda forget --rows``: which rows of a file are to be forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda.learned import NotLearnedError
from klda.learner import Learner


class Undoing:
    """Gathers the rows of a file that belong to some classes, and takes them out of a learner.

    Parameters
    ----------
    learner : Learner
        Changed by `finish`, completely or not at all.
    names : sequence of labels
        Classes to forget.
    path : Path
        The file, for messages.
    """

    def __init__(self, learner: Learner, names: Sequence[Any], path: Path) -> None:
        self.learner, self.path = learner, path
        self.learned = learner.classes
        for name in names:
            if name not in self.learned:
                raise KldaError(f"{name!r} is not a class of this model: nothing was forgotten.")
        self.taken = dict.fromkeys(names, 0)
        self._inputs: list[Any] = []
        self._labels: list[Any] = []

    def take(self, inputs: Any, labels: Sequence[Any]) -> None:
        """Gather those of some rows that belong to the classes.

        Parameters
        ----------
        inputs : sequence
            Texts, image paths or feature rows.
        labels : sequence
            Their labels.
        """
        for value, name in zip(inputs, labels, strict=True):
            if name not in self.taken:
                continue
            self.taken[name] += 1
            if self.taken[name] > self.learned[name]:
                raise KldaError(
                    f"{self.path} has more rows of class {name!r} than the "
                    f"{self.learned[name]:,} that were learned: nothing was forgotten."
                )
            self._inputs.append(value)
            self._labels.append(name)

    def finish(self, *, partly: bool) -> None:
        """Forget the rows, if they are all of their classes and were learned.

        Parameters
        ----------
        partly : bool
            Whether samples of the classes may be left.
        """
        self._check_complete(partly)
        features = self.learner.modality == "features"
        inputs = np.stack(self._inputs) if features else self._inputs
        try:
            self.learner.forget(self._labels, inputs, source=self.path.name)
        except NotLearnedError as error:
            raise KldaError(f"{self.path}: {error}") from error

    def _check_complete(self, partly: bool) -> None:
        for name, count in self.taken.items():
            if not count:
                raise KldaError(
                    f"{self.path} has no rows of class {name!r}: nothing was forgotten. Give the "
                    "file that it was learned from, or leave the class out."
                )
            if count < self.learned[name] and not partly:
                raise KldaError(
                    f"{self.path} has {count:,} of the {self.learned[name]:,} samples of class "
                    f"{name!r}, which would still be known: nothing was forgotten. Give all rows "
                    "that were learned, or --partly to forget just these."
                )
