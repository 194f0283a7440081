from __future__ import annotations

import numpy as np
import pytest
import torch

from baselines.toys import make
from klda_bench.baselines.classifiers import distillation


def softmax(x, temperature):
    e = np.exp(np.asarray(x) / temperature)
    return e / e.sum(-1, keepdims=True)


def test_the_distillation_loss_equals_the_hand_computed_one():
    scores = torch.tensor([[1.0, -0.5, 3.0], [0.2, 0.1, -4.0]])
    teacher = torch.tensor([[2.0, 0.0], [-1.0, 1.0]])
    p, q = softmax(teacher, 2.0), softmax(scores[:, :2], 2.0)
    by_hand = 4 * (p * np.log(p / q)).sum(1).mean()
    assert float(distillation(scores, teacher, 2.0)) == pytest.approx(by_hand, rel=1e-5)
    assert float(distillation(teacher, teacher, 2.0)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("kind", ["bert", "bart"])
def test_old_outputs_stay_closer_to_the_teacher_than_vanillas(tiny, fast, tasks, kind):
    distance = {}
    for name, options in (("vanilla", {}), ("kd", {"weight": 5.0})):
        method = make(name, tiny[kind], **fast, **options)
        method.learn_task(*tasks.first)
        # On the new task's texts, where the teacher was asked, and on the old task's.
        rows = [method._rows(tasks.second[0]), method._rows(tasks.first_test[0])]
        teacher = [method._logits(r) for r in rows]
        method.learn_task(*tasks.second)
        distance[name] = [
            float(distillation(method._logits(r), t, 2.0))
            for r, t in zip(rows, teacher, strict=True)
        ]
    assert distance["kd"][0] < 0.5 * distance["vanilla"][0]
    assert distance["kd"][1] < distance["vanilla"][1]
