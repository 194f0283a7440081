"""What a user would do instead, on the same frozen features, and the picture that compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from klda import NCM, Learner
from klda_bench.display import plots
from klda_bench.methods import Estimator, Method

EPOCHS = 20
KLDA = "klda"
Curves = dict[str, list[float]]


class Taught:
    """A `Learner` as a method that learns task by task, from features."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Learn the task's rows."""
        self.learner.learn_rows(X, y.tolist())

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows."""
        return np.array([answer.top[0][0] for answer in self.learner.answer_rows(X, top=1)])


class FineTunedHead:
    """A softmax layer, trained further by SGD on each task's rows; it knows all classes ahead."""

    def __init__(self, classes: Sequence[str]) -> None:
        self._classes = np.unique(classes)
        how: dict[str, Any] = {"solver": "sgd", "learning_rate_init": 0.1, "batch_size": 16}
        self._head = MLPClassifier((), random_state=0, **how)

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Train for some epochs."""
        for _ in range(EPOCHS):
            self._head.partial_fit(X, y, classes=self._classes)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows."""
        return self._head.predict(X)


class Refitted:
    """Logistic regression, fitted again for each task: on its rows alone, or on all so far."""

    def __init__(self, *, keeps_rows: bool) -> None:
        self._keeps_rows = keeps_rows
        self._rows: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Fit again."""
        self._rows = [*self._rows, X] if self._keeps_rows else [X]
        self._labels = [*self._labels, y] if self._keeps_rows else [y]
        fresh = LogisticRegression(C=10.0, max_iter=1000)
        self._model = fresh.fit(np.concatenate(self._rows), np.concatenate(self._labels))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows."""
        return self._model.predict(X)


def one_task_alternatives() -> dict[str, Method]:
    """Make what klda is compared with when all classes come at once, by title."""
    every: dict[str, Method] = {"logistic regression, keeps all texts": Refitted(keeps_rows=True)}
    return {"nearest mean": Estimator(NCM())} | every


def alternatives(classes: Sequence[str]) -> dict[str, Method]:
    """Make what klda is compared with when classes come task by task, by title."""
    return one_task_alternatives() | {
        "logistic regression, current task": Refitted(keeps_rows=False),
        "fine-tuned softmax layer": FineTunedHead(classes),
    }


def draw(by_samples: Curves, samples: Sequence[int], by_task: Curves, file: Path) -> Path:
    """Draw accuracy over samples per class beside accuracy over tasks."""
    figure, (first, long) = plots.pyplot().subplots(1, 2, figsize=(11.0, 4.4))
    titles = list(dict.fromkeys([*by_samples, *by_task]))
    _lines(first, by_samples, [str(k) for k in samples], titles)
    first.set_xlabel("samples per class (0: nothing but its name)")
    first.set_ylabel("accuracy (%)")
    first.set_title("The first minutes: twenty intents")
    first.legend(loc="lower right", title="at the end")
    tasks = max(len(curve) for curve in by_task.values())
    _lines(long, by_task, [str(i + 1) for i in range(tasks)], titles)
    long.set_ylim(0, 102)
    long.set_xlabel("tasks learned, four new intents each")
    long.set_ylabel("accuracy on all intents so far (%)")
    long.set_title("The long run: task after task")
    long.legend(loc="center right", bbox_to_anchor=(1.0, 0.66), title="at the end")
    return plots.save(figure, file)


def _lines(axis: Any, curves: Curves, ticks: Sequence[str], titles: Sequence[str]) -> None:
    axis.set_xticks(range(len(ticks)), ticks)
    for title, values in curves.items():
        # Some lines coincide: broken ones let the others be seen.
        look = plots.line_style(titles.index(title)) | {"linestyle": ("-", "--")[title != KLDA]}
        start = len(ticks) - len(values)
        label = f"{values[-1]:.1f}  {title}"
        axis.plot(range(start, len(ticks)), values, label=label, **look)
