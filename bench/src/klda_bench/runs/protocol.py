"""The class-incremental protocol of the paper.

Classes are shuffled by a seed and split into tasks whose sizes differ by at most one. Tasks arrive
one after another; a method sees each task's rows once, keeps none of them, and is never told at
test time which task a row belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda_bench.data.datasets import Samples
from klda_bench.methods.registry import learn_task
from klda_bench.runs.metrics import accuracy


def split_classes(classes: Sequence[str], n_tasks: int, seed: int) -> list[list[str]]:
    """Shuffle the classes by a seed and split them into tasks whose sizes differ by at most one."""
    names = sorted(set(classes))
    if not 1 <= n_tasks <= len(names):
        raise KldaError(
            f"tasks={n_tasks} does not fit {len(names)} classes: give a number from 1 to "
            f"{len(names)}."
        )
    order = np.random.default_rng(seed).permutation(len(names))
    return [[names[i] for i in part] for part in np.array_split(order, n_tasks)]


@dataclass
class Outcome:
    """What one run produced, with one entry per task in each list.

    Where accuracy was not measured, `seen_accuracy` (over the classes seen), `matrix` (by task) and
    `predict_seconds` hold ``None``. A lazy method solves its system in the first prediction, so
    that time is in `predict_seconds`. `correct` says of each test row whether it was answered
    correctly at the end.
    """

    tasks: list[list[str]]
    seen_accuracy: list[float | None] = field(default_factory=list)
    matrix: list[list[float] | None] = field(default_factory=list)
    samples_seen: list[int] = field(default_factory=list)
    learn_seconds: list[float] = field(default_factory=list)
    predict_seconds: list[float | None] = field(default_factory=list)
    correct: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))


def run(
    method: Any,
    train: Samples,
    test: Samples,
    tasks: list[list[str]],
    *,
    each: bool = True,
) -> Outcome:
    """Put a fresh method through the tasks; measure after each of them, or at the end only.

    A method with ``joint = True`` is the upper bound: it is handed all tasks at once, at the end.
    """
    outcome = Outcome(tasks=tasks)
    joint = bool(getattr(method, "joint", False))
    for i, task in enumerate(tasks):
        last = i == len(tasks) - 1
        seen = [name for part in tasks[: i + 1] for name in part]
        rows, test_rows = train.of_classes(seen if joint else task), test.of_classes(seen)
        outcome.samples_seen.append(len(train.of_classes(seen)))
        start = time.perf_counter()
        if last or not joint:
            learn_task(method, rows.X, rows.y)
        learned = time.perf_counter()
        outcome.learn_seconds.append(learned - start)
        if not last and (joint or not each):
            for part in (outcome.seen_accuracy, outcome.matrix, outcome.predict_seconds):
                part.append(None)
            continue
        predicted = np.asarray(method.predict(test_rows.X)).astype(str)
        outcome.predict_seconds.append(time.perf_counter() - learned)
        outcome.correct = predicted == test_rows.y
        outcome.seen_accuracy.append(accuracy(test_rows.y, predicted))
        own = (np.isin(test_rows.y, part) for part in tasks[: i + 1])
        outcome.matrix.append([accuracy(test_rows.y[mask], predicted[mask]) for mask in own])
    return outcome
