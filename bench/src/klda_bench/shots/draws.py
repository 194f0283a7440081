"""Draw samples of a data set, teach every method the same ones, and measure its answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import klda
from klda.errors import KldaError
from klda_bench import data, environment
from klda_bench.engine import AUTO_MEANINGS, Reliability, load_encoder, read_table
from klda_bench.results import Results, Row, key_of
from klda_bench.runs.grid import pack_bits
from klda_bench.runs.metrics import accuracy
from klda_bench.shots.contenders import CONTENDERS, Answers, Contender, Place

BINS = 10
SURE = 0.9
RARE = 0.1  # fraction of the classes
ALL = "all"


@dataclass(frozen=True)
class Plan:
    """What to measure: methods x data sets x samples per class x draws.

    With `rare`, a tenth of the classes has so few samples and the others have all of theirs.
    """

    methods: Sequence[str]
    datasets: Sequence[str]
    shots: Sequence[int | str]
    draws: int
    rare: bool = False
    backbone: str = "minilm"
    data: str | None = None

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in CONTENDERS:
                raise KldaError(f"methods={name!r} is not one of {', '.join(CONTENDERS)}.")
        if self.rare and not {0, ALL}.isdisjoint(self.shots):
            raise KldaError("shots with --rare must be numbers from 1 on, such as 1,2,5,10.")

    def cells(self) -> Iterator[tuple[str, int | str, int]]:
        """Yield method, samples per class and draw, leaving out what would be the same run."""
        for shots in self.shots:
            for draw in range(self.draws):
                for method in self.methods:
                    contender = CONTENDERS[method]
                    once = shots == 0 or (shots == ALL and not contender.seeded)
                    if (shots != 0 or contender.from_names) and not (once and draw):
                        yield method, shots, draw


def parse_shots(text: str) -> list[int | str]:
    """Read ``0,1,2,all``."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part == ALL or part.isdecimal() for part in parts):
        raise KldaError(f"shots={text!r} must be whole numbers or 'all', separated by commas.")
    return [part if part == ALL else int(part) for part in parts]


class Encoded:
    """A data set with its features by layers, computed when they are first needed."""

    def __init__(self, name: str, plan: Plan, encoders: dict[str, Any]) -> None:
        self.dataset = data.load(name, data=plan.data)
        self._plan, self._encoders = plan, encoders

    def encoder(self, layers: str) -> Any:
        """Return the encoder whose features have these layers."""
        if layers not in self._encoders:
            self._encoders[layers] = load_encoder(self._plan.backbone, layers=layers, cache=True)
        return self._encoders[layers]

    @cached_property
    def unknown(self) -> list[str]:
        """CLINC150's out-of-scope queries, if this is CLINC150 and they are here."""
        folder = Path(self._plan.data or ".") / "clinc150_oos"
        file = folder / "oos_test.csv.gz"
        found = self.dataset.name == "clinc" and file.exists()
        return list(read_table(file, labels=False)[0]) if found else []

    @cached_property
    def _held(self) -> dict[str, tuple[np.ndarray, ...]]:
        return {}

    def features(self, layers: str) -> tuple[np.ndarray, ...]:
        """Rows to learn, rows to test on, and rows of unknown inputs."""
        if layers not in self._held:
            encode = self.encoder(layers).encode
            parts = (self.dataset.train.X, self.dataset.test.X, self.unknown)
            self._held[layers] = tuple(encode(list(part)) if len(part) else None for part in parts)
        return self._held[layers]


def draw_rows(y: np.ndarray, shots: int | str, seed: int, rare: bool = False) -> Draw:
    """Draw some samples of each class, or of the rare ones; more of them contain fewer."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    classes = np.unique(y)
    few = rng.permutation(classes)[: max(1, round(RARE * len(classes)))] if rare else classes
    drawn = y[order]
    rank = pd.Series(drawn).groupby(drawn).cumcount().to_numpy()
    limit = np.inf if shots == ALL else int(shots)
    return Draw(order[(rank < limit) | ~np.isin(drawn, few)], few)


@dataclass(frozen=True)
class Draw:
    """Rows to learn, shuffled, and the classes that are short of samples."""

    rows: np.ndarray
    few: np.ndarray


def measure(plan: Plan, results: Results, notify: Callable[[str], None]) -> list[Row]:
    """Run every cell of a plan that the results do not hold, and return all of them."""
    finished, found, encoders = results.latest(), [], {}
    for name in plan.datasets:
        encoded = Encoded(name, plan, encoders)
        for method, shots, draw in plan.cells():
            settings = _settings(plan, encoded, method, shots, draw)
            key = key_of(settings)
            if key not in finished:
                notify(f"{encoded.dataset.title}: {CONTENDERS[method].title}, {shots}, draw {draw}")
                row = settings | run(plan, encoded, CONTENDERS[method], shots, draw) | {"key": key}
                results.append(row | {"versions": environment.versions()})
                finished[key] = row
            found.append(finished[key])
    return found


def _settings(plan: Plan, encoded: Encoded, method: str, shots: int | str, draw: int) -> Row:
    """All that determines the numbers of a run; ours also depends on the program's version."""
    ours = {"auto": AUTO_MEANINGS, "klda": klda.__version__}
    return {
        "what": "rare" if plan.rare else "shots",
        "dataset": encoded.dataset.name,
        "data_sha256": encoded.dataset.sha256,
        "backbone": plan.backbone,
        "method": method,
        "shots": shots,
        "draw": draw,
    } | (ours if method in ("ours", "names", "cryptic") else {})


def run(plan: Plan, encoded: Encoded, contender: Contender, shots: int | str, draw: int) -> Row:
    """Teach a method one draw and measure its answers."""
    dataset, encoder = encoded.dataset, encoded.encoder("auto")
    X, X_test, X_unknown = encoded.features(contender.layers)
    y, truth = dataset.train.y, dataset.test.y
    drawn = draw_rows(y, shots, draw, plan.rare)
    model = contender.make(Place(plan.backbone, encoder, dataset.classes, draw))
    start = time.perf_counter()
    model.learn(X[drawn.rows], y[drawn.rows])
    answers = model.answer(X_test)
    row: Row = {"samples": len(drawn.rows), "seconds": round(time.perf_counter() - start, 3)}
    row |= measured(answers, truth)
    if plan.rare:
        few = np.isin(truth, drawn.few)
        row["rare_recall"] = accuracy(truth[few], answers.labels[few])
    if X_unknown is not None and answers.novelty is not None:
        row |= told_apart(answers, model.answer(X_unknown))
    return {name: round(v, 6) if isinstance(v, float) else v for name, v in row.items()}


def measured(answers: Answers, truth: np.ndarray) -> Row:
    """Accuracy in per cent; calibration error; per cent of answers that are wrong and sure."""
    right = answers.labels == truth
    row: Row = {"accuracy": accuracy(truth, answers.labels), "test_rows": len(truth)}
    if answers.confidence is not None:
        error = Reliability.of(answers.confidence, right, bins=BINS).error
        wrong_and_sure = float(np.mean(~right & (answers.confidence > SURE)) * 100.0)
        row |= {"calibration_error": error, "wrong_and_sure": wrong_and_sure}
    return row | {"correct": pack_bits(right)}


def told_apart(known: Answers, unknown: Answers) -> Row:
    """How well unknown inputs are told from known ones, with and without a threshold.

    A method that can't tell yet (None) neither refuses an input nor takes it for known.
    """
    from sklearn.metrics import roc_auc_score

    novelty = np.concatenate([known.novelty, unknown.novelty])
    truth = np.repeat([0, 1], [len(known.labels), len(unknown.labels)])
    row: Row = {"auroc": float(roc_auc_score(truth, novelty))}
    if known.known is not None and unknown.known is not None:
        taken, can_not_tell = _per_cent(unknown.known, True), _per_cent(unknown.known, None)
        row |= {"unknown_taken_for_known": taken, "unknown_not_judged": can_not_tell}
        row |= {"known_refused": _per_cent(known.known, False)}
    return row


def _per_cent(verdicts: Sequence[bool | None], verdict: bool | None) -> float:
    return 100.0 * sum(each is verdict for each in verdicts) / len(verdicts)
