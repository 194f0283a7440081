"""Walk the grid of data sets, methods and seeds; run what is not finished, and keep it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from klda.encoders import MODELS, OfflineModelError
from klda.errors import KldaError, MissingDependencyError
from klda_bench import data, environment
from klda_bench.environment import NOT_HERE, UnavailableError
from klda_bench.methods import Context, Gamma, MethodSpec, protocol_gamma
from klda_bench.results import Results, Row, key_of, meaning_of_auto
from klda_bench.runs.features import FeatureSource
from klda_bench.runs.protocol import Evaluate, Outcome, run, split_classes

logger = logging.getLogger(__name__)

Notify = Callable[[str], None]
CURVES = ("auto", "all", "end")


@dataclass(frozen=True)
class Plan:
    """A grid of runs: methods x data sets x foundation models x seeds 0 to ``seeds - 1``.

    `gamma` is the kernel parameter of the paper's mode, by default the protocol's for each model.
    `classes` and `per_class` use a stated part of the data only. `options` are settings of single
    methods; those under ``"METHOD@DATASET"`` count for one data set. `curve` says when accuracy is
    measured: as each method says (auto), after each task (all), or at the end only (end). `command`
    is kept in the rows.
    """

    methods: Sequence[MethodSpec]
    datasets: Sequence[str]
    backbones: Sequence[str] = ("minilm",)
    seeds: int = 3
    data: str | None = None
    device: str = "auto"
    gamma: Gamma | None = None
    layers: str = "last"
    tasks: int | None = None
    classes: int | None = None
    per_class: int | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    curve: str = "auto"
    cache: str | None = None
    command: str = ""

    def __post_init__(self) -> None:
        for name, given in (("datasets", self.datasets), ("backbone", self.backbones)):
            if not given:
                raise KldaError(f"{name} is empty: give at least one name.")
        if self.seeds < 1:
            raise KldaError(f"seeds={self.seeds} must be at least 1.")
        if self.curve not in CURVES:
            raise KldaError(f"curve={self.curve!r} is not known: use {', '.join(CURVES)}.")
        unknown = {name.partition("@")[0] for name in self.options}
        unknown -= {spec.name for spec in self.methods}
        if unknown:
            raise KldaError(
                f"Options were given for {', '.join(sorted(unknown))}, which --methods leaves out."
            )
        for name in self.options:
            _, at, dataset = name.partition("@")
            if at and dataset not in {Path(given).name for given in self.datasets}:
                raise KldaError(f"set={name!r}: {dataset!r} is none of the data sets asked for.")

    def context(self, method: str, dataset: str, backbone: str, seed: int, device: str) -> Context:
        """Say what a method is built for in one run."""
        gamma = self.gamma_of(backbone)
        options = self.options.get(method, {}) | self.options.get(f"{method}@{dataset}", {})
        return Context(backbone, gamma, seed, device, options)

    def usual_options(self, spec: MethodSpec) -> dict[str, Any]:
        """Options of a method without what was asked for."""
        return spec.options(Context(self.backbones[0], self.gamma_of(self.backbones[0])))

    def layers_of(self, spec: MethodSpec, backbone: str) -> str:
        """Return the layers that a method uses: those asked for, else its own."""
        layers = spec.layers if self.layers == "last" else self.layers
        info = MODELS.get(backbone)
        has_choice = info is not None and info.default_layers != "last"
        return layers if layers != "auto" or has_choice else "last"

    def gamma_of(self, backbone: str) -> Gamma:
        """Return the kernel parameter of the paper's mode for a foundation model."""
        return protocol_gamma(backbone, self.layers) if self.gamma is None else self.gamma


@dataclass(frozen=True)
class Cell:
    """One run of the grid and what became of it.

    `status` is done (run now), found (in the results), unavailable (not possible here), or failed.
    Without a `record`, `reason` says why and `gap` the same in a few words, for a table.
    `settings` is everything that determines its numbers; None where that isn't known, as without
    its data set.
    """

    backbone: str
    dataset: str
    method: str
    seed: int
    status: Literal["done", "found", "unavailable", "failed"]
    record: Row | None = None
    reason: str = ""
    gap: str = ""
    settings: Row | None = None


def walk(plan: Plan, results: Results, notify: Notify = lambda message: None) -> list[Cell]:
    """Run every cell of a plan that the results do not hold, and return all, in their order."""
    device = environment.resolve_device(plan.device)
    _check_options(plan, device)
    source = FeatureSource(plan.cache, device, notify)
    finished = results.latest()
    cells: list[Cell] = []
    for backbone in plan.backbones:
        for name in plan.datasets:
            try:
                dataset = data.load(name, data=plan.data)
            except UnavailableError as error:
                cells += [
                    _without(Cell(backbone, name, spec.name, seed, "unavailable"), error)
                    for seed in range(plan.seeds)
                    for spec in plan.methods
                ]
                continue
            part = data.subset(dataset, classes=plan.classes, per_class=plan.per_class)
            for seed in range(plan.seeds):
                here = _Place(plan, results, finished, source, part, backbone, seed, device, notify)
                cells.extend(here.cell(spec) for spec in plan.methods)
    return cells


def _check_options(plan: Plan, device: str) -> None:
    """Find an option that a method doesn't have before hours are spent on the others."""
    specs = {spec.name: spec for spec in plan.methods}
    for name, options in plan.options.items():
        with contextlib.suppress(MissingDependencyError):
            spec = specs[name.partition("@")[0]]
            spec.check(Context(plan.backbones[0], 1.0, 0, device, options))


def _device_of(spec: MethodSpec, device: str) -> str:
    return environment.describe_device(device) if spec.on_device else "cpu"


@dataclass
class _Place:
    """Everything that the methods of one data set and seed have in common."""

    plan: Plan
    results: Results
    finished: dict[str, Row]
    source: FeatureSource
    dataset: data.Dataset
    backbone: str
    seed: int
    device: str
    notify: Notify

    def cell(self, spec: MethodSpec) -> Cell:
        cell = Cell(self.backbone, self.dataset.name, spec.name, self.seed, "found")
        where = (self.dataset.name, self.backbone, self.seed, self.device)
        try:
            context = self.plan.context(spec.name, *where)
            settings = self.settings(spec, context)
        except MissingDependencyError as error:
            return _without(cell, error)
        key, evaluate = key_of(settings), self.evaluate(spec)
        known = self.finished.get(key)
        cell = dataclasses.replace(cell, settings=settings)
        if known is not None and (evaluate == "end" or known["evaluate"] == "each"):
            return dataclasses.replace(cell, record=known)
        self.notify(f"{self.dataset.title}  {spec.title}  seed {self.seed}")
        try:
            record = self.run(spec, context, settings, evaluate) | {"key": key}
        except Exception as error:  # one run's error must not cost the other runs
            return _without(cell, error)
        self.results.append(record)
        self.finished[key] = record
        return dataclasses.replace(cell, status="done", record=record)

    def settings(self, spec: MethodSpec, context: Context) -> Row:
        """All that determines the numbers, and nothing else: this names the run.

        Not the device: it moves them by rounding only, and the row says where it ran.
        """
        options = spec.options(context)
        return {
            "dataset": self.dataset.name,
            "split": self.dataset.split,
            "data_sha256": self.dataset.sha256,
            "subset": self.dataset.note,
            "tasks": self.n_tasks,
            "method": spec.name,
            "options": options,
            "auto": meaning_of_auto(options),
            "backbone": self.backbone,
            "layers": self.plan.layers_of(spec, self.backbone),
            "seed": self.seed,
        }

    @property
    def n_tasks(self) -> int:
        return self.plan.tasks if self.plan.tasks is not None else self.dataset.tasks

    def evaluate(self, spec: MethodSpec) -> Evaluate:
        if self.plan.curve != "auto":
            return "each" if self.plan.curve == "all" else "end"
        each = spec.curve == "each" or (spec.curve == "first-seed" and self.seed == 0)
        return "each" if each else "end"

    def run(self, spec: MethodSpec, context: Context, settings: Row, evaluate: Evaluate) -> Row:
        environment.require_device(self.device)
        tasks = split_classes(self.dataset.classes, self.n_tasks, self.seed)
        train, test = self.dataset.train, self.dataset.test
        if spec.needs == "features":
            train, test = self.source.of(self.dataset, self.backbone, settings["layers"])
        method = spec.make(context)
        outcome = run(method, train, test, tasks, evaluate=evaluate)
        gamma = getattr(getattr(method, "estimator", None), "gamma_", None)
        return {
            "settings": settings,
            "evaluate": evaluate,
            **_measured(outcome),
            "versions": environment.versions(),
            "machine": environment.machine() | {"device": _device_of(spec, self.device)},
            "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "gamma": None if gamma is None else float(gamma),
            "held_bytes": environment.held_bytes(method),
            "features": self.source.fingerprint(self.backbone, settings["layers"]),
            "dataset": {
                "source": self.dataset.source,
                "train_rows": len(self.dataset.train),
                "test_rows": len(self.dataset.test),
                "classes": len(self.dataset.classes),
            },
            "command": self.plan.command,
        }


def _without(cell: Cell, error: Exception) -> Cell:
    """Fill a cell that has no result with the reason why.

    What cannot be done here leaves a gap in the table; anything else that goes wrong is a failure.
    """
    if isinstance(error, (UnavailableError, OfflineModelError, MissingDependencyError)):
        gap = getattr(error, "gap", NOT_HERE)
        return dataclasses.replace(cell, status="unavailable", reason=str(error), gap=gap)
    logger.debug("%s on %s, seed %d", cell.method, cell.dataset, cell.seed, exc_info=error)
    kind = "" if isinstance(error, KldaError) else f"{type(error).__name__}: "
    where = f"{cell.method} on {cell.dataset} with {cell.backbone}, seed {cell.seed}"
    reason = f"{where}: {kind}{error}"
    return dataclasses.replace(cell, status="failed", reason=reason, gap="failed")


def _measured(outcome: Outcome) -> Row:
    """Return what the protocol measured, as a row can hold it."""
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
        "peak_memory_bytes": outcome.peak_memory_bytes,
    }
    return {name: _plain(value) for name, value in row.items()}


def _plain(value: Any) -> Any:
    """Round floats; NaN becomes None, as JSON has no such number."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value


def pack_bits(bits: np.ndarray) -> str:
    """Booleans as hexadecimal digits, the first one the highest bit."""
    return np.packbits(np.asarray(bits, dtype=bool)).tobytes().hex()


def unpack_bits(text: str, count: int) -> np.ndarray:
    """Invert :func:`pack_bits`."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count) > 0
