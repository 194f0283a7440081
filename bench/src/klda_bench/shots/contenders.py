"""The methods of the few-sample benchmark: ours with and without class names, and its peers.

A method learns feature rows and gives a function that answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from klda import NCM
from klda_bench.methods.ours import default_learner

REJECT = 0.05  # fraction of inputs of known classes that may be refused
COSTS = (1.0, 10.0, 100.0, 1000.0)  # C of logistic regression
FOLDS = 3
USUAL_COST = 100.0  # where classes have fewer samples than there are folds


@dataclass(frozen=True)
class Answers:
    """Answers for some rows: labels, how sure, and whatever else the method can tell.

    `known` holds None for a row that the method can't judge yet; `expected` is the fraction of
    answers that the method itself expects to be right, NaN if it can't tell.
    """

    labels: np.ndarray
    confidence: np.ndarray
    novelty: np.ndarray | None = None
    known: Sequence[bool | None] = ()
    expected: float = float("nan")


Answering = Callable[[np.ndarray], Answers]


def ours(
    encoder: Any, seed: int, X: np.ndarray, y: np.ndarray, declared: Any, *, names: bool
) -> Answering:
    """Teach a `Learner` with its default settings; `declared` classes are known by name alone."""
    learner = default_learner(encoder, seed, names=names)
    if len(y):
        learner.learn_rows(X, y.tolist())
    if len(declared):
        learner.declare(np.asarray(declared).tolist())

    def answer(X: np.ndarray) -> Answers:
        found = learner.answer_rows(X, top=1, reject=REJECT)
        labels, confidence = zip(*(each.top[0] for each in found), strict=True)
        novelty, known = [each.novelty for each in found], [each.known for each in found]
        calibration = learner.solution.calibration
        expected = calibration.hits if calibration and calibration.worth else float("nan")
        return Answers(np.array(labels), np.array(confidence), np.array(novelty), known, expected)

    return answer


def estimator(
    encoder: Any,
    seed: int,
    X: np.ndarray,
    y: np.ndarray,
    declared: Any,
    *,
    make: Callable[[int], Any],
) -> Answering:
    """Fit the estimator that `make` gives for the number of samples of a typical class."""
    typical = int(np.median(np.unique(y, return_counts=True)[1]))
    with warnings.catch_warnings():  # of classes with fewer samples than folds
        warnings.filterwarnings("ignore", "The (number of unique|least populated) class")
        fitted = make(typical).fit(X, y)

    def answer(X: np.ndarray) -> Answers:
        probabilities = fitted.predict_proba(X)
        highest = probabilities.max(axis=1)
        return Answers(fitted.classes_[probabilities.argmax(axis=1)], highest, 1.0 - highest)

    return answer


def logistic_regression(typical: int) -> Any:
    """Return logistic regression, C chosen by cross-validation where there are enough samples."""
    model = LogisticRegression(C=USUAL_COST, max_iter=1000)
    return model if typical < FOLDS else GridSearchCV(model, {"C": COSTS}, cv=FOLDS)


@dataclass(frozen=True)
class Contender:
    """A method: its title, how it learns, and the layers whose features it learns from."""

    title: str
    learn: Callable[..., Answering]
    layers: str = "auto"
    is_ours: bool = False


_mean = partial(estimator, make=lambda typical: NCM())
_regression = partial(estimator, make=logistic_regression)
CONTENDERS = {
    "ours": Contender("klda", partial(ours, names=False), is_ours=True),
    "names": Contender("klda, names", partial(ours, names=True), is_ours=True),
    "ncm-last": Contender("nearest mean, last layer", _mean, "last"),
    "ncm": Contender("nearest mean, layers", _mean),
    "lr-last": Contender("logistic regression, last layer", _regression, "last"),
    "lr": Contender("logistic regression, layers", _regression),
}
PEERS = tuple(name for name, own in CONTENDERS.items() if not own.is_ours)
"""What a user would take instead; the best of them in hindsight is what ours is compared with."""
