"""The class-incremental protocol of the paper.

Classes are shuffled by a seed and split into tasks whose sizes differ by at most one. Tasks arrive
one after another; a method sees each task's rows once, keeps none of them, and is never told at
test time which task a row belongs to.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from klda.errors import KldaError
from klda_bench.metrics import accuracy, summarise
from klda_bench.resources import PeakMemory

Evaluate = Literal["each", "end"]


@runtime_checkable
class Method(Protocol):
    """What the protocol asks of a method.

    Attributes
    ----------
    name : str
        Its name in tables and on the command line.
    needs : {"features", "inputs"}
        Whether ``X`` holds frozen feature rows, or the raw texts or images.

    Notes
    -----
    A method that sets ``joint = True`` is the upper bound: it is handed all tasks at once.
    """

    name: str
    needs: str

    def learn_task(self, X: Any, y: Any, /) -> None:
        """Learn one task: all of its rows, once."""

    def predict(self, X: Any, /) -> np.ndarray:
        """Labels of the rows, among all classes seen."""


@dataclass(frozen=True)
class Samples:
    """Rows and their labels.

    Parameters
    ----------
    X : ndarray or list
        Feature rows, texts, or images.
    y : ndarray of str
        Labels.
    """

    X: Any
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.y)

    def of_classes(self, classes: Sequence[str]) -> Samples:
        """Only the rows of `classes`, in their original order."""
        return self.take(np.flatnonzero(np.isin(self.y, np.asarray(classes))))

    def take(self, rows: np.ndarray) -> Samples:
        """Only the given rows."""
        if isinstance(self.X, np.ndarray):
            return Samples(self.X[rows], self.y[rows])
        return Samples([self.X[row] for row in rows], self.y[rows])


def split_classes(classes: Sequence[str], n_tasks: int, seed: int) -> list[list[str]]:
    """Shuffle the classes and split them into tasks.

    Parameters
    ----------
    classes : sequence of str
        Class labels; their order does not matter.
    n_tasks : int
        Number of tasks, at most the number of classes.
    seed : int
        Seed of the shuffle.

    Returns
    -------
    list of list of str
        Classes of each task; sizes differ by at most one.
    """
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
    """What one run produced.

    Parameters
    ----------
    tasks : list of list of str
        Classes of each task.
    seen_accuracy : list of float or None
        Accuracy over the classes seen after each task, in per cent; ``None`` where not measured.
    matrix : list
        ``matrix[i][j]``: accuracy on task ``j`` after task ``i``; ``None`` for a row not measured.
    samples_seen : list of int
        Number of training rows learned after each task.
    learn_seconds : list of float
        Time to learn each task, including whatever the first prediction after it had to solve is
        *not* here but in `predict_seconds`.
    predict_seconds : list of float or None
        Time to label the test rows after each task. A lazy method solves its system here.
    rows_predicted : int
        Test rows of the last prediction.
    correct : ndarray of bool
        Whether each test row was answered correctly at the end.
    peak_memory_bytes : int
        Largest resident memory of the process during the run.
    """

    tasks: list[list[str]]
    seen_accuracy: list[float | None] = field(default_factory=list)
    matrix: list[list[float | None] | None] = field(default_factory=list)
    samples_seen: list[int] = field(default_factory=list)
    learn_seconds: list[float] = field(default_factory=list)
    predict_seconds: list[float | None] = field(default_factory=list)
    rows_predicted: int = 0
    correct: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    peak_memory_bytes: int = 0

    @property
    def metrics(self) -> dict[str, float | None]:
        """Final accuracy, average incremental accuracy, forgetting, backward transfer."""
        return summarise(self.seen_accuracy, self.matrix)


def run(
    method: Method,
    train: Samples,
    test: Samples,
    tasks: list[list[str]],
    *,
    evaluate: Evaluate = "each",
    on_task: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Put a method through the tasks.

    Parameters
    ----------
    method : Method
        A fresh method.
    train, test : Samples
        Rows in the form the method needs.
    tasks : list of list of str
        Classes of each task, from :func:`split_classes`.
    evaluate : {"each", "end"}
        Measure after each task, or after the last one only.
    on_task : callable, optional
        Called as ``on_task(tasks_done, n_tasks)`` after each task.

    Returns
    -------
    Outcome
        Accuracies, times and memory.
    """
    outcome = Outcome(tasks=tasks)
    joint = bool(getattr(method, "joint", False))
    with PeakMemory() as memory:
        for i in range(len(tasks)):
            last = i == len(tasks) - 1
            _learn(method, train, tasks, i, joint, outcome)
            if last or (evaluate == "each" and not joint):
                _measure(method, test, tasks[: i + 1], outcome)
            else:
                outcome.seen_accuracy.append(None)
                outcome.matrix.append(None)
                outcome.predict_seconds.append(None)
            if on_task is not None:
                on_task(i + 1, len(tasks))
    outcome.peak_memory_bytes = memory.peak_bytes
    return outcome


def _learn(
    method: Method,
    train: Samples,
    tasks: list[list[str]],
    i: int,
    joint: bool,
    outcome: Outcome,
) -> None:
    seen = sum(len(train.of_classes(task)) for task in tasks[: i + 1])
    outcome.samples_seen.append(seen)
    last = i == len(tasks) - 1
    if joint and not last:
        outcome.learn_seconds.append(0.0)
        return
    classes = [name for task in tasks for name in task] if joint else tasks[i]
    rows = train.of_classes(classes)
    start = time.perf_counter()
    method.learn_task(rows.X, rows.y)
    outcome.learn_seconds.append(time.perf_counter() - start)


def _measure(method: Method, test: Samples, seen: list[list[str]], outcome: Outcome) -> None:
    rows = test.of_classes([name for task in seen for name in task])
    start = time.perf_counter()
    predicted = np.asarray(method.predict(rows.X)).astype(str)
    outcome.predict_seconds.append(time.perf_counter() - start)
    outcome.rows_predicted = len(rows)
    outcome.correct = predicted == rows.y
    outcome.seen_accuracy.append(accuracy(rows.y, predicted))
    outcome.matrix.append(
        [
            accuracy(rows.y[mask], predicted[mask])
            for mask in (np.isin(rows.y, np.asarray(task)) for task in seen)
        ]
    )
