"""Joint fine-tuning: all classes at once, the upper bound of continual learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from klda.errors import KldaError
from klda_bench.baselines.training import ClassifierBaseline


class Joint(ClassifierBaseline):
    """Fine-tuning of the backbone and a linear head on all tasks' data together."""

    name = "joint"
    joint = True

    def learn_task(self, texts: Sequence[Any], labels: Sequence[str]) -> None:
        """Learn all tasks together, once."""
        if self.n_tasks_:
            raise KldaError(
                "joint has learned already and keeps no data, so a second learn_task would forget "
                "the first; give all tasks' data in one call to a new Joint."
            )
        super().learn_task(texts, labels)
