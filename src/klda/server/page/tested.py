"""How the model did on a file with labels."""

from __future__ import annotations

from dataclasses import dataclass

from klda.engine.solution import Answer
from klda.inspection.evaluation import Evaluation
from klda.labels import Label

SURE = 0.9  # an answer that is as sure as this, and wrong, may have a wrong label


@dataclass(frozen=True)
class Tested:
    """How the model did on a file."""

    name: str
    texts: list[str]
    labels: list[Label]
    answers: list[Answer]
    evaluation: Evaluation
    unknown: list[tuple[Label, int, Label | None]]  # labels that no class has; what may be meant

    @property
    def errors(self) -> list[tuple[str, Label, Label, float]]:
        """Text, label, answer and its probability of what went wrong, the surest first."""
        found = [
            (text, label, *answer.top[0])
            for text, label, answer in zip(self.texts, self.labels, self.answers, strict=True)
            if answer.top[0][0] != label
        ]
        return sorted(found, key=lambda one: -one[3])

    @property
    def odd(self) -> list[tuple[str, Label, Label, float]]:
        """The errors of which the label may be wrong: klda is sure of another class."""
        unknown = {label for label, *_ in self.unknown}
        return [one for one in self.errors if one[3] >= SURE and one[1] not in unknown]
