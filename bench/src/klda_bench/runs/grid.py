"""Walk the grid of data sets, methods and seeds; run what is not finished, and keep it."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from klda.encoders import MODELS, OfflineModelError
from klda.errors import KldaError, MissingDependencyError
from klda_bench import data, environment
from klda_bench.environment import NOT_HERE, UnavailableError
from klda_bench.methods import MethodSpec
from klda_bench.results import PROGRAM, Results, Row, key_of
from klda_bench.runs.features import FeatureSource, say_memory
from klda_bench.runs.metrics import METRICS
from klda_bench.runs.protocol import Outcome, run, split_classes

logger = logging.getLogger(__name__)

Notify = Callable[[str], None]
SETTINGS = ("backbone", "dataset", "method", "seed", "split", "tasks", "layers", "options")


@dataclass(frozen=True)
class Plan:
    """A grid of runs: methods x data sets x foundation models x seeds 0 to ``seeds - 1``.

    `options` are settings of single methods. With `curve`, accuracy is measured after each task
    and not only at the end. `command` is kept in the rows.
    """

    methods: Sequence[MethodSpec]
    datasets: Sequence[str]
    backbones: Sequence[str] = ("minilm",)
    seeds: int = 3
    data: str | None = None
    device: str = "auto"
    layers: str = "last"
    tasks: int | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    curve: bool = False
    cache: str | None = None
    command: str = ""

    def __post_init__(self) -> None:
        for name, given in (("datasets", self.datasets), ("backbone", self.backbones)):
            if not given:
                raise KldaError(f"{name} is empty: give at least one name.")
        if self.seeds < 1:
            raise KldaError(f"seeds={self.seeds} must be at least 1.")
        known = {spec.name for spec in self.methods}
        for name in self.options:
            if name not in known:
                raise KldaError(f"Options were given for {name}, which --methods leaves out.")

    def options_of(self, spec: MethodSpec, backbone: str) -> dict[str, Any]:
        """Return the options of a method in a run."""
        given = self.options.get(spec.name, {})
        return spec.options(backbone, self.layers_of(spec, backbone), given)

    def layers_of(self, spec: MethodSpec, backbone: str) -> str:
        """Return the layers that a method uses: those asked for, else its own."""
        layers = spec.layers if self.layers == "last" else self.layers
        info = MODELS.get(backbone)
        has_choice = info is not None and info.default_layers != "last"
        return layers if layers != "auto" or has_choice else "last"


def as_frame(runs: Iterable[Row]) -> pd.DataFrame:
    """Return one row per run of a grid: settings, metrics, and what became of it.

    `status` is done (run now), found (in the results), unavailable (not possible here), or failed.
    Without a `record`, `reason` says why and `gap` the same in a few words, for a table. Settings
    that are not known, as without the data set, are missing.
    """
    blank = {"reason": "", "gap": "", "record": None}
    frame = pd.DataFrame(
        [blank | run for run in runs], columns=[*SETTINGS, *METRICS, "status", *blank]
    )
    return frame.astype(dict.fromkeys(METRICS, float))


def with_record(settings: Row, record: Row, status: str = "found") -> Row:
    """Return the row of a run that has a result."""
    return settings | record["metrics"] | {"status": status, "record": record}


def walk(plan: Plan, results: Results, notify: Notify = lambda message: None) -> pd.DataFrame:
    """Run what the results do not hold of a plan, and return all its runs, in their order."""
    specs = {spec.name: spec for spec in plan.methods}
    for name, given in plan.options.items():
        # An option that a method doesn't have is found before hours are spent on the others.
        with contextlib.suppress(MissingDependencyError):
            specs[name].check(given)
    return as_frame(_Walker(plan, results, notify).runs())


class _Walker:
    """Runs a plan, one data set and foundation model after another."""

    def __init__(self, plan: Plan, results: Results, notify: Notify) -> None:
        self.plan, self.results, self.notify = plan, results, notify
        self.device = environment.resolve_device(plan.device)
        self.source = FeatureSource(plan.cache, self.device, notify)
        self.finished = results.latest()

    def runs(self) -> Iterator[Row]:
        for backbone, name in itertools.product(self.plan.backbones, self.plan.datasets):
            self.backbone = backbone
            try:
                dataset = data.load(name, data=self.plan.data)
            except UnavailableError as error:
                missing: Exception | None = error
            else:
                missing, name, self.dataset = None, dataset.name, dataset
            for seed, spec in itertools.product(range(self.plan.seeds), self.plan.methods):
                place = {"backbone": backbone, "dataset": name, "method": spec.name, "seed": seed}
                try:
                    if missing is not None:
                        raise missing
                    found = self.of(spec, seed, place)
                except Exception as error:  # one run's error must not cost the other runs
                    found = place | _what_happened(place, error)
                if found["status"] == "done":
                    self.results.append(found["record"])
                yield found

    def of(self, spec: MethodSpec, seed: int, place: Row) -> Row:
        settings = self.settings(spec, seed)
        place.update(settings)
        key = key_of(settings)
        known = self.finished.get(key)
        if known is not None and (known["evaluate"] == "each" or not self.plan.curve):
            return with_record(settings, known)
        self.notify(f"{self.dataset.title}  {spec.title}  seed {seed}")
        self.finished[key] = self.run(spec, settings) | {"key": key}
        return with_record(settings, self.finished[key], "done")

    def settings(self, spec: MethodSpec, seed: int) -> Row:
        """All that determines the numbers, and nothing else: this names the run.

        Not the device: it moves them by rounding only, and the row says where it ran.
        """
        return {
            "dataset": self.dataset.name,
            "split": self.dataset.split,
            "data_sha256": self.dataset.sha256,
            "tasks": self.dataset.tasks if self.plan.tasks is None else self.plan.tasks,
            "method": spec.name,
            "options": self.plan.options_of(spec, self.backbone),
            "backbone": self.backbone,
            "layers": self.plan.layers_of(spec, self.backbone),
            "seed": seed,
            **({"program": PROGRAM} if spec.group == "ours" else {}),
        }

    def run(self, spec: MethodSpec, settings: Row) -> Row:
        environment.require_device(self.device)
        seed, encoder = settings["seed"], None
        tasks = split_classes(self.dataset.classes, settings["tasks"], seed)
        train, test = self.dataset.train, self.dataset.test
        if spec.needs == "features":
            place = (self.backbone, settings["layers"])
            train, test, encoder = self.source.of(self.dataset, *place)
        else:
            say_memory(self.backbone, 16, "its weights, their gradients and Adam's two moments")
        where = {"backbone": self.backbone, "seed": seed, "device": self.device}
        method = spec.make(settings["options"], encoder=encoder, **where)
        outcome = run(method, train, test, tasks, each=self.plan.curve)
        one = getattr(method, "members_", [method])[0]  # those of an ensemble have the same
        gamma = getattr(one, "gamma_", None)
        device = environment.describe_device(self.device)
        return {
            "settings": settings,
            "evaluate": "each" if self.plan.curve else "end",
            **_measured(outcome),
            "versions": environment.versions(),
            "machine": environment.machine() | {"device": device},
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "gamma": None if gamma is None else float(gamma),
            "features": None if encoder is None else dict(encoder.fingerprint()),
            "dataset": {
                "source": self.dataset.source,
                "train_rows": len(self.dataset.train),
                "test_rows": len(self.dataset.test),
                "classes": len(self.dataset.classes),
            },
            "command": self.plan.command,
        }


def _what_happened(place: Row, error: Exception) -> Row:
    """Say why a run has no result.

    What cannot be done here leaves a gap in the table; anything else that goes wrong is a failure.
    """
    if isinstance(error, (UnavailableError, OfflineModelError, MissingDependencyError)):
        gap = getattr(error, "gap", NOT_HERE)
        return {"status": "unavailable", "reason": str(error), "gap": gap}
    where = "{method} on {dataset} with {backbone}, seed {seed}".format(**place)
    logger.debug("%s", where, exc_info=error)
    kind = "" if isinstance(error, KldaError) else f"{type(error).__name__}: "
    return {"status": "failed", "reason": f"{where}: {kind}{error}", "gap": "failed"}


def _measured(outcome: Outcome) -> Row:
    """Return what the protocol measured, as a row can hold it: rounded, and None for NaN."""
    predict = [seconds for seconds in outcome.predict_seconds if seconds is not None]
    row = {
        "metrics": outcome.metrics,
        "seen_accuracy": outcome.seen_accuracy,
        "matrix": outcome.matrix,
        "samples_seen": outcome.samples_seen,
        "task_sizes": [len(task) for task in outcome.tasks],
        "seconds": {
            "learn": sum(outcome.learn_seconds),
            "learn_each": outcome.learn_seconds,
            "predict_last": predict[-1],
            "predict_all": sum(predict),
        },
        "rows_predicted": len(outcome.correct),
        "correct": pack_bits(outcome.correct),
    }
    plain: Row = json.loads(
        json.dumps(row),
        parse_float=lambda text: round(float(text), 6),
        parse_constant=lambda text: None,
    )
    return plain


def pack_bits(bits: np.ndarray) -> str:
    """Booleans as hexadecimal digits, the first one the highest bit."""
    return np.packbits(np.asarray(bits, dtype=bool)).tobytes().hex()


def unpack_bits(text: str, count: int) -> np.ndarray:
    """Invert :func:`pack_bits`."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count) > 0
