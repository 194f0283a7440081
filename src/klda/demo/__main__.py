"""``python -m klda.demo``: learn task by task, ask, mark the unknown, forget, save, load."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from klda import KLDA, LDA, NCM
from klda.demo import Example, examples, unknown_questions
from klda.errors import require
from klda.learner import REFUSED, Learner

QUESTIONS = (
    "could you wire forty euros to my cousin",
    "my bag was not on the belt in Denver",
    "make the lamp in the study a little dimmer",
    "my thyroid tablets are nearly gone",
)
FORGOTTEN = "order_pizza"


class Clock:
    """Times the steps of the demonstration."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step.

        Parameters
        ----------
        name : str
            What it does.
        """
        start = time.perf_counter()
        yield
        self.steps.append((name, time.perf_counter() - start))

    @property
    def last(self) -> float:
        """Seconds that the last step took."""
        return self.steps[-1][1]


def run(console: Console, picture: Path) -> None:
    """Run the demonstration.

    Parameters
    ----------
    console : Console
        Where it is shown.
    picture : Path
        Where the picture of accuracy over tasks is saved.
    """
    clock = Clock()
    data = examples()
    tasks = list(dict.fromkeys(example.task for example in data))
    with clock.step("open the foundation model"):
        bot = Learner("minilm", keep="features")  # the ledger makes forgetting exact
    console.rule("klda: new classes for ever, nothing forgotten")
    console.print(
        f"{len(tasks)} tasks of 4 classes each, {len(data)} texts; foundation model "
        f"{bot.encoder.name}, opened in {clock.last:.1f} s\n"
    )
    learn_tasks(console, clock, bot, data, tasks)
    ask(console, bot)
    mark_unknown(console, clock, bot, data)
    with clock.step("compare KLDA, LDA and NCM"):
        curves = compare(bot, data, tasks)
    draw(curves, tasks, picture)
    forget(console, clock, bot)
    save_and_load(console, clock, bot)
    show_times(console, clock)
    shown = Text.assemble("\nAccuracy over tasks of KLDA, LDA and NCM: ", (str(picture), "bold"))
    console.print(shown)


def learn_tasks(
    console: Console, clock: Clock, bot: Learner, data: Sequence[Example], tasks: Sequence[str]
) -> None:
    """Teach the tasks one after the other and test all tasks seen so far after each."""
    table = Table(title="Accuracy by task, after each task was learned (test texts)")
    table.add_column("after task")
    for task in tasks:
        table.add_column(task, justify="right")
    for name in ("all so far", "learned in"):
        table.add_column(name, justify="right")
    for i, task in enumerate(tasks):
        texts, labels = pick(data, [task], "learn")
        with clock.step(f"learn task {i + 1}, {task}: {len(texts)} texts"):
            bot.learn(texts, labels, source=f"demo task {task}")
        seconds = clock.last
        accuracies = [bot.evaluate(*pick(data, [old], "test")).accuracy for old in tasks[: i + 1]]
        cells = [f"{accuracy:.0%}" for accuracy in accuracies] + [""] * (len(tasks) - i - 1)
        # Tasks have the same number of test texts, so the mean is the accuracy over all of them.
        overall = f"{np.mean(accuracies):.1%}"
        table.add_row(f"{i + 1} {task}", *cells, overall, f"{seconds:.2f} s")
    console.print(table)


def ask(console: Console, bot: Learner) -> None:
    """Ask questions that were never learned in these words."""
    table = Table(title="Questions")
    for name in ("question", "answer", "probability"):
        table.add_column(name)
    for question, top in zip(QUESTIONS, bot.predict_top(list(QUESTIONS), 1), strict=True):
        table.add_row(Text(question), str(top[0][0]), f"{top[0][1]:.0%}")
    console.print(table)


def mark_unknown(console: Console, clock: Clock, bot: Learner, data: Sequence[Example]) -> None:
    """Show that questions which fit no class are told from those that do."""
    strangers = unknown_questions()
    texts, _ = pick(data, list(dict.fromkeys(example.task for example in data)), "test")
    with clock.step("tell known from unknown"):
        unknown = ~bot.is_known(strangers, refused=REFUSED)
        refused = ~bot.is_known(texts, refused=REFUSED)
    nearest = bot.predict(strangers)
    table = Table(title="Questions that fit no class")
    for name in ("question", "verdict", "nearest class"):
        table.add_column(name)
    for question, is_unknown, label in zip(strangers, unknown, nearest, strict=True):
        verdict = Text("unknown", style="green") if is_unknown else Text(str(label), style="red")
        table.add_row(Text(question), verdict, str(label))
    console.print(table)
    console.print(
        f"Marked unknown: {unknown.sum()} of {len(strangers)} such questions, and wrongly "
        f"{refused.sum()} of {len(texts)} test texts that do fit a class: {refused.mean():.0%}, "
        f"where {REFUSED:.0%} was asked for.\n"
    )


def forget(console: Console, clock: Clock, bot: Learner) -> None:
    """Forget a class; it is never an answer again."""
    question = ["a large pizza with olives, delivered please"]
    before = bot.predict(question)[0]
    with clock.step(f"forget the class {FORGOTTEN}"):
        bot.forget(FORGOTTEN)
    after = bot.predict(question)[0]
    console.print(
        f'Forgot {FORGOTTEN}, exactly: "{question[0]}" was answered {before}, now {after}; '
        f"{len(bot.classes)} classes left.\n"
    )


def save_and_load(console: Console, clock: Clock, bot: Learner) -> None:
    """Save to a model folder, load it, and ask again."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "bot"
        with clock.step("save the model"):
            bot.save(folder)
        with clock.step("load the model"):
            loaded = Learner.load(folder, model=bot.encoder)
        same = (loaded.predict(list(QUESTIONS)) == bot.predict(list(QUESTIONS))).all()
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        console.print(
            f"Saved ({size:.1f} MB) and loaded: {'the same' if same else 'DIFFERENT'} answers.\n"
        )


def compare(bot: Learner, data: Sequence[Example], tasks: Sequence[str]) -> dict[str, list[float]]:
    """Accuracy over the classes seen so far after each task, for three classifiers.

    Parameters
    ----------
    bot : Learner
        Lends its foundation model and its bandwidth.
    data : sequence of Example
        The texts.
    tasks : sequence of str
        In the order of their arrival.

    Returns
    -------
    dict
        One accuracy a task for each classifier.
    """
    rows = dict(
        zip(
            (example.text for example in data),
            bot.encoder.encode([example.text for example in data]),
            strict=True,
        )
    )
    classifiers: dict[str, Any] = {
        "KLDA": KLDA(**bot.classifier.get_params()),
        "LDA": LDA(),
        "NCM": NCM(),
    }
    curves: dict[str, list[float]] = {}
    for name, classifier in classifiers.items():
        curves[name] = []
        for i, task in enumerate(tasks):
            texts, labels = pick(data, [task], "learn")
            classifier.partial_fit(np.stack([rows[text] for text in texts]), labels)
            texts, labels = pick(data, tasks[: i + 1], "test")
            answers = classifier.predict(np.stack([rows[text] for text in texts]))
            curves[name].append(float(np.mean(answers == np.array(labels))))
    return curves


def draw(curves: dict[str, list[float]], tasks: Sequence[str], picture: Path) -> None:
    """Draw accuracy over tasks.

    Parameters
    ----------
    curves : dict
        One accuracy a task for each classifier.
    tasks : sequence of str
        Their names.
    picture : Path
        A .png file.
    """
    matplotlib = require("matplotlib", "plot")
    matplotlib.use("Agg")
    pyplot = require("matplotlib.pyplot", "plot")
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    steps = range(1, len(tasks) + 1)
    styles = {
        "KLDA": ("#b2182b", "o", 2.6, 3),
        "LDA": ("#2166ac", "s", 1.6, 2),
        "NCM": ("#777777", "^", 1.6, 1),
    }
    for name, accuracies in curves.items():
        colour, marker, width, order = styles[name]
        axes.plot(
            steps,
            [100 * accuracy for accuracy in accuracies],
            color=colour,
            marker=marker,
            linewidth=width,
            zorder=order,
            label=f"{name}, {accuracies[-1]:.1%} at the end",
        )
    axes.set_xticks(steps, [f"{i}: {task}" for i, task in zip(steps, tasks, strict=True)])
    axes.set_xlabel("task learned last (4 new classes each)")
    axes.set_ylabel("accuracy over all classes so far, %")
    axes.set_title("Twenty intents, taught in five tasks, all-MiniLM-L6-v2 frozen")
    lowest = 100 * min(min(accuracies) for accuracies in curves.values())
    axes.set_ylim(min(90.0, lowest - 2), 100.5)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=150)
    pyplot.close(figure)


def show_times(console: Console, clock: Clock) -> None:
    """Show how long each step took."""
    table = Table(title="Time of each step")
    table.add_column("step")
    table.add_column("seconds", justify="right")
    for name, seconds in clock.steps:
        table.add_row(name, f"{seconds:.2f}")
    console.print(table)


def pick(data: Sequence[Example], tasks: Sequence[str], part: str) -> tuple[list[str], list[str]]:
    """Texts and labels of some tasks.

    Parameters
    ----------
    data : sequence of Example
        The data set.
    tasks : sequence of str
        Which tasks.
    part : {"learn", "test"}
        Which part.

    Returns
    -------
    texts, labels : list of str
        In the order of the data set.
    """
    chosen = [example for example in data if example.task in tasks and example.part == part]
    return [example.text for example in chosen], [example.intent for example in chosen]


def main() -> None:
    """Run the demonstration from the command line."""
    parser = argparse.ArgumentParser(prog="python -m klda.demo", description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("out/demo.png"))
    run(Console(), parser.parse_args().picture)


if __name__ == "__main__":
    main()
