"""Walk the grid of data sets, methods and seeds; run what is not finished, and keep it."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import math
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from klda.baselines import UnsuitableBackboneError
from klda.benchmarks import datasets
from klda.benchmarks.datasets import Dataset, DatasetNotAvailableError, Split
from klda.benchmarks.identity import key_of, meaning_of_auto
from klda.benchmarks.methods import Context, MethodSpec, protocol_gamma, registry
from klda.benchmarks.protocol import Evaluate, Outcome, Samples, run, split_classes
from klda.benchmarks.resources import (
    DeviceNotAvailableError,
    describe_device,
    held_bytes,
    machine,
    require_device,
    resolve_device,
    versions,
)
from klda.benchmarks.results import ResultStore
from klda.encoders import OfflineModelError
from klda.errors import KldaError, MissingDependencyError

logger = logging.getLogger(__name__)

NOT_HERE = "not available offline"
CurveChoice = Literal["auto", "all", "end"]
Status = Literal["done", "found", "unavailable", "failed"]


@dataclass(frozen=True)
class Plan:
    """A grid of runs.

    Parameters
    ----------
    methods : sequence of MethodSpec
        Rows.
    datasets : sequence of str
        Names or folders.
    backbones : sequence of str
        Foundation models.
    seeds : int
        Seeds 0 to ``seeds - 1``.
    data : path-like, optional
        Data folder.
    split : {"paper", "official"}
        Split of the text sets.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``...
    gamma : float or "auto", optional
        Kernel parameter of the paper's mode; the protocol's for each model when not given.
    layers : str
        Layers whose features are used.
    tasks : int, optional
        Number of tasks; the paper's when not given.
    classes, per_class : int, optional
        Use a stated part of the data only.
    options : mapping of str to mapping
        Settings of single methods; those under ``"METHOD@DATASET"`` count for one data set.
    curve : {"auto", "all", "end"}
        When accuracy is measured: as each method says, after each task, or at the end only.
    cache : path-like, optional
        Folder of cached features.
    download : bool
        Whether data sets may be fetched.
    command : str
        The command line, for the result lines.
    here_only : bool
        Whether a finished run counts only if it was made on this kind of machine and this device,
        as a comparison of times needs.
    """

    methods: Sequence[MethodSpec]
    datasets: Sequence[str]
    backbones: Sequence[str] = ("minilm",)
    seeds: int = 3
    data: str | None = None
    split: Split = "paper"
    device: str = "auto"
    gamma: float | Literal["auto"] | None = None
    layers: str = "last"
    tasks: int | None = None
    classes: int | None = None
    per_class: int | None = None
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    curve: CurveChoice = "auto"
    cache: str | None = None
    download: bool = True
    command: str = ""
    here_only: bool = False

    def __post_init__(self) -> None:
        for name, given in (("datasets", self.datasets), ("backbone", self.backbones)):
            if not given:
                raise KldaError(f"{name} is empty: give at least one name.")
        if self.seeds < 1:
            raise KldaError(f"seeds={self.seeds} must be at least 1.")
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

    def options_of(self, method: str, dataset: str) -> dict[str, Any]:
        """Options given for a method on a data set."""
        return self.options.get(method, {}) | self.options.get(f"{method}@{dataset}", {})


@dataclass(frozen=True)
class Cell:
    """One run of the grid and what became of it.

    Parameters
    ----------
    backbone, dataset, method : str
        Where it stands.
    seed : int
        Seed of class order and of the method.
    status : {"done", "found", "unavailable", "failed"}
        Run now, found in the store, not possible here, or begun and ended by an error.
    record : dict or None
        The result line.
    reason : str
        Why there is none.
    gap : str
        The same in a few words, for a table.
    settings : dict or None
        What determines its numbers; ``None`` where that isn't known, as without its data set.
    """

    backbone: str
    dataset: str
    method: str
    seed: int
    status: Status
    record: dict[str, Any] | None = None
    reason: str = ""
    gap: str = ""
    settings: dict[str, Any] | None = None


Notify = Callable[[str], None]


# What cannot be done here leaves a gap in the table; anything else that goes wrong is a failure.
_NOT_HERE = (
    OfflineModelError,
    DeviceNotAvailableError,
    MissingDependencyError,
    UnsuitableBackboneError,
)


class FeatureSource:
    """Frozen features, computed once for a foundation model and a data set.

    Parameters
    ----------
    cache : path-like, optional
        Folder of features on disk; the features room's own when not given.
    device : str
        Device of the foundation model.
    notify : callable
        Told what is being computed.
    """

    def __init__(self, cache: str | None, device: str, notify: Notify) -> None:
        self._cache, self._device, self._notify = cache, device, notify
        self._encoders: dict[tuple[str, str], Any] = {}
        self._absent: dict[tuple[str, str], OfflineModelError] = {}
        self._held: tuple[tuple[str, str, str], tuple[Samples, Samples]] | None = None

    def fingerprint(self, backbone: str, layers: str) -> dict[str, Any] | None:
        """Identity of the features, if their encoder was needed."""
        encoder = self._encoders.get((backbone, layers))
        return None if encoder is None else dict(encoder.fingerprint())

    def of(self, dataset: Dataset, backbone: str, layers: str) -> tuple[Samples, Samples]:
        """Feature rows of both parts."""
        if dataset.modality == "features":
            return dataset.train, dataset.test
        key = (dataset.sha256, backbone, layers)
        if self._held is None or self._held[0] != key:
            encoder = self._encoder(backbone, layers, dataset.modality)
            self._notify(f"features of {dataset.title} from {backbone}")
            parts = [
                Samples(encoder.encode(part.X, progress=True), part.y)
                for part in (dataset.train, dataset.test)
            ]
            self._held = (key, (parts[0], parts[1]))
        return self._held[1]

    def fetch(self, backbone: str) -> None:
        """Make sure that a named model is here, or can be fetched."""
        from klda import encoders

        info = encoders.MODELS.get(backbone)
        if info is not None and not info.available_offline():
            self._encoder(backbone, "last", info.modality)

    def _encoder(self, backbone: str, layers: str, modality: str) -> Any:
        from klda import encoders

        key = (backbone, layers)
        if key in self._absent:
            raise self._absent[key]
        if key not in self._encoders:
            info = encoders.MODELS.get(backbone)
            # The same features on every device, but for the models that need half precision to fit.
            large = info is not None and info.wide_range
            try:
                self._encoders[key] = encoders.load(
                    backbone,
                    device=self._device,
                    layers=layers,
                    cache=self._cache or True,
                    precision="auto" if large else "float32",
                )
            except OfflineModelError as error:
                # Asking the hub again for every cell would take minutes of time-outs.
                self._absent[key] = error
                raise
        encoder = self._encoders[key]
        if encoder.modality != modality:
            raise KldaError(
                f"backbone={backbone!r} encodes {encoder.modality} inputs; the data set holds "
                f"{modality} inputs."
            )
        return encoder


def walk(plan: Plan, store: ResultStore, notify: Notify = lambda message: None) -> list[Cell]:
    """Run every cell of a plan that the store does not hold.

    Parameters
    ----------
    plan : Plan
        The grid.
    store : ResultStore
        Finished runs; grows.
    notify : callable
        Told about progress.

    Returns
    -------
    list of Cell
        One for each run of the grid, in its order.
    """
    device = resolve_device(plan.device)
    _check_options(plan, device)
    source = FeatureSource(plan.cache, device, notify)
    finished = store.latest(lambda record: not plan.here_only or _made_here(record, device))
    cells: list[Cell] = []
    for backbone in plan.backbones:
        for name in plan.datasets:
            try:
                dataset = datasets.load(
                    name, data=plan.data, split=plan.split, download=plan.download
                )
            except DatasetNotAvailableError as error:
                cells.extend(_unavailable(plan, backbone, name, str(error)))
                continue
            for seed in range(plan.seeds):
                part = datasets.subset(dataset, classes=plan.classes, per_class=plan.per_class)
                here = _Place(plan, store, finished, source, part, backbone, seed, device, notify)
                cells.extend(here.cell(spec) for spec in plan.methods)
    return cells


def _check_options(plan: Plan, device: str) -> None:
    """Find an option that a method doesn't have before hours are spent on the others."""
    specs = {spec.name: spec for spec in plan.methods}
    for name, options in plan.options.items():
        with contextlib.suppress(MissingDependencyError):
            spec = specs[name.partition("@")[0]]
            spec.check(Context(plan.backbones[0], 1.0, 0, device, options))


def _made_here(record: dict[str, Any], device: str) -> bool:
    """Whether a run was made on this kind of machine, and on the device that it would use now."""
    spec = registry().get(record["settings"]["method"])
    used = _device_of(spec, device) if spec is not None else device
    here, there = machine() | {"device": used}, record["machine"]
    return all(there.get(name) == value for name, value in here.items())


def _device_of(spec: MethodSpec, device: str) -> str:
    return describe_device(device) if spec.on_device else "cpu"


def _unavailable(plan: Plan, backbone: str, name: str, reason: str) -> Iterator[Cell]:
    for seed in range(plan.seeds):
        for spec in plan.methods:
            yield Cell(backbone, name, spec.name, seed, "unavailable", None, reason, NOT_HERE)


@dataclass
class _Place:
    """Everything that the methods of one data set and seed have in common."""

    plan: Plan
    store: ResultStore
    finished: dict[str, dict[str, Any]]
    source: FeatureSource
    dataset: Dataset
    backbone: str
    seed: int
    device: str
    notify: Notify

    def cell(self, spec: MethodSpec) -> Cell:
        cell = Cell(self.backbone, self.dataset.name, spec.name, self.seed, "found")
        try:
            context = self.context(spec)
            settings = self.settings(spec, context)
        except MissingDependencyError as error:
            return _without(cell, error)
        key, evaluate = key_of(settings), self.evaluate(spec)
        known = self.finished.get(key)
        cell = dataclasses.replace(cell, settings=settings)
        if known is not None and (evaluate == "end" or known["evaluate"] == "each"):
            return dataclasses.replace(cell, record=known)
        self.notify(f"{self.dataset.title}  {spec.title}  seed {self.seed}")
        if spec.needs == "inputs":
            context = dataclasses.replace(context, checkpoints=str(self.checkpoints(spec, key)))
        try:
            record = self.run(spec, context, settings, evaluate)
        except Exception as error:  # one run's error must not cost the other runs
            return _without(cell, error)
        record["key"] = key
        self.store.append(record)
        self.finished[key] = record
        if context.checkpoints is not None:
            shutil.rmtree(context.checkpoints, ignore_errors=True)
        return dataclasses.replace(cell, status="done", record=record)

    def checkpoints(self, spec: MethodSpec, key: str) -> Path:
        """Folder in which a long run keeps its state until its result is stored."""
        name = f"{spec.name}-{self.dataset.name}-{self.seed}-{key[:8]}"
        return self.store.path.parent / "checkpoints" / name

    def context(self, spec: MethodSpec) -> Context:
        gamma = self.plan.gamma
        if gamma is None:
            gamma = protocol_gamma(self.backbone, self.plan.layers)
        options = self.plan.options_of(spec.name, self.dataset.name)
        return Context(self.backbone, gamma, self.seed, self.device, options)

    def settings(self, spec: MethodSpec, context: Context) -> dict[str, Any]:
        """All that determines the numbers, and nothing else: this names the cell.

        Not the device: it moves them by rounding only, and the line says where it ran.
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
            "layers": self.plan.layers,
            "seed": self.seed,
        }

    @property
    def n_tasks(self) -> int:
        return self.plan.tasks if self.plan.tasks is not None else self.dataset.tasks

    def evaluate(self, spec: MethodSpec) -> Evaluate:
        if self.plan.curve == "all":
            return "each"
        if self.plan.curve == "end":
            return "end"
        each = spec.curve == "each" or (spec.curve == "first-seed" and self.seed == 0)
        return "each" if each else "end"

    def run(
        self, spec: MethodSpec, context: Context, settings: dict[str, Any], evaluate: Evaluate
    ) -> dict[str, Any]:
        if self.dataset.modality != "features":
            self.source.fetch(settings["options"].get("backbone", self.backbone))
        require_device(self.device)
        tasks = split_classes(self.dataset.classes, self.n_tasks, self.seed)
        if spec.needs == "features":
            train, test = self.source.of(self.dataset, self.backbone, self.plan.layers)
        else:
            train, test = self.dataset.train, self.dataset.test
        method = spec.make(context)
        outcome = run(method, train, test, tasks, evaluate=evaluate)
        record = to_record(outcome, settings, evaluate)
        record["gamma"] = _gamma_of(method)
        record["method_settings"] = getattr(method, "settings", None)
        record["held_bytes"] = held_bytes(method)
        record["features"] = self.source.fingerprint(self.backbone, self.plan.layers)
        record["dataset"] = {
            "source": self.dataset.source,
            "train_rows": len(self.dataset.train),
            "test_rows": len(self.dataset.test),
            "classes": len(self.dataset.classes),
        }
        record["machine"]["device"] = _device_of(spec, self.device)
        record["command"] = self.plan.command
        return record


def _without(cell: Cell, error: Exception) -> Cell:
    """Fill a cell that has no result with the reason why."""
    if isinstance(error, _NOT_HERE):
        return dataclasses.replace(cell, status="unavailable", reason=str(error), gap=_gap(error))
    logger.debug("%s on %s, seed %d", cell.method, cell.dataset, cell.seed, exc_info=error)
    kind = "" if isinstance(error, KldaError) else f"{type(error).__name__}: "
    where = f"{cell.method} on {cell.dataset} with {cell.backbone}, seed {cell.seed}"
    return dataclasses.replace(
        cell, status="failed", reason=f"{where}: {kind}{error}", gap="failed"
    )


def _gap(error: Exception) -> str:
    if isinstance(error, DeviceNotAvailableError):
        return "not run here"
    return error.gap if isinstance(error, UnsuitableBackboneError) else NOT_HERE


def _gamma_of(method: Any) -> float | None:
    gamma = getattr(getattr(method, "estimator", None), "gamma_", None)
    return None if gamma is None else float(gamma)


def to_record(outcome: Outcome, settings: dict[str, Any], evaluate: str) -> dict[str, Any]:
    """One result line, without the parts that the caller knows better.

    Parameters
    ----------
    outcome : Outcome
        What the protocol measured.
    settings : dict
        What determines the numbers.
    evaluate : {"each", "end"}
        When accuracy was measured.
    """
    predict = [seconds for seconds in outcome.predict_seconds if seconds is not None]
    return {
        "settings": settings,
        "evaluate": evaluate,
        "metrics": {name: _number(value) for name, value in outcome.metrics.items()},
        "seen_accuracy": [_number(value) for value in outcome.seen_accuracy],
        "matrix": [
            None if row is None else [_number(value) for value in row] for row in outcome.matrix
        ],
        "samples_seen": outcome.samples_seen,
        "task_sizes": [len(task) for task in outcome.tasks],
        "seconds": {
            "learn": _number(sum(outcome.learn_seconds)),
            "learn_each": [_number(value) for value in outcome.learn_seconds],
            "predict_last": _number(predict[-1]),
            "predict_all": _number(sum(predict)),
        },
        "rows_predicted": outcome.rows_predicted,
        "correct": pack_bits(outcome.correct),
        "peak_memory_bytes": outcome.peak_memory_bytes,
        "versions": versions(),
        "machine": machine(),
        "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _number(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    return round(float(value), 6)


def pack_bits(bits: np.ndarray) -> str:
    """Booleans as hexadecimal digits, the first one the highest bit."""
    return np.packbits(np.asarray(bits, dtype=bool)).tobytes().hex()


def unpack_bits(text: str, count: int) -> np.ndarray:
    """Invert :func:`pack_bits`."""
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), dtype=np.uint8), count=count) > 0


def command_line() -> str:
    """Return the command that is running, as a user would type it."""
    program = Path(sys.argv[0]).name
    names = {"__main__.py": "python -m klda.benchmarks", "-c": "klda"}
    return shlex.join([*names.get(program, program).split(), *sys.argv[1:]])
