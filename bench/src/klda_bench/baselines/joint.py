"""Joint fine-tuning: all classes at once, the upper bound of continual learning."""

from __future__ import annotations

from typing import Any

from klda.errors import KldaError
from klda_bench.baselines.training import ClassifierBaseline


class Joint(ClassifierBaseline):
    """Fine-tuning of the backbone and a linear head on all tasks' data together."""

    name = "joint"
    joint = True

    def _check_task(self, labels: list[Any]) -> None:
        if self.n_tasks_:
            raise KldaError(
                "joint has learned already and keeps no data, so a second learn_task would forget "
                "the first; give all tasks' data in one call to a new Joint."
            )
        super()._check_task(labels)
