"""What answers are computed from: a frozen view of a learner, never changed once made.

The engine's solved classifiers and feature maps are immutable, so a view shares their arrays with
the learner that goes on learning: it costs no copy, and readers need no lock.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from klda.classifiers import from_state
from klda.decisions import softmax
from klda.encoders import Encoder
from klda.errors import KldaError
from klda.learner import Learner
from klda.server.changes import Label

RIGHT, WRONG, NEW = 0, 1, 2
REFUSED = 0.05  # share of inputs of known classes that may be called unknown
MOST_WORDS = 60  # in a text to be explained: each is one more text to encode


class PreparedEncoder:
    """A learner's encoder that also takes rows encoded before.

    The service encodes the inputs of many requests together; with this, the learner's own verbs
    take the rows.

    Parameters
    ----------
    encoder : Encoder
        The foundation model.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.name = encoder.name
        self.modality = encoder.modality
        self.dimension = encoder.dimension

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Encode inputs; rows go through.

        Parameters
        ----------
        inputs : sequence or ndarray
            Inputs, or a float32 array of feature rows.
        progress : bool
            Passed on.

        Returns
        -------
        ndarray of shape (n, dimension), float32
            One row an input.
        """
        is_rows = isinstance(inputs, np.ndarray) and inputs.ndim == 2
        if is_rows and inputs.dtype == np.float32 and self.modality != "features":
            return inputs
        return self.encoder.encode(inputs, progress=progress)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features."""
        return self.encoder.fingerprint()


@dataclass(frozen=True)
class Answer:
    """What the model says of one input.

    Attributes
    ----------
    top : list of (label, probability)
        Likeliest first.
    known : bool or None
        Whether the input is like something that was learned; None where that can't be said.
    novelty : float or None
        How unlike what was learned it is.
    """

    top: list[tuple[Label, float]]
    known: bool | None
    novelty: float | None


class Snapshot:
    """A learner as it was at one moment.

    Parameters
    ----------
    learner : Learner
        The learner; not held on to where it may change.
    version : int
        Number of the last change in it.
    """

    def __init__(self, learner: Learner, version: int) -> None:
        self.version = version
        self.counts: dict[Label, int] = learner.classes
        self.samples = sum(self.counts.values())
        self.labels: list[Label] = list(self.counts)
        self._learner: Learner | None = None
        if self.counts:
            self._learner = freeze(learner)

    def remember(self, previous: Snapshot) -> None:
        """Keep the feature map of a model whose classes have all been forgotten."""
        self._learner = previous._learner

    @property
    def learner(self) -> Learner:
        """The frozen learner; only where there are classes, or were."""
        assert self._learner is not None
        return self._learner

    @property
    def width(self) -> int:
        """Length of a feature row; 0 while it is not known."""
        return 0 if self._learner is None else int(self._learner.classifier.n_features_in_)

    def answer(self, rows: np.ndarray, top: int) -> list[Answer]:
        """Answer for feature rows.

        Parameters
        ----------
        rows : ndarray of shape (n, d), float32
            Encoded inputs.
        top : int
            How many classes to name.

        Returns
        -------
        list of Answer
            One a row.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            probabilities, novelty = self._assess(rows)
        if not np.isfinite(probabilities).all():
            raise KldaError("An input is too far from everything learned to be compared with it.")
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        chosen = np.take_along_axis(probabilities, order, axis=1).tolist()
        limit = self._limit
        answers = []
        for i, at in enumerate(order.tolist()):
            new = None if novelty is None or not np.isfinite(novelty[i]) else float(novelty[i])
            known = None if new is None or limit is None else new <= limit
            named = [(self.labels[j], p) for j, p in zip(at, chosen[i], strict=True)]
            answers.append(Answer(named, known, new))
        return answers

    def _assess(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Probabilities and novelty in one pass over the feature map, which is what costs."""
        classifier = self.learner.classifier
        if not hasattr(classifier, "assess"):  # nearest class mean knows no distances
            return self.learner.predict_proba(rows), None
        scores, novelty = classifier.assess(rows)
        return softmax(scores / self._temperature), novelty

    @cached_property
    def _temperature(self) -> float:
        return float(self.learner.classifier.temperature_)

    @cached_property
    def _limit(self) -> float | None:
        """Novelty beyond which an input is unknown; None while too little was learned to say."""
        return self.learner.threshold(REFUSED)

    def compare(self, rows: np.ndarray, labels: Sequence[Label]) -> list[int]:
        """Say how the model answers on rows that it is about to learn.

        Parameters
        ----------
        rows : ndarray of shape (n, d), float32
            Encoded inputs.
        labels : sequence of label
            Their true labels.

        Returns
        -------
        list of int
            For each row `RIGHT`, `WRONG`, or `NEW` if its class is not known yet.
        """
        verdicts = [NEW] * len(labels)
        at = [i for i, label in enumerate(labels) if label in self.counts]
        if at:
            for i, said in zip(at, self.learner.predict(rows[at]).tolist(), strict=True):
                verdicts[i] = RIGHT if said == labels[i] else WRONG
        return verdicts


def freeze(learner: Learner) -> Learner:
    """Return a learner that answers as this one does now, whatever this one learns later.

    Parameters
    ----------
    learner : Learner
        With at least one class.

    Returns
    -------
    Learner
        Can't learn; shares the arrays.
    """
    frozen = copy.copy(learner)
    frozen.classifier = from_state(*learner.classifier.to_state(compact=True))
    return frozen


def explain(snapshot: Snapshot, value: Any) -> dict[str, Any]:
    """Say why the model answers as it does.

    Parameters
    ----------
    snapshot : Snapshot
        With at least one class.
    value : str, image or ndarray of shape (d,)
        One input.

    Returns
    -------
    dict
        JSON-able: the learner's own explanation, and for a text the weights of its ``words``.
    """
    learner = snapshot.learner
    said = learner.explain(value).to_dict()
    said["words"] = word_weights(snapshot, value) if learner.modality == "text" else []
    return said


def word_weights(snapshot: Snapshot, text: str) -> list[dict[str, Any]]:
    """Say how much each word speaks for the answer.

    Each word is left out in turn: its weight is what the answer's lead over the runner-up loses,
    relative to the word that costs (or gains) it most.

    Parameters
    ----------
    snapshot : Snapshot
        With at least one class.
    text : str
        The input.

    Returns
    -------
    list of dict
        ``word`` and ``weight``, in the order of the text; empty if there is nothing to compare.
    """
    words = text.split()
    if not 1 < len(words) <= MOST_WORDS or len(snapshot.counts) < 2:
        return []
    without = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
    learner = snapshot.learner
    scores = learner.scores(learner.encoder.encode([text, *without]))
    order = np.argsort(-scores[0], kind="stable")
    lead = scores[:, order[0]] - scores[:, order[1]]
    lost = lead[0] - lead[1:]
    lost /= max(float(np.abs(lost).max()), np.finfo(lost.dtype).tiny)
    return [
        {"word": word, "weight": round(float(weight), 3)}
        for word, weight in zip(words, lost, strict=True)
    ]
