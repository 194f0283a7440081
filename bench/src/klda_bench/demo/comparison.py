"""What a user would do instead, on the same frozen features, and the picture that compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from klda import NCM
from klda_bench.display import plots

EPOCHS = 20
KLDA = "klda"
Curves = dict[str, list[float]]


class Retrained:
    """A scikit-learn model that is trained for each task: on its rows alone, or on all so far."""

    def __init__(self, train: Callable[[Any, Any], Any], *, keeps_rows: bool = False) -> None:
        self._train, self._keeps_rows = train, keeps_rows
        self._tasks: list[tuple[np.ndarray, np.ndarray]] = []

    def learn_task(self, X: np.ndarray, y: np.ndarray) -> None:
        """Train the model."""
        self._tasks = [*self._tasks, (X, y)] if self._keeps_rows else [(X, y)]
        self._model = self._train(*map(np.concatenate, zip(*self._tasks, strict=True)))

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Label rows."""
        return self._model.predict(X)


def _regression() -> LogisticRegression:
    # Balanced: without it a class of two texts among larger ones is hardly ever an answer.
    return LogisticRegression(C=10.0, max_iter=1000, class_weight="balanced")


def _softmax_layer(classes: Sequence[str]) -> Callable[[Any, Any], Any]:
    """Return what trains a softmax layer further by SGD; it knows all classes ahead."""
    how: dict[str, Any] = {"solver": "sgd", "learning_rate_init": 0.1, "batch_size": 16}
    head = MLPClassifier((), random_state=0, **how)

    def train(X: np.ndarray, y: np.ndarray) -> MLPClassifier:
        for _ in range(EPOCHS):
            head.partial_fit(X, y, classes=np.unique(classes))
        return head

    return train


def one_task_alternatives() -> dict[str, Any]:
    """Make what klda is compared with when all classes come at once, by title."""
    return {
        "nearest mean": NCM(),
        "logistic regression, keeps all texts": Retrained(_regression().fit, keeps_rows=True),
    }


def alternatives(classes: Sequence[str]) -> dict[str, Any]:
    """Make what klda is compared with when classes come task by task, by title."""
    return one_task_alternatives() | {
        "fine-tuned softmax layer": Retrained(_softmax_layer(classes)),
    }


def draw(
    by_samples: Curves, by_task: Curves, refused: Curves, samples: Sequence[int], file: Path
) -> Path:
    """Draw accuracy over samples per class, accuracy over tasks, and what is refused."""
    figure, (first, long, unknown) = plots.pyplot().subplots(1, 3, figsize=(15.0, 4.4))
    titles = list(dict.fromkeys([*by_samples, *by_task]))
    of_samples = [str(k) for k in samples]
    _lines(first, by_samples, of_samples, titles)
    first.set_xlabel("texts per intent (0: nothing but its name)")
    first.set_ylabel("accuracy (%)")
    first.set_title("The first minutes: twenty intents")
    first.legend(loc="lower right", title="at the end")
    tasks = max(len(curve) for curve in by_task.values())
    _lines(long, by_task, [str(i + 1) for i in range(tasks)], titles)
    long.set_ylim(0, 102)
    long.set_xlabel("tasks learned: four new intents with 16, 8, 4 and 2 texts")
    long.set_ylabel("accuracy on all intents so far (%)")
    long.set_title("The long run: intents are added, some are rare")
    long.legend(loc="center right", bbox_to_anchor=(1.0, 0.55), title="at the end")
    _lines(unknown, refused, of_samples, [*titles, *refused])
    unknown.set_ylim(-2, 102)
    unknown.set_xlabel("texts per intent")
    unknown.set_ylabel('questions answered "unknown" by klda (%)')
    unknown.set_title("Questions it was not made for")
    unknown.legend(loc="center right", title="at the end")
    return plots.save(figure, file)


def _lines(axis: Any, curves: Curves, ticks: Sequence[str], titles: Sequence[str]) -> None:
    axis.set_xticks(range(len(ticks)), ticks)
    for title, values in curves.items():
        # Some lines coincide: broken ones let the others be seen.
        look = plots.line_style(titles.index(title)) | {"linestyle": ("-", "--")[title != KLDA]}
        start = len(ticks) - len(values)
        label = f"{values[-1]:.1f}  {title}"
        axis.plot(range(start, len(ticks)), values, label=label, **look)
