"""``python -m klda_bench.demo``: declare, ask, teach, doubt, refuse, remember, forget, save."""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from klda import Learner
from klda_bench.data.datasets import Samples
from klda_bench.demo import comparison
from klda_bench.demo.texts import examples, unknown_questions
from klda_bench.display.show import show
from klda_bench.methods.ours import Default
from klda_bench.methods.registry import learn_task
from klda_bench.runs.metrics import accuracy
from klda_bench.runs.protocol import run as run_protocol

QUESTIONS = [
    "could you wire forty euros to my cousin",
    "my bag was not on the belt in Denver",
    "make the lamp in the study a little dimmer",
    "my thyroid tablets are nearly gone",
]
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

    def show(self, title: str, rows: Any) -> None:
        """Print rows as a table."""
        show(pd.DataFrame(rows), title, self.console)

    def drawn(self, above: int, samples: Any) -> Samples:
        """Return the samples of each class from a number on up to another one."""
        return self.learn.take(np.flatnonzero((above <= self.rank) & (self.rank < samples)))

    def ask(self, title: str) -> None:
        """Ask questions that are never learned in these words."""
        answers = [top[0] for top in self.bot.predict_top(QUESTIONS, 1)]
        rows = [
            {"question": question, "answer": str(label), "probability": f"{probability:.0%}"}
            for question, (label, probability) in zip(QUESTIONS, answers, strict=True)
        ]
        self.show(title, rows)

    def first_minutes(self) -> tuple[comparison.Curves, comparison.Curves]:
        """Declare all classes by their names, then teach them in rounds and test after each."""
        self.bot.declare(list(self.intents))
        self.ask("Asked when it knows nothing but the names of the classes")
        rows = [self.tested(0)]
        curves: comparison.Curves = {title: [] for title in comparison.alternatives()}
        for before, samples in itertools.pairwise(SAMPLES):
            new, known = self.drawn(before, samples), self.drawn(0, samples)
            self.bot.learn_rows(new.X, new.y.tolist(), source="demo")
            rows.append(self.tested(samples))
            for title, method in comparison.alternatives().items():
                learn_task(method, known.X, known.y)
                curves[title].append(accuracy(self.test.y, method.predict(self.test.X)))
        frame = pd.DataFrame(rows)
        percent = frame.drop(columns="samples").map(lambda v: "-" if np.isnan(v) else f"{v:.1f}%")
        percent.insert(0, "samples", frame.samples.map(lambda k: str(k) if k else "0 (names)"))
        self.show(
            "The first minutes: accuracy and doubt by samples per class (sure: above 90%)", percent
        )
        self.ask("The same questions now")
        refused = {
            comparison.STRANGE: frame["new refused"],
            comparison.USUAL: frame["known refused"],
        }
        return {comparison.KLDA: frame.accuracy.tolist()} | curves, {
            title: values.tolist() for title, values in refused.items()
        }

    def tested(self, samples: int) -> dict[str, float]:
        """Test the bot on known and unknown inputs; figures in per cent, NaN if it can't tell."""
        answers, strangers = (self.bot.answer_rows(X, top=1) for X in (self.test.X, self.strangers))
        right = np.array([a.top[0][0] for a in answers]) == self.test.y
        sure = np.array([a.top[0][1] for a in answers])
        shares = {
            "accuracy": right.mean(),
            "confidence": sure.mean(),
            "sure wrong": np.mean(~right & (sure > 0.9)),
            "new refused": np.mean([np.nan if a.known is None else not a.known for a in strangers]),
            "known refused": np.mean([np.nan if a.known is None else not a.known for a in answers]),
        }
        return {"samples": samples} | {name: 100 * float(v) for name, v in shares.items()}

    def long_run(self) -> comparison.Curves:
        """Teach the tasks one after the other, to a new bot and to everything it is compared with.

        Classes have 16, 8, 4 or 2 samples, as users have them. All learn from the same features of
        the same texts, and are tested on all classes so far, on as many texts of each.
        """
        tasks = [[i for i, own in self.intents.items() if own == task] for task in self.tasks]
        amounts = {i: n for task in tasks for i, n in zip(task, AMOUNTS, strict=True)}
        uneven = self.drawn(0, np.array([amounts[intent] for intent in self.learn.y]))
        fresh, at_once = (Default(encoder=self.bot.encoder, names=True) for _ in range(2))
        methods = {comparison.KLDA: fresh} | comparison.alternatives(list(self.intents))
        outcomes = {
            title: run_protocol(method, uneven, self.test, tasks)
            for title, method in methods.items()
        }
        table = [
            {"after task": f"{i + 1} {task}"}
            | {old: f"{a:.0f}%" for old, a in zip(self.tasks, row or (), strict=False)}
            for i, (task, row) in enumerate(
                zip(self.tasks, outcomes[comparison.KLDA].matrix, strict=True)
            )
        ]
        title = "The long run, 16, 8, 4 and 2 texts: accuracy by task, after each task"
        self.show(title, pd.DataFrame(table).fillna(""))
        curves = {title: [a or 0.0 for a in own.seen_accuracy] for title, own in outcomes.items()}
        rare = np.isin(self.test.y, [i for i, n in amounts.items() if n == min(AMOUNTS)])
        rows = [
            {"method": title}
            | {f"task {i + 1}": f"{a:.1f}%" for i, a in enumerate(curve)}
            | {"rare at the end": f"{outcomes[title].correct[rare].mean():.0%}"}
            for title, curve in curves.items()
        ]
        self.show("What a user would do instead: accuracy on all classes so far", rows)
        learn_task(at_once, uneven.X, uneven.y)
        same = np.mean(at_once.predict(self.test.X) == fresh.predict(self.test.X))
        self.console.print(
            f"Taught task by task or all at once, klda gives the same answer to {same:.0%} of the "
            "questions: the order of teaching does not matter.\n"
        )
        return curves

    def refuse(self) -> None:
        """Show what is said to questions that fit none of the classes."""
        answers, known = (self.bot.answer_rows(X, top=1) for X in (self.strangers, self.test.X))
        rows = [
            {"question": question, "nearest class": str(answer.top[0][0])}
            | {"verdict": "unknown" if answer.known is False else "known (wrong)"}
            for question, answer in zip(unknown_questions(), answers, strict=True)
        ]
        self.show("Questions that fit no class", rows)
        refused, wrongly = (sum(a.known is False for a in part) for part in (answers, known))
        self.console.print(
            f"Marked unknown: {refused} of {len(answers)} such questions, and wrongly "
            f"{wrongly} of {len(known)} test texts that do fit a class.\n"
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
            same = (loaded.predict(QUESTIONS) == self.bot.predict(QUESTIONS)).all()
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
    by_samples, refused = demo.first_minutes()
    demo.refuse()
    comparison.draw(by_samples, demo.long_run(), refused, SAMPLES, picture)
    demo.forget()
    demo.save_and_load()
    console.print(f"The comparison as a picture: {picture}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m klda_bench.demo", description=__doc__)
    parser.add_argument("--picture", type=Path, default=Path("out/demo.png"))
    run(Console(), parser.parse_args().picture)
