"""Every method of the few-sample benchmark: ours with and without class names, and its peers.

A method learns feature rows of all classes and gives a function that answers.
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
from klda_bench.methods import learn_task, registry

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


Answering = Callable[[np.ndarray], Answers]


def ours(
    place: Place, X: np.ndarray, y: np.ndarray, *, names: str = "", rule: str = "auto"
) -> Answering:
    """Teach a `Learner` with its default settings; without rows it knows names alone.

    `names` says what it takes for the names of the classes: nothing, the labels themselves, or
    codes that mean nothing (c001, c002, ...). ``rule="lda"`` is the rule of version 0.1.0.
    """
    codes = {c: f"c{i + 1:03d}" if names == "codes" else c for i, c in enumerate(place.classes)}
    labels = {code: label for label, code in codes.items()}
    learner = Learner(place.encoder, names=bool(names))
    learner.classifier.set_params(random_state=place.seed, rule=rule)
    if len(y):
        learner.learn_rows(X, [codes[label] for label in y.tolist()])
    else:
        learner.declare(list(labels))

    def answer(X: np.ndarray) -> Answers:
        found = Answers.of(learner.answer_rows(X, top=1))
        return replace(found, labels=np.array([labels[code] for code in found.labels.tolist()]))

    return answer


def registered(place: Place, X: np.ndarray, y: np.ndarray, *, name: str) -> Answering:
    """Teach a method of the tables (``klda bench methods``) with the options it has there.

    klda's own classifiers also tell how sure they are.
    """
    spec = registry()[name]
    method = spec.make(spec.options(place.backbone), seed=place.seed)
    for part in np.array_split(np.arange(len(y)), -(-len(y) // ROWS_AT_ONCE)):
        learn_task(method, X[part], y[part])
    if hasattr(method, "answer"):
        return lambda X: Answers.of(method.answer(X, top=1))
    return lambda X: Answers(method.predict(X))


def scikit_learn(
    place: Place, X: np.ndarray, y: np.ndarray, *, make: Callable[[int], Any]
) -> Answering:
    """Fit what `make` gives for the number of samples of the smallest class.

    An input is the less known, the lower its largest probability.
    """
    smallest = int(np.unique(y, return_counts=True)[1].min())
    with warnings.catch_warnings():  # one sample per class looks like a regression problem
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        classifier = make(smallest).fit(X, y)

    def answer(X: np.ndarray) -> Answers:
        probabilities = classifier.predict_proba(X)
        highest = probabilities.max(axis=1)
        return Answers(classifier.classes_[probabilities.argmax(axis=1)], highest, 1.0 - highest)

    return answer


def _regression(smallest: int) -> LogisticRegression:
    return LogisticRegression(C=10.0, max_iter=1000)


def _neighbours(smallest: int) -> KNeighborsClassifier:
    return KNeighborsClassifier(min(5, smallest), weights="distance", metric="cosine")


@dataclass(frozen=True)
class Contender:
    """A method: its title, how it learns, and the layers whose features it learns from.

    `seeded` methods draw random features; `from_names` ones answer before any sample.
    """

    title: str
    learn: Callable[[Place, np.ndarray, np.ndarray], Answering]
    layers: str = "auto"
    seeded: bool = False
    from_names: bool = False


def _registered(name: str, layers: str = "auto") -> Contender:
    spec = registry()[name]
    seeded = name not in ("ncm", "lda")
    title = spec.title if layers == "last" else f"{spec.title}, our layers"
    return Contender(title, partial(registered, name=name), layers, seeded)


CONTENDERS = {
    "ours": Contender("klda, no names", ours, seeded=True),
    "names": Contender("klda, names", partial(ours, names="labels"), "auto", True, True),
    "cryptic": Contender("klda, cryptic names", partial(ours, names="codes"), seeded=True),
    "old-rule": Contender("klda, rule of 0.1.0", partial(ours, rule="lda"), seeded=True),
    "ncm": _registered("ncm", "last"),
    "lda": _registered("lda", "last"),
    "klda": replace(_registered("klda", "last"), title="KLDA, paper's mode"),
    "knn": Contender("nearest neighbours", partial(scikit_learn, make=_neighbours), "last"),
    "lr-last": Contender(
        "logistic regr., last layer", partial(scikit_learn, make=_regression), "last"
    ),
    "lr": Contender("logistic regr., our layers", partial(scikit_learn, make=_regression)),
    "ranpac": _registered("ranpac"),
    "gacl": _registered("gacl"),
    "anacp": _registered("anacp"),
}
PEERS = ("ncm", "lr-last", "lr")
"""What a user would take instead; the best of them in hindsight is what ours is compared with."""
