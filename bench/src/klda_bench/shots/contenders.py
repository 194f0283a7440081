"""Every method of the few-sample benchmark: ours with and without class names, and its peers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from klda import Learner
from klda_bench.methods import Context, protocol_gamma, registry

ROWS_AT_ONCE = 2000  # RanPAC chooses its ridge on the rows of one call: a system of their number


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
        novelty = [answer.novelty for answer in answers]
        return cls(
            np.array([answer.top[0][0] for answer in answers]),
            np.array([answer.top[0][1] for answer in answers]),
            None if None in novelty else np.array(novelty),
            [answer.known for answer in answers],
        )


class Model(Protocol):
    """What learns feature rows of all classes and answers."""

    def learn(self, X: np.ndarray, y: np.ndarray, /) -> None:
        """Learn rows, shuffled; `y` may be empty where `X` is."""

    def answer(self, X: np.ndarray, /) -> Answers:
        """Answer for rows."""


class Ours:
    """A `Learner` with its default settings.

    `names` says what it takes for the names of the classes: nothing, the labels themselves, or
    codes that mean nothing (c001, c002, ...).
    """

    def __init__(self, place: Place, names: str = "") -> None:
        codes = (f"c{i + 1:03d}" if names == "codes" else c for i, c in enumerate(place.classes))
        self._codes = dict(zip(place.classes, codes, strict=True))
        self._labels = {code: label for label, code in self._codes.items()}
        # TODO names=bool(names)
        self._learner = Learner(place.encoder, **({"names": bool(names)} if names else {}))
        self._learner.classifier.set_params(random_state=place.seed)

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
        return Answers(labels, found.confidence, found.novelty, found.known)


class Registered:
    """A method of the tables (``klda bench methods``) with the options that it has there."""

    def __init__(self, place: Place, name: str) -> None:
        gamma = protocol_gamma(place.backbone)
        context = Context(place.backbone, gamma, place.seed)
        self._method: Any = registry()[name].make(context)

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

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make

    def learn(self, X: np.ndarray, y: np.ndarray) -> None:
        """Fit the classifier to the rows."""
        smallest = int(np.unique(y, return_counts=True)[1].min())
        self._classifier = self._make(smallest).fit(X, y)

    def answer(self, X: np.ndarray) -> Answers:
        """Answer; an input is the less known, the lower its largest probability."""
        probabilities = self._classifier.predict_proba(X)
        highest = probabilities.max(axis=1)
        labels = self._classifier.classes_[probabilities.argmax(axis=1)]
        return Answers(labels, highest, 1.0 - highest)


@dataclass(frozen=True)
class Place:
    """What a model is made for: an encoder, the classes of a data set, a seed."""

    backbone: str
    encoder: Any
    classes: Sequence[str]
    seed: int


@dataclass(frozen=True)
class Contender:
    """A method: its title, how it is made, and the layers whose features it learns from.

    `seeded` methods draw random features; `from_names` ones answer before any sample.
    """

    title: str
    make: Callable[[Place], Model]
    layers: str = "auto"
    seeded: bool = False
    from_names: bool = False


def _logistic_regression(smallest: int) -> LogisticRegression:
    return LogisticRegression(C=10.0, max_iter=1000)


def _nearest_neighbours(smallest: int) -> KNeighborsClassifier:
    return KNeighborsClassifier(min(5, smallest), weights="distance", metric="cosine")


CONTENDERS = {
    "ours": Contender("klda, no names", Ours, seeded=True),
    "names": Contender(
        "klda, class names", lambda place: Ours(place, "labels"), seeded=True, from_names=True
    ),
    "cryptic": Contender("klda, cryptic names", lambda place: Ours(place, "codes"), seeded=True),
    "ncm": Contender("NCM", lambda place: Registered(place, "ncm"), "last"),
    "lda": Contender("LDA", lambda place: Registered(place, "lda"), "last"),
    "klda": Contender("KLDA, the paper's", lambda place: Registered(place, "klda"), "last", True),
    "knn": Contender("nearest neighbours", lambda place: ScikitLearn(_nearest_neighbours), "last"),
    "lr-last": Contender(
        "logistic regression, last layer", lambda place: ScikitLearn(_logistic_regression), "last"
    ),
    "lr": Contender(
        "logistic regression, our layers", lambda place: ScikitLearn(_logistic_regression)
    ),
    "ranpac": Contender(
        "RanPAC, our layers", lambda place: Registered(place, "ranpac"), seeded=True
    ),
    "gacl": Contender("GACL, our layers", lambda place: Registered(place, "gacl"), seeded=True),
    "anacp": Contender("AnaCP, our layers", lambda place: Registered(place, "anacp"), seeded=True),
}
PEERS = ("ncm", "lr-last", "lr")
"""What a user would take instead; the best of them in hindsight is what ours is compared with."""
