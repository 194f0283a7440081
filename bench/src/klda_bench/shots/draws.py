"""Draw samples of a data set, teach every method the same ones, and measure its answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from klda.inspection.evaluation import Reliability
from klda_bench import environment
from klda_bench.data import datasets
from klda_bench.results import PROGRAM, Row, Run
from klda_bench.runs.features import features, load_encoder
from klda_bench.runs.metrics import accuracy, accuracy_as_learned
from klda_bench.shots.contenders import CONTENDERS, Answers, answers_of
from klda_bench.shots.tasks import ALL, KINDS, MADE, Shots, Task

BINS = 10
TRIALS = 20  # of answers that are right as often as they say
SURE = 0.9


@dataclass(frozen=True)
class ShotsPlan:
    """What to measure: methods x data sets x samples per class x draws of one kind of task."""

    kind: str
    methods: Sequence[str]
    datasets: Sequence[str]
    shots: Sequence[Shots]
    draws: int
    backbone: str = "minilm"
    data: str | None = None

    def cells(self) -> Iterator[tuple[str, Shots, int]]:
        """Yield method, samples per class and draw, leaving out what can't be or is the same."""
        for shots, draw, name in product(self.shots, range(self.draws), self.methods):
            by_name = shots == 0 or self.kind == "declared"
            all_of_peer = shots == ALL and self.kind == "shots" and not CONTENDERS[name].is_ours
            same_again = draw and (shots == 0 or all_of_peer)
            if not same_again and (name == "names" or not by_name):
                yield name, shots, draw

    def runs(self) -> list[Run]:
        """Return all runs; every data set is read before, so that no run is made in vain."""
        arenas = [Arena(name, self) for name in self.datasets]
        enough = [one for one in arenas if len(one.dataset.classes) >= KINDS[self.kind].classes]
        return [arena.run(*cell) for arena in enough for cell in self.cells()]


class Arena:
    """A data set whose features are computed when a run first needs them."""

    def __init__(self, name: str, plan: ShotsPlan) -> None:
        self.dataset = MADE[name]() if name in MADE else datasets.load(name, data=plan.data)
        self._plan = plan

    @cached_property
    def unknown(self) -> list[str]:
        """CLINC150's out-of-scope queries, if this is CLINC150 and they are here."""
        return datasets.out_of_scope(self._plan.data) if self.dataset.name == "clinc" else []

    def run(self, method: str, shots: Shots, draw: int) -> Run:
        """Return a run; its settings are all that determines its numbers."""
        settings: Row = {
            "what": self._plan.kind,
            "dataset": self.dataset.name,
            "data_sha256": self.dataset.sha256,
            "backbone": self._plan.backbone,
            "method": method,
            "shots": shots,
            "draw": draw,
            # What ours answer changes with the program.
            **({"program": PROGRAM} if CONTENDERS[method].is_ours else {}),
        }
        title = f"{self.dataset.title}: {method}, {shots} samples, draw {draw}"
        return Run(settings, title, partial(self.measured, settings))

    def measured(self, settings: Row) -> Row:
        """Teach a method one draw and measure its answers."""
        method, draw = settings["method"], settings["draw"]
        layers, truth = CONTENDERS[method].layers, self.dataset.test.y
        X_test = features(self.dataset, self._plan.backbone, layers)[1].X
        rng = np.random.default_rng(draw)
        task = KINDS[self._plan.kind].draw(self.dataset.train.y, settings["shots"], rng)
        taught = self._taught(method, draw, task, task.by_name)
        answers = answers_of(taught, X_test)

        def recall(classes: np.ndarray) -> float:
            of_these = np.isin(truth, classes)
            return accuracy(truth[of_these], answers.labels[of_these])

        if len(task.by_name) and len(task.rows):
            others = np.isin(truth, task.labels)
            alone = answers_of(self._taught(method, draw, task, ()), X_test[others])
            row = {
                "others_recall": recall(task.labels),
                "others_alone": accuracy(truth[others], alone.labels),
                "declared_recall": recall(task.by_name),
            }
        else:
            row = measures(answers, truth)
            if len(task.rows):
                row["accuracy_as_learned"], _ = accuracy_as_learned(
                    answers.labels, truth, task.labels
                )
        if len(task.rare):
            row["rare_recall"] = recall(task.rare)
        if self.unknown:
            unknown = load_encoder(self._plan.backbone, layers).encode(self.unknown)
            row |= told_apart(answers, answers_of(taught, unknown))
        found = {name: round(value, 6) for name, value in row.items() if not np.isnan(value)}
        samples = {"samples": len(task.rows)}
        return settings | samples | found | {"versions": environment.versions()}

    def _taught(self, method: str, draw: int, task: Task, by_name: Any) -> Any:
        own, backbone = CONTENDERS[method], self._plan.backbone
        encoder = load_encoder(backbone, "auto") if self.dataset.modality == "text" else None
        X = features(self.dataset, backbone, own.layers)[0].X[task.rows]
        return own.taught(encoder, draw, X, task.labels, by_name)


def measures(answers: Answers, truth: np.ndarray) -> Row:
    """Measure answers: in per cent, but for the calibration error, which is a fraction.

    Inputs that can't be judged yet are not refused.
    """
    right = answers.labels == truth
    rng = np.random.default_rng(0)
    by_chance = [
        Reliability.of(sure, rng.random(len(sure)) < sure, bins=BINS).error
        for sure in [answers.confidence] * TRIALS
    ]
    row: Row = {
        "accuracy": accuracy(truth, answers.labels),
        "calibration_error": Reliability.of(answers.confidence, right, bins=BINS).error,
        "calibration_by_chance": float(np.mean(by_chance)),
        "wrong_and_sure": float(np.mean(~right & (answers.confidence > SURE)) * 100.0),
        "expected_accuracy": 100.0 * answers.expected,
    }
    if len(answers.known):
        row["known_refused"] = _per_cent(answers.known, False)
    return row


def told_apart(known: Answers, unknown: Answers) -> Row:
    """How well unknown inputs are told from known ones, with and without a threshold."""
    truth = np.repeat([0, 1], [len(known.labels), len(unknown.labels)])
    novelty = np.concatenate([known.novelty, unknown.novelty])
    row: Row = {"auroc": float(roc_auc_score(truth, novelty))}
    if len(unknown.known):
        row["unknown_taken_for_known"] = _per_cent(unknown.known, True)
    return row


def _per_cent(verdicts: Sequence[bool | None], verdict: bool) -> float:
    return 100.0 * sum(each is verdict for each in verdicts) / len(verdicts)
