"""Every method of the few-sample benchmark: ours with and without class names, and its peers.

A method learns feature rows of all classes (``learn(X, y)``) and answers (``answer(X)``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from klda import Learner
from klda_bench.methods import registry

ROWS_AT_ONCE = 2000  # RanPAC chooses its ridge by a system of as many unknowns as rows


@dataclass(frozen=True)
class Place:
    """What a method is made for: an encoder, the classes of a data set, a seed."""

    backbone: str
    encoder: Any
    classes: Sequence[str]
    seed: int


@dataclass(frozen=True)
class Answers:
    """Answers for some rows: labels, and whatever else the method can tell.

    `known` holds None for a row that the method can't judge yet.
    """

    labels: np.ndarray
    confidence: np.ndarray | None = None
    novelty: np.ndarray | None = None
    known: list[bool | None] | None = None

    @classmethod
    def of(cls, answers: Sequence[Any]) -> Answers:
        """Collect what klda answers for each row."""
        labels, confidence = zip(*(answer.top[0] for answer in answers), strict=True)
        novelty = [answer.novelty for answer in answers]
        told = None if None in novelty else np.array(novelty)
        return cls(np.array(labels), np.array(confidence), told, [a.known for a in answers])


class Ours:
    """A `Learner` with its default settings.

    `names` says what it takes for the names of the classes: nothing, the labels themselves, or
    codes that mean nothing (c001, c002, ...). ``rule="lda"`` is the rule of version 0.1.0.
    """

    def __init__(self, place: Place, names: str = "", rule: str = "auto") -> None:
        codes = (f"c{i + 1:03d}" if names == "codes" else c for i, c in enumerate(place.classes))
        self._codes = dict(zip(place.classes, codes, strict=True))
        self._labels = {code: label for label, code in self._codes.items()}
        self._learner = Learner(place.encoder, names=bool(names))
        self._learner.classifier.set_params(random_state=place.seed, rule=rule)

    def learn(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn rows; without any, know the classes by their names alone."""
        if len(y):
            self._learner.learn_rows(X, [self._codes[label] for label in y.tolist()])
        else:
            self._learner.declare(list(self._labels))

    def answer(self, X: np.ndarray) -> Answers:
        """Answer with the labels of the data set, refusing by the default threshold."""
        found = Answers.of(self._learner.answer_rows(X, top=1))
        labels = np.array([self._labels[code] for code in found.labels.tolist()])
        return replace(found, labels=labels)


class Registered:
    """A method of the tables (``klda bench methods``) with the options that it has there."""

    def __init__(self, place: Place, name: str) -> None:
        spec = registry()[name]
        self._method: Any = spec.make(spec.options(place.backbone), seed=place.seed)

    def learn(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn rows, at most some thousands at once."""
        for part in np.array_split(np.arange(len(y)), -(-len(y) // ROWS_AT_ONCE)):
            self._method.learn_task(X[part], y[part])

    def answer(self, X: np.ndarray) -> Answers:
        """Answer; klda's own classifiers also tell how sure they are."""
        estimator = getattr(self._method, "estimator", None)
        if estimator is None:
            return Answers(self._method.predict(X))
        return Answers.of(estimator.answer(X, top=1))


class ScikitLearn:
    """A scikit-learn classifier; `make` gets the number of samples of the smallest class."""

    def __init__(self, place: Place, make: Callable[[int], Any]) -> None:
        self._make = make

    def learn(self, X: np.ndarray, y: np.ndarray) -> None:
        """Fit the classifier to the rows."""
        smallest = int(np.unique(y, return_counts=True)[1].min())
        with warnings.catch_warnings():  # one sample per class looks like a regression problem
            warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
            self._classifier = self._make(smallest).fit(X, y)

    def answer(self, X: np.ndarray) -> Answers:
        """Answer; an input is the less known, the lower its largest probability."""
        probabilities = self._classifier.predict_proba(X)
        highest = probabilities.max(axis=1)
        labels = self._classifier.classes_[probabilities.argmax(axis=1)]
        return Answers(labels, highest, 1.0 - highest)


def _regression(smallest: int) -> LogisticRegression:
    return LogisticRegression(C=10.0, max_iter=1000)


def _neighbours(smallest: int) -> KNeighborsClassifier:
    return KNeighborsClassifier(min(5, smallest), weights="distance", metric="cosine")


@dataclass(frozen=True)
class Contender:
    """A method: its title, how it is made, and the layers whose features it learns from.

    `seeded` methods draw random features; `from_names` ones answer before any sample.
    """

    title: str
    make: Callable[[Place], Any]
    layers: str = "auto"
    seeded: bool = False
    from_names: bool = False


def _registered(name: str, layers: str = "auto") -> Contender:
    spec = registry()[name]
    seeded = name not in ("ncm", "lda")
    title = spec.title if layers == "last" else f"{spec.title}, our layers"
    return Contender(title, partial(Registered, name=name), layers, seeded)


CONTENDERS = {
    "ours": Contender("klda, no names", Ours, seeded=True),
    "names": Contender("klda, names", partial(Ours, names="labels"), "auto", True, True),
    "cryptic": Contender("klda, cryptic names", partial(Ours, names="codes"), seeded=True),
    "old-rule": Contender("klda, rule of 0.1.0", partial(Ours, rule="lda"), seeded=True),
    "ncm": _registered("ncm", "last"),
    "lda": _registered("lda", "last"),
    "klda": replace(_registered("klda", "last"), title="KLDA, paper's mode"),
    "knn": Contender("nearest neighbours", partial(ScikitLearn, make=_neighbours), "last"),
    "lr-last": Contender(
        "logistic regr., last layer", partial(ScikitLearn, make=_regression), "last"
    ),
    "lr": Contender("logistic regr., our layers", partial(ScikitLearn, make=_regression)),
    "ranpac": _registered("ranpac"),
    "gacl": _registered("gacl"),
    "anacp": _registered("anacp"),
}
PEERS = ("ncm", "lr-last", "lr")
"""What a user would take instead; the best of them in hindsight is what ours is compared with."""
