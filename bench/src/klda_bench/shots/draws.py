"""Draw samples of a data set, teach every method the same ones, and measure its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from klda import encoders
from klda.errors import KldaError
from klda.inspection.evaluation import Reliability
from klda_bench import data, environment
from klda_bench.models.feature_cache import CachedEncoder
from klda_bench.results import PROGRAM, Results, Row, key_of
from klda_bench.runs.metrics import accuracy
from klda_bench.shots.contenders import CONTENDERS, Answering, Answers
from klda_bench.shots.tasks import ALL, KINDS, MADE, Shots, Task

BINS = 10
SURE = 0.9
NO_ROWS = np.empty((0, 0), dtype=np.float32)


@dataclass(frozen=True)
class Plan:
    """What to measure: methods x data sets x samples per class x draws of one kind of task."""

    methods: Sequence[str]
    datasets: Sequence[str]
    shots: Sequence[Shots]
    draws: int
    kind: str = "shots"
    backbone: str = "minilm"
    data: str | None = None

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in CONTENDERS:
                raise KldaError(f"methods={name!r} is not one of {', '.join(CONTENDERS)}.")
        if self.kind not in ("shots", "names") and 0 in self.shots:
            raise KldaError(f"shots with --{self.kind} must be numbers from 1 on, such as 1,2,5.")

    def cells(self) -> Iterator[tuple[str, Shots, int]]:
        """Yield method, samples per class and draw, leaving out what can't be or is the same."""
        for shots in self.shots:
            for draw in range(self.draws):
                for name in self.methods:
                    by_name = shots == 0 or self.kind == "declared"
                    same_again = draw and (
                        shots == 0
                        or (shots == ALL and self.kind == "shots" and not CONTENDERS[name].is_ours)
                    )
                    if not same_again and (name == "names" or not by_name):
                        yield name, shots, draw


def parse_shots(text: str) -> list[Shots]:
    """Read ``0,1,2,all``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part == ALL or part.isdecimal() for part in parts):
        raise KldaError(f"shots={text!r} must be whole numbers or 'all', separated by commas.")
    return [part if part == ALL else int(part) for part in parts]


@cache
def _encoder(backbone: str, layers: str) -> Any:
    return CachedEncoder(encoders.load(backbone, layers=layers))


class Arena:
    """A data set whose features are computed when a run first needs them."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.dataset = MADE[name]() if name in MADE else data.load(name, data=plan.data)
        self._plan, self._features = plan, dict[str, list[np.ndarray]]()

    @cached_property
    def unknown(self) -> list[str]:
        """CLINC150's out-of-scope queries, if this is CLINC150 and they are here."""
        return data.out_of_scope(self._plan.data) if self.dataset.name == "clinc" else []

    def features(self, layers: str) -> list[np.ndarray]:
        """Rows to learn, rows to test on, and rows of unknown inputs."""
        if self.dataset.modality == "features":
            return [self.dataset.train.X, self.dataset.test.X, NO_ROWS]
        if layers not in self._features:
            encode = _encoder(self._plan.backbone, layers).encode
            parts = (self.dataset.train.X, self.dataset.test.X, self.unknown)
            self._features[layers] = [encode(part) if len(part) else NO_ROWS for part in parts]
        return self._features[layers]

    def settings(self, method: str, shots: Shots, draw: int) -> Row:
        """All that determines the numbers of a run; ours change with the program."""
        return {
            "what": self._plan.kind,
            "dataset": self.dataset.name,
            "data_sha256": self.dataset.sha256,
            "backbone": self._plan.backbone,
            "method": method,
            "shots": shots,
            "draw": draw,
            **({"program": PROGRAM} if CONTENDERS[method].is_ours else {}),
        }

    def run(self, method: str, shots: Shots, draw: int) -> Row:
        """Teach a method one draw and measure its answers."""
        kind, y_test = self._plan.kind, self.dataset.test.y
        _, X_test, X_unknown = self.features(CONTENDERS[method].layers)
        task = KINDS[kind].draw(self.dataset.train.y, shots, np.random.default_rng(draw))
        by_name = self.dataset.classes if shots == 0 else ()
        answer = self._taught(method, draw, task, task.special if kind == "declared" else by_name)
        answers = answer(X_test)
        if kind == "declared":
            others = np.isin(y_test, task.labels)
            alone = self._taught(method, draw, task, ())(X_test[others])
            row = {
                "others_recall": accuracy(y_test[others], answers.labels[others]),
                "others_alone": accuracy(y_test[others], alone.labels),
            }
        else:
            row = measured(answers, y_test)
        if len(task.special):
            special = np.isin(y_test, task.special)
            row[f"{kind}_recall"] = accuracy(y_test[special], answers.labels[special])
        if len(X_unknown) and answers.novelty is not None:
            row |= told_apart(answers, answer(X_unknown))
        row = {name: value for name, value in row.items() if not np.isnan(value)}
        return {"samples": len(task.rows)} | {name: round(v, 6) for name, v in row.items()}

    def _taught(self, method: str, draw: int, task: Task, declared: Any) -> Answering:
        own = CONTENDERS[method]
        is_text = self.dataset.modality == "text"
        encoder = _encoder(self._plan.backbone, "auto") if is_text else "features"
        X = self.features(own.layers)[0][task.rows]
        return own.learn(encoder, draw, X, task.labels, declared)


def measure(plan: Plan, results: Results, notify: Callable[[str], None]) -> list[Row]:
    """Run every cell of a plan that the results do not hold, and return all of them."""
    finished, found = results.latest(), []
    for name in plan.datasets:
        arena = Arena(name, plan)
        for method, shots, draw in plan.cells():
            settings = arena.settings(method, shots, draw)
            key = key_of(settings)
            if key not in finished:
                notify(f"{arena.dataset.title}: {method}, {shots} samples, draw {draw}")
                finished[key] = settings | arena.run(method, shots, draw) | {"key": key}
                results.append(finished[key] | {"versions": environment.versions()})
            found.append(finished[key])
    return found


def measured(answers: Answers, truth: np.ndarray) -> Row:
    """Measure answers: in per cent, but for the calibration error, which is a fraction.

    Inputs that can't be judged yet are not refused.
    """
    right = answers.labels == truth
    row: Row = {
        "accuracy": accuracy(truth, answers.labels),
        "calibration_error": Reliability.of(answers.confidence, right, bins=BINS).error,
        "wrong_and_sure": float(np.mean(~right & (answers.confidence > SURE)) * 100.0),
        "expected_accuracy": 100.0 * answers.expected,
    }
    if len(answers.known):
        row["known_refused"] = _per_cent(answers.known, False)
    return row


def told_apart(known: Answers, unknown: Answers) -> Row:
    """How well unknown inputs are told from known ones, with and without a threshold."""
    truth = np.repeat([0, 1], [len(known.labels), len(unknown.labels)])
    novelty = np.concatenate([n for n in (known.novelty, unknown.novelty) if n is not None])
    row: Row = {"auroc": float(roc_auc_score(truth, novelty))}
    if len(unknown.known):
        row["unknown_taken_for_known"] = _per_cent(unknown.known, True)
    return row


def _per_cent(verdicts: Sequence[bool | None], verdict: bool) -> float:
    return 100.0 * sum(each is verdict for each in verdicts) / len(verdicts)
