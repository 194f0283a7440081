"""What a user would do instead, on the same frozen features, and the picture that compares."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from klda import NCM
from klda_bench.at_work.programs import Retrained
from klda_bench.display import plots

EPOCHS = 20
KLDA = "klda"
MEAN = "nearest mean"
REGRESSION = "logistic regression, keeps all texts"
HEAD = "fine-tuned softmax layer"
STRANGE, USUAL = "questions that fit no intent", "questions that fit an intent"
Curves = dict[str, list[float]]

# Okabe and Ito's colours: told apart with any colour vision. Some lines coincide: broken ones let
# the others be seen.
_PEER = {"linewidth": 2.0, "markersize": 6.0}
LOOKS: dict[str, dict[str, Any]] = {
    KLDA: {"color": "#0072B2", "marker": "o", "linewidth": 3.2, "markersize": 7.5, "zorder": 3},
    MEAN: {"color": "#D55E00", "marker": "s", "linestyle": "--"} | _PEER,
    REGRESSION: {"color": "#009E73", "marker": "D", "linestyle": ":"} | _PEER,
    HEAD: {"color": "#7F7F7F", "marker": "^", "linestyle": "-."} | _PEER,
    STRANGE: {"color": "#0072B2", "marker": "o", "linewidth": 3.2, "markersize": 7.5},
    USUAL: {"color": "#B2182B", "marker": "P"} | _PEER,
}


def alternatives(classes: Sequence[str] = ()) -> dict[str, Any]:
    """Make what klda is compared with, by title; if it comes task by task, `classes` are all."""
    # Balanced: without it a class of two texts among larger ones is hardly ever an answer.
    regression = LogisticRegression(C=10.0, max_iter=1000, class_weight="balanced")
    at_once = Retrained(regression.fit)
    found: dict[str, Any] = {
        MEAN: NCM(),
        REGRESSION: SimpleNamespace(learn_task=at_once.learn, predict=at_once.predict),
    }
    if classes:
        how: dict[str, Any] = {"solver": "sgd", "learning_rate_init": 0.1, "batch_size": 16}
        head = MLPClassifier((), random_state=0, **how)

        def learn_task(X: np.ndarray, y: np.ndarray) -> None:
            """Train a softmax layer further; it knows all classes ahead."""
            for _ in range(EPOCHS):
                head.partial_fit(X, y, classes=np.unique(classes))

        found[HEAD] = SimpleNamespace(learn_task=learn_task, predict=head.predict)
    return found


def draw(
    by_samples: Curves, by_task: Curves, refused: Curves, samples: Sequence[int], file: Path
) -> Path:
    """Draw accuracy over samples per class, accuracy over tasks, and what is refused.

    The letters are as large as those of a page that shows the picture 900 pixels wide.
    """
    plt = plots.pyplot()
    figure, axes = plt.subplots(1, 3, figsize=(12.0, 4.5), width_ratios=(1, 1, 0.8))
    tasks = range(1, 1 + max(map(len, by_task.values())))
    panels = (
        (by_samples, samples, "Twenty intents: accuracy (%)", "texts per intent (0: its name)"),
        (by_task, tasks, "Added task by task: accuracy (%)", "tasks learned, one after the other"),
        (refused, samples, 'Answered "unknown" (%)', "texts per intent"),
    )
    for axis, (curves, ticks, title, xlabel) in zip(axes, panels, strict=True):
        for name, values in curves.items():
            start = len(ticks) - len(values)
            axis.plot(range(start, len(ticks)), values, label=name, **LOOKS[name])
        axis.set_title(title, loc="left", fontsize=13, fontweight="bold")
        axis.set_xlabel(xlabel, fontsize=12)
        axis.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
        axis.tick_params(labelsize=12)
        axis.margins(y=0.08)
    axes[1].set_ylim(0, 100)
    last = axes[2]
    last.set(xlim=(-0.5, len(samples) - 0.8), ylim=(-4, 104))
    for name, values in refused.items():
        at = np.nanmin(values) - 7 if values[-1] > 50 else np.nanmax(values) + 4
        colour = LOOKS[name]["color"]
        last.text(len(samples) - 1, at, name, ha="right", fontsize=12, color=colour)
    unsure = int(np.isnan(refused[STRANGE]).sum())
    if unsure:
        middle = (unsure - 1) / 2
        last.text(middle, 40, "too few\nto tell", ha="center", fontsize=12, color="#555")
    lines = {line.get_label(): line for axis in axes[:2] for line in axis.get_lines()}
    figure.legend(
        *(lines.values(), lines.keys()),
        loc="outside lower center",
        ncols=len(lines),
        frameon=False,
        fontsize=12,
    )
    return plots.save(figure, file)
