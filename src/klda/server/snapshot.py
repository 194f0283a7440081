"""What answers are computed from: a learner that is solved, and never changed again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.engine.solution import Answer
from klda.inspection.verdict import Verdict, verdict
from klda.labels import Label
from klda.learner import Learner
from klda.server.changes import Tally
from klda.server.errors import ServerError

MAX_WORDS = 60  # in a text to be explained: each is one more text to encode


@dataclass(frozen=True)
class Snapshot:
    """A learner as it was at one moment."""

    version: int  # number of the last change in it
    learner: Learner  # to be copied before it is changed
    counts: dict[Label, int]  # samples of each class

    @classmethod
    def of(cls, learner: Learner, version: int) -> Snapshot:
        """Take a learner, and solve it now: no answer is to wait for that."""
        counts = learner.classes
        if counts:
            learner.solution  # noqa: B018
        return cls(version, learner, counts)

    @property
    def samples(self) -> int:
        """Number of samples learned."""
        return sum(self.counts.values())

    @property
    def figures(self) -> dict[str, int]:
        """Its size, for those who follow the model."""
        return {"version": self.version, "classes": len(self.counts), "samples": self.samples}

    def search(self, text: str) -> list[tuple[Label, int]]:
        """Return the classes whose names contain a text, in alphabetical order, with counts."""
        wanted = text.casefold().strip()
        return [(x, n) for x, n in self.counts.items() if wanted in str(x).casefold()]

    def answer(self, rows: np.ndarray, top: int) -> list[Answer]:
        """Answer for feature rows, with the `top` likeliest classes."""
        self.check_has_classes()
        return self.learner.answer_rows(rows, top=top)

    def check_has_classes(self) -> None:
        """Raise if there is nothing to answer with."""
        if not self.counts:
            raise ServerError("This model has no classes yet: teach or declare some first.", 409)

    def verdict(self, answer: Answer) -> Verdict:
        """Say what one of its answers amounts to."""
        return verdict(answer.top[0][1], answer.known, len(self.counts))

    def compare(self, rows: np.ndarray, labels: Sequence[Label]) -> Tally:
        """Return how many rows, about to be learned, are correct, wrong, and of new classes."""
        known = [i for i, label in enumerate(labels) if label in self.counts]
        # Labels alone: what answers add to them costs more.
        answers = self.learner.predict_rows(rows[known]).tolist() if known else []
        correct = sum(labels[i] == answer for i, answer in zip(known, answers, strict=True))
        return Tally(correct, len(known) - correct, len(labels) - len(known))

    def explain(self, value: Any) -> dict[str, Any]:
        """Explain the answer for one input; for a text, also the weight of each word."""
        self.check_has_classes()
        words = self._word_weights(value) if isinstance(value, str) else []
        return {**self.learner.explain(value).to_dict(), "words": words}

    def _word_weights(self, text: str) -> list[dict[str, Any]]:
        """Leave out each word in turn: its weight is how much the lead over the runner-up drops.

        Weights are relative to the word with the largest effect.
        """
        words = text.split()
        if not 1 < len(words) <= MAX_WORDS or len(self.counts) < 2:
            return []
        without = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
        scores = self.learner.scores([text, *without])
        order = np.argsort(-scores[0], kind="stable")
        lead = scores[:, order[0]] - scores[:, order[1]]
        drop = lead[0] - lead[1:]
        drop /= max(float(np.abs(drop).max()), np.finfo(drop.dtype).tiny)
        weights = drop.round(3).tolist()
        return [{"word": word, "weight": w} for word, w in zip(words, weights, strict=True)]
