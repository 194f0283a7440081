"""``python -m klda_bench.demo``: declare, ask, teach, doubt, refuse, remember, forget, save."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from klda import Learner
from klda_bench.data import Samples
from klda_bench.demo import comparison, examples, unknown_questions
from klda_bench.display.show import rich_table
from klda_bench.methods import learn_task
from klda_bench.methods.ours import Default
from klda_bench.runs.protocol import run as run_protocol

QUESTIONS = (
    "could you wire forty euros to my cousin",
    "my bag was not on the belt in Denver",
    "make the lamp in the study a little dimmer",
    "my thyroid tablets are nearly gone",
)
SAMPLES = (0, 1, 2, 4, 8, 16)  # per class, after each round
AMOUNTS = (16, 8, 4, 2)  # of the four intents of a task: some are rare
FORGOTTEN = "order_pizza"


class Demonstration:
    """The steps of the demonstration."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bot = Learner("minilm", keep="features")  # the ledger makes forgetting exact
        data = examples()
        self.tasks = list(dict.fromkeys(example.task for example in data))
        self.intents = {example.intent: example.task for example in data}
        self.learn, self.test = (
            Samples(
                self.bot.encode([e.text for e in data if e.part == part]),
                np.array([e.intent for e in data if e.part == part]),
            )
            for part in ("learn", "test")
        )
        self.rank = pd.Series(self.learn.y).groupby(self.learn.y).cumcount().to_numpy()
        self.strangers = self.bot.encode(unknown_questions())
        self.first_curves: comparison.Curves = {}
        self.refused: comparison.Curves = {"fit no intent": [], "fit an intent": []}

    def show(self, title: str, rows: list[dict[str, str]] | pd.DataFrame) -> None:
        """Print rows as a table."""
        self.console.print(rich_table(pd.DataFrame(rows), title))
        self.console.print()

    def ask(self, title: str) -> None:
        """Ask questions that are never learned in these words."""
        best = [top[0] for top in self.bot.predict_top(list(QUESTIONS), 1)]
        rows = [
            {"question": question, "answer": str(label), "probability": f"{probability:.0%}"}
            for question, (label, probability) in zip(QUESTIONS, best, strict=True)
        ]
        self.show(title, rows)

    def first_minutes(self) -> None:
        """Declare all classes by their names, then teach them in rounds and test after each."""
        self.bot.declare(list(self.intents))
        self.ask("Asked when it knows nothing but the names of the classes")
        rows = [self._tested(0)]
        for before, samples in itertools.pairwise(SAMPLES):
            new = self.learn.take(np.flatnonzero((before <= self.rank) & (self.rank < samples)))
            self.bot.learn_rows(new.X, new.y.tolist(), source="demo")
            rows.append(self._tested(samples))
            self._compare_first(self.learn.take(np.flatnonzero(self.rank < samples)))
        self.show(
            "The first minutes: accuracy and doubt by samples per class (sure: above 90%)", rows
        )
        self.ask("The same questions now")

    def _tested(self, samples: int) -> dict[str, str]:
        """Test the bot on known and unknown inputs."""
        answers = self.bot.answer_rows(self.test.X, top=1)
        right = np.array([a.top[0][0] for a in answers]) == self.test.y
        sure = np.array([a.top[0][1] for a in answers])
        known = [answer.known for answer in answers]
        strangers = [answer.known for answer in self.bot.answer_rows(self.strangers)]
        self.first_curves.setdefault(comparison.KLDA, []).append(100.0 * right.mean())
        for title, verdicts in zip(self.refused, (strangers, known), strict=True):
            share = 100.0 * verdicts.count(False) / len(verdicts)
            self.refused[title].append(np.nan if None in verdicts else share)
        caught = f"{strangers.count(False)} of {len(strangers)}"
        return {
            "samples": str(samples) if samples else "0 (names)",
            "accuracy": f"{right.mean():.1%}",
            "confidence": f"{sure.mean():.1%}",
            "sure wrong": f"{np.mean(~right & (sure > 0.9)):.1%}",
            "new refused": caught if None not in strangers else "-",
            "known refused": f"{known.count(False) / len(known):.1%}",
        }

    def _compare_first(self, drawn: Samples) -> None:
        for title, method in comparison.one_task_alternatives().items():
            learn_task(method, drawn.X, drawn.y)
            accuracy = 100.0 * float(np.mean(method.predict(self.test.X) == self.test.y))
            self.first_curves.setdefault(title, []).append(accuracy)

    def long_run(self, picture: Path) -> None:
        """Teach the tasks one after the other, to a new bot and to everything it is compared with.

        Classes have 16, 8, 4 or 2 samples, as users have them. All learn from the same features of
        the same texts, and are tested on all classes so far, on as many texts of each.
        """
        tasks = [[i for i, own in self.intents.items() if own == task] for task in self.tasks]
        amounts = {i: n for task in tasks for i, n in zip(task, AMOUNTS, strict=True)}
        own = self.rank < np.array([amounts[intent] for intent in self.learn.y])
        uneven = self.learn.take(np.flatnonzero(own))
        fresh = Default(encoder=self.bot.encoder, names=True)
        methods = {comparison.KLDA: fresh} | comparison.alternatives(list(self.intents))
        outcomes = {
            title: run_protocol(method, uneven, self.test, tasks)
            for title, method in methods.items()
        }
        ours = pd.DataFrame(
            [
                dict(zip(self.tasks, row or (), strict=False))
                for row in outcomes[comparison.KLDA].matrix
            ]
        )
        table = ours.map(lambda accuracy: "" if np.isnan(accuracy) else f"{accuracy:.0f}%")
        table.insert(0, "after task", [f"{i + 1} {task}" for i, task in enumerate(self.tasks)])
        self.show("The long run, 16, 8, 4 and 2 texts: accuracy by task, after each task", table)
        curves = {
            title: [float(a) for a in outcome.seen_accuracy if a is not None]
            for title, outcome in outcomes.items()
        }
        rare = np.isin(self.test.y, [i for i, n in amounts.items() if n == min(AMOUNTS)])
        rows = [
            {"method": title}
            | {f"task {i + 1}": f"{a:.1f}%" for i, a in enumerate(curve)}
            | {"rare at the end": f"{outcomes[title].correct[rare].mean():.0%}"}
            for title, curve in curves.items()
        ]
        self.show("What a user would do instead: accuracy on all classes so far", rows)
        at_once = Default(encoder=self.bot.encoder, names=True)
        learn_task(at_once, uneven.X, uneven.y)
        same = np.mean(at_once.predict(self.test.X) == fresh.predict(self.test.X))
        self.console.print(
            f"Taught task by task or all at once, klda gives the same answer to {same:.0%} of the "
            "questions: the order of teaching does not matter.\n"
        )
        comparison.draw(self.first_curves, curves, self.refused, SAMPLES, picture)

    def refuse(self) -> None:
        """Show what is said to questions that fit none of the classes."""
        questions, answers = unknown_questions(), self.bot.answer_rows(self.strangers, top=1)
        rows = [
            {
                "question": question,
                "verdict": "unknown" if answer.known is False else f"{answer.top[0][0]} (wrong)",
                "nearest class": str(answer.top[0][0]),
            }
            for question, answer in zip(questions, answers, strict=True)
        ]
        self.show("Questions that fit no class", rows)
        known = [answer.known for answer in self.bot.answer_rows(self.test.X, top=1)]
        refused = sum(answer.known is False for answer in answers)
        self.console.print(
            f"Marked unknown: {refused} of {len(questions)} such questions, and wrongly "
            f"{known.count(False)} of {len(known)} test texts that do fit a class.\n"
        )

    def forget(self) -> None:
        """Forget a class; it is never an answer again."""
        question = ["a large pizza with olives, delivered please"]
        before = self.bot.predict(question)[0]
        self.bot.forget(FORGOTTEN)
        after = self.bot.predict(question, reject=0.05)[0]
        self.console.print(
            f'Forgot {FORGOTTEN}, exactly: "{question[0]}" was answered {before}, now '
            f"{after}; {len(self.bot.classes)} classes left.\n"
        )

    def save_and_load(self) -> None:
        """Save to a model folder, load it, and ask again."""
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "bot"
            self.bot.save(folder)
            loaded = Learner.load(folder, model=self.bot.encoder)
            same = (loaded.predict(list(QUESTIONS)) == self.bot.predict(list(QUESTIONS))).all()
            size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        answers = "the same" if same else "DIFFERENT"
        self.console.print(f"Saved ({size:.1f} MB) and loaded: {answers} answers.\n")


def run(console: Console, picture: Path) -> None:
    """Run the demonstration; save the picture of what it compares."""
    demo = Demonstration(console)
    console.rule("klda: new classes forever, nothing forgotten")
    console.print(
        f"{len(demo.intents)} classes in {len(demo.tasks)} tasks, {len(demo.learn)} texts to learn "
        f"and {len(demo.test)} to test; foundation model {demo.bot.encoder.name}\n"
    )
    demo.first_minutes()
    demo.refuse()
    demo.long_run(picture)
    demo.forget()
    demo.save_and_load()
    console.print(Text.assemble("The comparison as a picture: ", (str(picture), "bold")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m klda_bench.demo", description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("out/demo.png"))
    run(Console(), parser.parse_args().picture)
