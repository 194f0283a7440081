"""What the few-sample benchmark compares: methods of the registry, asked how sure they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klda_bench.methods.registry import learn_task, registry

REJECT = 0.05  # fraction of inputs of known classes that may be refused


@dataclass(frozen=True)
class Contender:
    """A method of the registry with its title, options, and layers whose features it gets."""

    title: str
    method: str
    layers: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        """Whether what it answers changes with the program."""
        return registry()[self.method].group == "ours"

    def taught(self, encoder: Any, seed: int, X: np.ndarray, y: np.ndarray, by_name: Any) -> Any:
        """Return the method, taught rows, and classes that are known by name alone."""
        spec = registry()[self.method]
        place: Any = {"seed": seed, "device": "auto", "encoder": encoder}
        method = spec.make(spec.options(given=self.options), **place)
        if len(y):
            learn_task(method, X, y)
        if len(by_name):
            method.learner.declare(np.asarray(by_name).tolist())
        return method


CONTENDERS = {
    "ours": Contender("klda", "klda-default"),
    "names": Contender("klda, names", "klda-default", options={"names": True}),
    "ncm-last": Contender("nearest mean, last layer", "ncm", "last"),
    "ncm": Contender("nearest mean, layers", "ncm"),
    "lr-last": Contender("logistic regression, last layer", "lr", "last"),
    "lr": Contender("logistic regression, layers", "lr"),
}
PEERS = tuple(name for name, own in CONTENDERS.items() if not own.is_ours)
"""What a user would take instead; the best of them in hindsight is what ours is compared with."""


@dataclass(frozen=True)
class Answers:
    """Answers for some rows: labels, how sure, and whatever else the method can tell.

    `known` holds None for a row that the method can't judge yet; `expected` is the fraction of
    answers that the method itself expects to be right, NaN if it can't tell.
    """

    labels: np.ndarray
    confidence: np.ndarray
    novelty: np.ndarray
    known: Sequence[bool | None] = ()
    expected: float = float("nan")


def answers_of(method: Any, X: np.ndarray) -> Answers:
    """Ask a method: ours says more than the labels and how probable they are."""
    if not hasattr(method, "learner"):
        probabilities = method.predict_proba(X)
        highest = probabilities.max(axis=1)
        return Answers(method.classes_[probabilities.argmax(axis=1)], highest, 1.0 - highest)
    found = method.learner.answer_rows(X, top=1, reject=REJECT)
    labels, confidence = zip(*(each.top[0] for each in found), strict=True)
    novelty, known = [each.novelty for each in found], [each.known for each in found]
    calibration = method.learner.solution.calibration
    expected = calibration.hits if calibration and calibration.worth else float("nan")
    return Answers(np.array(labels), np.array(confidence), np.array(novelty), known, expected)
