"""Walk the grid of data sets, methods and seeds; run what is not finished, and keep it."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from klda.encoders import MODELS, OfflineModelError
from klda.errors import KldaError, MissingDependencyError
from klda_bench import environment
from klda_bench.data import datasets
from klda_bench.data.datasets import Dataset
from klda_bench.environment import UnavailableError
from klda_bench.methods.registry import MethodSpec
from klda_bench.results import PROGRAM, Notify, NotWrittenError, Results, Row, Run, silent
from klda_bench.runs.features import features, load_encoder, say_memory
from klda_bench.runs.metrics import FINAL
from klda_bench.runs.protocol import Outcome, run, split_classes

logger = logging.getLogger(__name__)

SETTINGS = ("backbone", "dataset", "method", "seed", "split", "tasks", "layers", "options")


@dataclass(frozen=True)
class GridPlan:
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
    command: str = ""

    def __post_init__(self) -> None:
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
    """Return one row per run of a grid: settings, final accuracy, and what became of it.

    `status` is done (run now), found (in the results), unavailable (not possible here), or failed.
    Without a `record`, `reason` says why. Settings that are not known, as without the data set, are
    missing.
    """
    blank = {"reason": "", "record": None}
    columns = [*SETTINGS, FINAL, "status", *blank]
    return pd.DataFrame([blank | run for run in runs], columns=columns).astype({FINAL: float})


def with_record(settings: Row, record: Row, status: str = "found") -> Row:
    """Return the row of a run that has a result."""
    measured = {FINAL: record["metrics"][FINAL]}
    return settings | measured | {"status": status, "record": record}


def walk(plan: GridPlan, results: Results, notify: Notify = silent) -> pd.DataFrame:
    """Run what the results do not hold of a plan, and return all its runs, in their order."""
    datasets.check(plan.datasets, data=plan.data)
    specs = {spec.name: spec for spec in plan.methods}
    for name, given in plan.options.items():
        # An option that a method doesn't have is found before hours are spent on the others.
        with contextlib.suppress(MissingDependencyError):
            specs[name].check(given)
    return as_frame(_Walker(plan, results, notify).rows())


class _Walker:
    """Goes through a plan, one data set and foundation model after another."""

    def __init__(self, plan: GridPlan, results: Results, notify: Notify) -> None:
        self.plan, self.results, self.notify = plan, results, notify
        self.device = environment.resolve_device(plan.device)
        self.offline: dict[str, str] = {}  # models that are not here, and what was said of them

    def rows(self) -> Iterator[Row]:
        for backbone, name in itertools.product(self.plan.backbones, self.plan.datasets):
            runs = [*itertools.product(range(self.plan.seeds), self.plan.methods)]
            try:
                dataset = datasets.load(name, data=self.plan.data)
            except KldaError as error:
                for seed, spec in runs:
                    place = {"backbone": backbone, "dataset": name, "method": spec.name}
                    yield place | {"seed": seed} | _gap(error)
                continue
            for seed, spec in runs:
                yield self.row(dataset, backbone, spec, seed)

    def row(self, dataset: Dataset, backbone: str, spec: MethodSpec, seed: int) -> Row:
        """Return a run's row of the frame: one run's error must not cost the other runs."""
        settings: Row = {"backbone": backbone, "dataset": dataset.name}
        settings |= {"method": spec.name, "seed": seed}
        try:
            settings = self.settings(dataset, backbone, spec, seed)
            title = f"{dataset.title}  {spec.title}  seed {seed}"
            run = Run(settings, title, partial(self.made, dataset, spec, settings))
            record, is_new = self.results.once(run, self.notify, each=self.plan.curve)
        except NotWrittenError:
            raise
        except Exception as error:
            where = "{method} on {dataset} with {backbone}, seed {seed}: ".format(**settings)
            return settings | _gap(error, where)
        return with_record(settings, record, "done" if is_new else "found")

    def settings(self, dataset: Dataset, backbone: str, spec: MethodSpec, seed: int) -> Row:
        """All that determines the numbers, and nothing else: this names the run.

        Not the device: it moves them by rounding only, and the row says where it ran.
        """
        return {
            "dataset": dataset.name,
            "split": dataset.split,
            "data_sha256": dataset.sha256,
            "tasks": dataset.tasks if self.plan.tasks is None else self.plan.tasks,
            "method": spec.name,
            "options": self.plan.options_of(spec, backbone),
            "backbone": backbone,
            "layers": self.plan.layers_of(spec, backbone),
            "seed": seed,
            **({"program": PROGRAM} if spec.group == "ours" else {}),
        }

    def made(self, dataset: Dataset, spec: MethodSpec, settings: Row) -> Row:
        """Make a run: put a fresh method through the tasks."""
        environment.require_device(self.device)
        backbone, seed = settings["backbone"], settings["seed"]
        if backbone in self.offline:  # asking the hub again would take minutes of time-outs
            raise OfflineModelError(self.offline[backbone])
        tasks = split_classes(dataset.classes, settings["tasks"], seed)
        train, test, encoder = dataset.train, dataset.test, None
        where = {"backbone": backbone, "seed": seed, "device": self.device}
        try:
            if spec.needs == "inputs":
                say_memory(backbone, 16, "its weights, their gradients and Adam's two moments")
            elif dataset.modality != "features":
                place = (backbone, settings["layers"], self.device)
                train, test = features(dataset, *place)
                encoder = load_encoder(*place)
            method = spec.make(settings["options"], encoder=encoder, **where)
        except OfflineModelError as error:
            self.offline[backbone] = str(error)
            raise
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
            "command": self.plan.command,
        }


def _gap(error: Exception, where: str = "") -> Row:
    """Say why a run has no result.

    What cannot be done here leaves a gap in the table; anything else that goes wrong is a failure.
    """
    if isinstance(error, (UnavailableError, OfflineModelError, MissingDependencyError)):
        return {"status": "unavailable", "reason": str(error)}
    logger.debug("%s", where, exc_info=error)
    kind = "" if isinstance(error, KldaError) else f"{type(error).__name__}: "
    return {"status": "failed", "reason": f"{where}{kind}{error}"}


def _measured(outcome: Outcome) -> Row:
    """Return what the protocol measured, as a row can hold it: rounded, and None for NaN."""
    row = {
        "metrics": {FINAL: outcome.seen_accuracy[-1]},
        "seen_accuracy": outcome.seen_accuracy,
        "matrix": outcome.matrix,
        "samples_seen": outcome.samples_seen,
        "seconds": {
            "learn": sum(outcome.learn_seconds),
            "learn_each": outcome.learn_seconds,
            "predict_last": outcome.predict_seconds[-1],
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
