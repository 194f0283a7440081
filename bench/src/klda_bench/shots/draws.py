"""Draw samples of a data set, teach every method the same ones, and measure its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

import klda
from klda import encoders
from klda.errors import KldaError
from klda.learner.evaluation import Reliability
from klda_bench import data, environment
from klda_bench.models.feature_cache import CachedEncoder, FeatureCache
from klda_bench.results import AUTO_MEANINGS, Results, Row, key_of
from klda_bench.runs.grid import pack_bits
from klda_bench.runs.metrics import accuracy
from klda_bench.shots.contenders import CONTENDERS, Answers, Place

BINS = 10
SURE = 0.9
RARE = 0.1  # fraction of the classes
ALL = "all"
NO_ROWS = np.empty((0, 0), dtype=np.float32)
Shots = int | str
OURS = ("ours", "names", "cryptic", "old-rule")


@dataclass(frozen=True)
class Plan:
    """What to measure: methods x data sets x samples per class x draws.

    With `rare`, a tenth of the classes has so few samples and the others have all of theirs. With
    `joined`, each draw joins the classes at random to so many, which are hard to tell apart.
    """

    methods: Sequence[str]
    datasets: Sequence[str]
    shots: Sequence[Shots]
    draws: int
    rare: bool = False
    backbone: str = "minilm"
    data: str | None = None
    joined: int = 0

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in CONTENDERS:
                raise KldaError(f"methods={name!r} is not one of {', '.join(CONTENDERS)}.")
        if self.rare and not {0, ALL}.isdisjoint(self.shots):
            raise KldaError("shots with --rare must be numbers from 1 on, such as 1,2,5,10.")

    def cells(self) -> Iterator[tuple[str, Shots, int]]:
        """Yield method, samples per class and draw, leaving out what would be the same run."""
        for shots in self.shots:
            for draw in range(self.draws):
                for name in self.methods:
                    own = CONTENDERS[name]
                    possible = shots != 0 or own.from_names
                    same_again = draw > 0 and shots in (0, ALL) and not own.seeded
                    if possible and not same_again:
                        yield name, shots, draw


def parse_shots(text: str) -> list[Shots]:
    """Read ``0,1,2,all``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part == ALL or part.isdecimal() for part in parts):
        raise KldaError(f"shots={text!r} must be whole numbers or 'all', separated by commas.")
    return [part if part == ALL else int(part) for part in parts]


def join_classes(y: np.ndarray, into: int, seed: int) -> np.ndarray:
    """Return other labels, those of so many classes that the classes of `y` are joined to."""
    classes = np.unique(y)
    groups = np.random.default_rng(seed).permutation(len(classes)) % into
    return np.array([f"group {group + 1}" for group in groups])[np.searchsorted(classes, y)]


def draw_rows(
    y: np.ndarray, shots: Shots, seed: int, rare: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows, shuffled, and say which classes have as few as `shots`.

    A draw of more samples contains that of fewer.
    """
    rng = np.random.default_rng(seed)
    order, classes = rng.permutation(len(y)), np.unique(y)
    few = rng.permutation(classes)[: max(1, round(RARE * len(classes)))] if rare else classes
    drawn = y[order]
    rank = pd.Series(drawn).groupby(drawn).cumcount().to_numpy()
    limit = np.inf if shots == ALL else int(shots)
    return order[(rank < limit) | ~np.isin(drawn, few)], few


@cache
def _encoder(backbone: str, layers: str) -> Any:
    return CachedEncoder(encoders.load(backbone, layers=layers), FeatureCache())


class Arena:
    """A data set whose features are computed when a run first needs them."""

    def __init__(self, name: str, plan: Plan) -> None:
        self.dataset, self._plan = data.load(name, data=plan.data), plan
        self._features: dict[str, list[np.ndarray]] = {}

    @cached_property
    def unknown(self) -> list[str]:
        """CLINC150's out-of-scope queries, if this is CLINC150 and they are here."""
        return data.out_of_scope(self._plan.data) if self.dataset.name == "clinc" else []

    def features(self, layers: str) -> list[np.ndarray]:
        """Rows to learn, rows to test on, and rows of unknown inputs."""
        if layers not in self._features:
            encode = _encoder(self._plan.backbone, layers).encode
            parts = (self.dataset.train.X, self.dataset.test.X, self.unknown)
            self._features[layers] = [encode(part) if len(part) else NO_ROWS for part in parts]
        return self._features[layers]

    def settings(self, method: str, shots: Shots, draw: int) -> Row:
        """All that determines the numbers of a run; ours change with the program's version."""
        ours = {"auto": AUTO_MEANINGS, "klda": klda.__version__}
        return {
            "what": "rare" if self._plan.rare else "shots",
            "dataset": self.dataset.name,
            "data_sha256": self.dataset.sha256,
            "backbone": self._plan.backbone,
            "method": method,
            "shots": shots,
            "draw": draw,
            **(ours if method in OURS else {}),
            **({"joined": self._plan.joined} if self._plan.joined else {}),
        }

    def _labels(self, draw: int) -> tuple[np.ndarray, np.ndarray]:
        """Labels of the rows to learn and of those to test on."""
        y, y_test = self.dataset.train.y, self.dataset.test.y
        if not self._plan.joined:
            return y, y_test
        both = join_classes(np.concatenate([y, y_test]), self._plan.joined, draw)
        return both[: len(y)], both[len(y) :]

    def run(self, method: str, shots: Shots, draw: int) -> Row:
        """Teach a method one draw and measure its answers."""
        plan = self._plan
        y, y_test = self._labels(draw)
        X, X_test, X_unknown = self.features(CONTENDERS[method].layers)
        encoder = _encoder(plan.backbone, "auto")
        rows, few = draw_rows(y, shots, draw, plan.rare)
        classes = np.unique(y).tolist() if plan.joined else self.dataset.classes
        place = Place(plan.backbone, encoder, classes, draw)
        start = time.perf_counter()
        answer = CONTENDERS[method].learn(place, X[rows], y[rows])
        answers = answer(X_test)
        row: Row = {"samples": len(rows), "seconds": time.perf_counter() - start}
        row |= measured(answers, y_test)
        if plan.rare:
            rare = np.isin(y_test, few)
            row["rare_recall"] = accuracy(y_test[rare], answers.labels[rare])
        if len(X_unknown) and answers.novelty is not None:
            row |= told_apart(answers, answer(X_unknown))
        return {name: round(v, 6) if isinstance(v, float) else v for name, v in row.items()}


def measure(plan: Plan, results: Results, notify: Callable[[str], None]) -> list[Row]:
    """Run every cell of a plan that the results do not hold, and return all of them.

    Cells of other methods are returned too, where the results hold them.
    """
    finished, found = results.latest(), []
    for name in plan.datasets:
        arena = Arena(name, plan)
        for method, shots, draw in replace(plan, methods=list(CONTENDERS)).cells():
            settings = arena.settings(method, shots, draw)
            key = key_of(settings)
            if key not in finished and method not in plan.methods:
                continue
            if key not in finished:
                notify(f"{arena.dataset.title}: {method}, {shots} samples, draw {draw}")
                finished[key] = settings | arena.run(method, shots, draw) | {"key": key}
                results.append(finished[key] | {"versions": environment.versions()})
            found.append(finished[key])
    order = list(CONTENDERS)
    return sorted(found, key=lambda row: order.index(row["method"]))


def measured(answers: Answers, truth: np.ndarray) -> Row:
    """Accuracy in per cent; calibration error; per cent of answers that are wrong and sure."""
    right = answers.labels == truth
    row: Row = {"accuracy": accuracy(truth, answers.labels), "test_rows": len(truth)}
    if answers.confidence is not None:
        row["calibration_error"] = Reliability.of(answers.confidence, right, bins=BINS).error
        row["wrong_and_sure"] = float(np.mean(~right & (answers.confidence > SURE)) * 100.0)
    return row | {"correct": pack_bits(right)}


def told_apart(known: Answers, unknown: Answers) -> Row:
    """How well unknown inputs are told from known ones, with and without a threshold.

    A method that can't tell yet (None) neither refuses an input nor takes it for known.
    """
    truth = np.repeat([0, 1], [len(known.labels), len(unknown.labels)])
    novelty = np.concatenate([n for n in (known.novelty, unknown.novelty) if n is not None])
    row: Row = {"auroc": float(roc_auc_score(truth, novelty))}
    if known.known is not None and unknown.known is not None:
        row["unknown_taken_for_known"] = _per_cent(unknown.known, True)
        row["unknown_not_judged"] = _per_cent(unknown.known, None)
        row["known_refused"] = _per_cent(known.known, False)
    return row


def _per_cent(verdicts: Sequence[bool | None], verdict: bool | None) -> float:
    return 100.0 * sum(each is verdict for each in verdicts) / len(verdicts)
