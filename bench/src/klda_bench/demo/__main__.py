"""``python -m klda_bench.demo``: learn task by task, ask, mark the unknown, forget, save, load."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from klda import KLDA, LDA, NCM, Learner
from klda_bench.data import Samples
from klda_bench.demo import examples, unknown_questions
from klda_bench.methods import Estimator
from klda_bench.report import plots
from klda_bench.report.show import rich_table
from klda_bench.runs.protocol import run as run_protocol

QUESTIONS = (
    "could you wire forty euros to my cousin",
    "my bag was not on the belt in Denver",
    "make the lamp in the study a little dimmer",
    "my thyroid tablets are nearly gone",
)
FORGOTTEN = "order_pizza"
REFUSED = 0.05  # fraction of known inputs that may be called unknown


class Demonstration:
    """The steps of the demonstration, each timed."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.steps: list[tuple[str, float]] = []
        self.data = examples()
        self.tasks = list(dict.fromkeys(example.task for example in self.data))
        with self.step("open the foundation model"):
            self.bot = Learner("minilm", keep="features")  # the ledger makes forgetting exact

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time one step."""
        start = time.perf_counter()
        yield
        self.steps.append((name, time.perf_counter() - start))

    def texts(self, part: str, *tasks: str) -> tuple[list[str], list[str]]:
        """Texts and labels of the part ``learn`` or ``test`` of some tasks, or of all."""
        chosen = [e for e in self.data if e.part == part and e.task in (tasks or self.tasks)]
        return [e.text for e in chosen], [e.intent for e in chosen]

    def show(self, title: str, rows: list[dict[str, str]]) -> None:
        """Print rows as a table."""
        self.console.print(rich_table(pd.DataFrame(rows), title))

    def learn_tasks(self) -> None:
        """Teach the tasks one after the other and test all tasks seen so far after each."""
        rows = []
        for i, task in enumerate(self.tasks):
            texts, labels = self.texts("learn", task)
            with self.step(f"learn task {i + 1}, {task}: {len(texts)} texts"):
                self.bot.learn(texts, labels, source=f"demo task {task}")
            found = {
                old: self.bot.evaluate(*self.texts("test", old)).accuracy
                for old in self.tasks[: i + 1]
            }
            row = {"after task": f"{i + 1} {task}"} | dict.fromkeys(self.tasks, "")
            row |= {old: f"{accuracy:.0%}" for old, accuracy in found.items()}
            # Tasks have as many test texts each, so the mean is the accuracy over all of them.
            row |= {"all so far": f"{np.mean(list(found.values())):.1%}"}
            rows.append(row | {"learned in": f"{self.steps[-1][1]:.2f} s"})
        self.show("Accuracy by task, after each task was learned (test texts)", rows)

    def ask(self) -> None:
        """Ask questions that were never learned in these words."""
        answers = self.bot.predict_top(list(QUESTIONS), 1)
        rows = [
            {"question": question, "answer": str(label), "probability": f"{probability:.0%}"}
            for question, ((label, probability),) in zip(QUESTIONS, answers, strict=True)
        ]
        self.show("Questions", rows)

    def mark_unknown(self) -> None:
        """Show that questions which fit no class are told from those that do."""
        strangers, (texts, _) = unknown_questions(), self.texts("test")
        with self.step("tell known from unknown"):
            unknown = ~self.bot.is_known(strangers, refused=REFUSED)
            refused = ~self.bot.is_known(texts, refused=REFUSED)
        answers = zip(strangers, unknown, self.bot.predict(strangers), strict=True)
        rows = [
            {"question": question, "verdict": "unknown" if new else label, "nearest class": label}
            for question, new, label in answers
        ]
        self.show("Questions that fit no class", rows)
        self.console.print(
            f"Marked unknown: {unknown.sum()} of {len(strangers)} such questions, and wrongly "
            f"{refused.sum()} of {len(texts)} test texts that do fit a class: {refused.mean():.0%},"
            f" where {REFUSED:.0%} was asked for.\n"
        )

    def compare(self, picture: Path) -> None:
        """Draw the accuracy over the classes seen so far after each task, for three classifiers."""
        with self.step("compare KLDA, LDA and NCM"):
            train, test = (
                Samples(self.bot.encoder.encode(texts), np.array(labels))
                for texts, labels in (self.texts("learn"), self.texts("test"))
            )
            tasks = [sorted(set(self.texts("learn", task)[1])) for task in self.tasks]
            ours = KLDA(**self.bot.classifier.get_params())
            outcomes = {
                name: run_protocol(Estimator(classifier), train, test, tasks)
                for name, classifier in (("KLDA", ours), ("LDA", LDA()), ("NCM", NCM()))
            }
        title = "Twenty intents, taught in five tasks"
        curves = pd.concat(
            outcome.curve().assign(dataset="all-MiniLM-L6-v2 frozen", method=name, seed=0)
            for name, outcome in outcomes.items()
        )
        titles = {
            name: f"{name}, {outcome.seen_accuracy[-1]:.1f}% at the end"
            for name, outcome in outcomes.items()
        }
        plots.draw_curves(curves, titles, 1, picture, None, title)

    def forget(self) -> None:
        """Forget a class; it is never an answer again."""
        question = ["a large pizza with olives, delivered please"]
        before = self.bot.predict(question)[0]
        with self.step(f"forget the class {FORGOTTEN}"):
            self.bot.forget(FORGOTTEN)
        self.console.print(
            f'Forgot {FORGOTTEN}, exactly: "{question[0]}" was answered {before}, now '
            f"{self.bot.predict(question)[0]}; {len(self.bot.classes)} classes left.\n"
        )

    def save_and_load(self) -> None:
        """Save to a model folder, load it, and ask again."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "bot"
            with self.step("save the model"):
                self.bot.save(folder)
            with self.step("load the model"):
                loaded = Learner.load(folder, model=self.bot.encoder)
            same = (loaded.predict(list(QUESTIONS)) == self.bot.predict(list(QUESTIONS))).all()
            size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        answers = "the same" if same else "DIFFERENT"
        self.console.print(f"Saved ({size:.1f} MB) and loaded: {answers} answers.\n")


def run(console: Console, picture: Path) -> None:
    """Run the demonstration; save the picture of accuracy over tasks."""
    demo = Demonstration(console)
    console.rule("klda: new classes forever, nothing forgotten")
    console.print(
        f"{len(demo.tasks)} tasks of 4 classes each, {len(demo.data)} texts; foundation model "
        f"{demo.bot.encoder.name}, opened in {demo.steps[0][1]:.1f} s\n"
    )
    demo.learn_tasks()
    demo.ask()
    demo.mark_unknown()
    demo.compare(picture)
    demo.forget()
    demo.save_and_load()
    times = [{"step": name, "seconds": f"{seconds:.2f}"} for name, seconds in demo.steps]
    demo.show("Time of each step", times)
    line = ("\nAccuracy over tasks of KLDA, LDA and NCM: ", (str(picture), "bold"))
    console.print(Text.assemble(*line))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m klda_bench.demo", description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("out/demo.png"))
    run(Console(), parser.parse_args().picture)
