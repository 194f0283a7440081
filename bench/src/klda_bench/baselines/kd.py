"""KD: the model before a task teaches its softened answers on the old classes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from klda_bench.baselines.rows import Batch, Rows
from klda_bench.baselines.training import ClassifierBaseline, option


@dataclass(kw_only=True, eq=False)
class KD(ClassifierBaseline):
    """Knowledge distillation (Hinton et al. 2015) in the form of LwF (Li and Hoiem 2017).

    The old model's scores on the new task's texts are recorded once, before training, as in LwF's
    algorithm; no old sample is needed.

    `temperature` is T of Hinton's equation 1 and `weight` that of the distillation loss; the
    defaults are LwF's.
    """

    name = "kd"

    temperature: float = option(2.0, above=0)
    weight: float = option(1.0, least=0)

    def _before_task(self, rows: Rows) -> None:
        if self.n_tasks_:
            rows.columns["teacher"] = self._logits(rows)

    def _loss(self, batch: Batch) -> Tensor:
        scores = self.module(batch)
        loss = functional.cross_entropy(scores, batch["labels"])
        if "teacher" not in batch:
            return loss
        return loss + self.weight * distillation(scores, batch["teacher"], self.temperature)


def distillation(scores: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Divergence of the softened answers on the teacher's classes.

    LwF's equations 2 and 3 (whose cross-entropy differs by a constant), times T^2 so that the
    gradients keep their size when T changes (Hinton, section 2).
    """
    student = functional.log_softmax(scores[:, : teacher.shape[1]] / temperature, dim=1)
    wanted = functional.log_softmax(teacher / temperature, dim=1)
    divergence = functional.kl_div(student, wanted, log_target=True, reduction="batchmean")
    return temperature**2 * divergence
