from __future__ import annotations

import time

import numpy as np
import pytest

from baselines.toys import NAMES, accuracy, make
from klda_bench.data.datasets import Samples
from klda_bench.methods.registry import select
from klda_bench.runs.protocol import run, split_classes

OPTIONS = {
    "l2p": {"epochs": 60, "head_lr": 3e-2, "top_n": 3, "prompt_length": 4},
    "ewc": {"fisher_samples": 20},
    "lamol": {"epochs": 25},
    "vag": {"epochs": 20},
    "vanilla-g": {"epochs": 20},
}


@pytest.mark.parametrize("name", [spec.name for spec in select("fine-tuned")])
def test_every_baseline_learns_two_toy_tasks_on_a_tiny_bart(tiny, fast, tasks, name):
    start = time.perf_counter()
    method = make(name, tiny["bart"], **{**fast, **OPTIONS.get(name, {})})
    if method.joint:
        method.learn_task(*tasks.all)
    else:
        method.learn_task(*tasks.first)
        assert accuracy(method, tasks.first_test) > 0.8
        method.learn_task(*tasks.second)
    answers = method.predict(tasks.all_test[0])
    assert set(answers) <= set(NAMES)
    # The last task is learned: better than guessing among four classes even where L2P's head,
    # trained on one task's classes at a time, prefers an earlier one.
    late = np.array(tasks.all_test[1]) == answers
    assert late[len(late) // 2 :].mean() > 0.4
    assert time.perf_counter() - start < 60


@pytest.mark.parametrize("name", ["joint", "vanilla"])
def test_the_benchmarks_protocol_runs_a_baseline_as_it_is(tiny, fast, tasks, name):
    train, test = (
        Samples(texts, np.array(labels)) for texts, labels in (tasks.all, tasks.all_test)
    )
    method = make(name, tiny["bert"], **fast)
    outcome = run(method, train, test, split_classes(NAMES, 2, seed=0))
    if name == "joint":
        assert outcome.seen_accuracy[0] is None
        assert outcome.seen_accuracy[1] > 90
    else:
        assert outcome.seen_accuracy[0] > 90
        assert outcome.matrix[1][0] < 50 < outcome.matrix[1][1]
