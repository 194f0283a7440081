"""How fast the engine is, beside a plain re-implementation, scikit-learn, and the bare BLAS.

All programs are measured in one run on one machine, on synthetic features of CLINC150's size:

- *klda*: learning is what a user calls, from the constructor over ``partial_fit`` to the first
  answer. Random features are drawn, features come from the host's memory.
- *authors' form*, measured in the same way: per-class updates, the pseudo-inverse of the scatter,
  and one sample at a time through the full Mahalanobis form (`klda_bench.methods.authors`). One
  member is measured; five take five times as long.
- *scikit-learn*: ``RBFSampler`` and ``LinearDiscriminantAnalysis(solver="lsqr")``; one member.
- *floor*: the matrix product, Cholesky and solve that no exact method can do without, as bare
  calls on arrays in memory, with no random features made and nothing checked. It is measured
  before and after each program of ours, which is compared with the floors next to it: what else
  the machine does then meets both.

What a user of a page feels is measured apart: one more sample is taught and one question asked,
for probabilities or for labels alone, by models of several sizes in turns. How rows are kept and
which kernel is used depend on the size; the seconds should not.

Where the system is a virtual machine that gives idle memory back, touching 100 MB for the first
time may take as long as factorising them. With ``MALLOC_MMAP_MAX_=0`` and
``MALLOC_TRIM_THRESHOLD_=2147483647`` in the environment, glibc keeps freed memory, for all
programs alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.kernel_approximation import RBFSampler
from sklearn.pipeline import make_pipeline

from klda import KLDA, KLDAEnsemble, Learner
from klda_bench import environment
from klda_bench.measure.common import GAMMA, Clock, Device, Tf32, make_samples
from klda_bench.results import Row

NEW_CLASS = 70  # samples of a class that is added to a fitted model
NEW_CLASSES = 5  # one after another, of which the median counts: some need another factorisation
ROUNDS = 5  # all programs in turns; medians count
AUTHORS = "authors' form"
ONE_AT_A_TIME = 20  # samples that the authors' form answers
FIGURES = ("learn_seconds", "add_class_seconds", "predict_microseconds", "over_floor")


@dataclass(frozen=True)
class Sizes:
    """What is learned: by default as many samples, features and classes as CLINC150 has."""

    samples: int = 10_500
    features: int = 384
    classes: int = 150
    components: int = 5000
    members: int = 5
    test: int = 750
    # Samples, features and classes of the models that are taught one more.
    taught: tuple[int, ...] = (300, 800, 1200, 2400, 2600, 10_000)
    wide: int = 1536
    intents: int = 77


QUICK = Sizes(1200, 64, 30, 400, 2, taught=(100, 180, 220), wide=64, intents=10)


def speed(
    device: Device = "auto",
    tf32: Tf32 = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, a few seconds.")] = False,
    no_reference: Annotated[
        bool, typer.Option("--no-reference", help="Leave out the slow programs.")
    ] = False,
) -> Iterator[Row]:
    """Measure the engine beside the authors' form, scikit-learn and the bare BLAS."""
    sizes, device = QUICK if quick else Sizes(), environment.resolve_device(device)
    if device != "cpu":
        environment.allow_tf32(tf32)
    programs = _Programs(sizes, device)
    runs = [*programs.in_turns(), *(() if no_reference else programs.references())]
    title = (
        f"N = {sizes.samples}, d = {sizes.features}, D = {sizes.components}, M = {sizes.classes}"
    )
    where = f"{environment.describe_device(device)}{' with TF32' if tf32 else ''}"
    yield from ({"what": f"{title} on {where}", **row} for row in _medians(runs))
    yield from _teach_one(sizes, device)


def _teach_one(sizes: Sizes, device: str) -> Iterator[Row]:
    """Teach one sample and ask once, at several sizes; compare with the first beyond D / 2."""
    X, y = make_samples(max(sizes.taught), sizes.wide, sizes.intents)
    asks = {"probabilities": Learner.predict_proba, "labels": Learner.predict}
    runs = len(asks) * ROUNDS
    options: dict[str, Any] = {"n_components": sizes.components, "random_state": 0}
    learners = {}
    for n in sizes.taught:
        learner = Learner("features", classifier=KLDA(device=device, **options))
        learners[n] = learner.learn_rows(X[: n - runs], y[: n - runs])
        learner.predict_proba(X[:1])
    clock, seconds = Clock(device), {(n, name): list[float]() for n in learners for name in asks}
    for _ in range(ROUNDS):
        for name, ask in asks.items():
            for n, learner in learners.items():
                next_one = slice(learner.samples, learner.samples + 1)

                def teach_and_ask(learner: Learner = learner, at: slice = next_one) -> None:
                    ask(learner.learn_rows(X[at], y[at]), X[:1])  # noqa: B023 (called at once)

                seconds[n, name].append(clock(teach_and_ask))
    base = next(n for n in sizes.taught if 2 * n > sizes.components)
    for n in learners:
        row: Row = {"what": f"teach one sample, ask once: d = {sizes.wide}, M = {sizes.intents}"}
        row["samples"] = n
        for name in asks:
            median = statistics.median(seconds[n, name])
            row[f"{name}_seconds"] = median
            row[f"{name}_over_{base}"] = median / statistics.median(seconds[base, name])
        yield row


def _medians(runs: list[Row]) -> list[Row]:
    """Return one row per program; None where something was not measured."""
    frame = pd.DataFrame(runs).groupby(["program", "members"], sort=False).median()
    frame = frame.reindex(columns=list(FIGURES)).astype(object)
    rows: list[Any] = frame.where(frame.notna(), None).reset_index().to_dict("records")
    return rows


def _model(sizes: Sizes, device: str, members: int, paper: bool) -> KLDA:
    options: dict[str, Any] = {"random_state": 0, "device": device}
    options["n_components"] = sizes.components
    if members > 1:
        return KLDAEnsemble.paper(gamma=GAMMA, n_members=members, **options)
    return KLDA.paper(gamma=GAMMA, **options) if paper else KLDA(**options)


class _Programs:
    """All programs on the same samples; each method runs one of them once."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        self._sizes, self._device, self._clock = sizes, device, Clock(device)
        self._samples, self._labels = make_samples(sizes.samples, sizes.features, sizes.classes)
        self._test = self._samples[: sizes.test]
        shape = (sizes.samples, sizes.components)
        rows: Any = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        self._lifted = rows if device == "cpu" else _tensor(rows, device)
        self._floor(self._lifted[:100])

    def in_turns(self) -> Iterator[Row]:
        """Run ours, one after another, several times."""
        for _ in range(ROUNDS):
            for members, paper in ((1, True), (1, False), (self._sizes.members, True)):
                yield from self._ours(members, paper)

    def _ours(self, members: int, paper: bool) -> Iterator[Row]:
        """Learn, between floors that take as long together; predict, add a class."""
        name = {"program": "klda, the paper's mode" if paper else "klda, default"}
        make = partial(_model, self._sizes, self._device, members, paper)
        labels = self._labels
        floors = [self._clock(self._floor) for _ in range(-(-members // 2))]
        model, learn = self._learn(lambda: make().partial_fit(self._samples, labels))
        floors += [self._clock(self._floor) for _ in range(-(-members // 2))]
        for seconds in floors:
            floor = {"program": "floor: product, Cholesky, solve", "members": 1}
            yield floor | {"learn_seconds": seconds}
        predict = self._clock(lambda: model.predict(self._test), repeats=5)
        row: Row = {"members": members, "learn_seconds": learn}
        row["predict_microseconds"] = 1e6 * predict / len(self._test)
        row["add_class_seconds"] = statistics.median(
            self._add_class(model, i) for i in range(NEW_CLASSES)
        )
        row["over_floor"] = learn / (members * statistics.mean(floors))
        yield name | row

    def _learn(self, fitted: Callable[[], Any]) -> tuple[Any, float]:
        """Return a model that a call makes, and the seconds until its first answer."""
        made: list[Any] = []

        def learn() -> None:
            made.append(fitted())
            made[0].predict(self._test[:1])

        seconds = self._clock(learn)
        return made[0], seconds

    def _add_class(self, model: KLDA, i: int) -> float:
        """Return the seconds until a model answers that has learned one more class."""
        samples = self._test[:NEW_CLASS] + np.float32(0.05 + 0.01 * i)
        labels = np.full(NEW_CLASS, self._labels.max() + 1 + i)
        return self._clock(lambda: model.partial_fit(samples, labels).predict(self._test[:1]))

    def _floor(self, rows: Any = None) -> None:
        """Do what no exact method can do without, on arrays that are there already."""
        rows = self._lifted if rows is None else rows
        work = _numpy_floor if self._device == "cpu" else _torch_floor
        work(rows, self._lifted[: self._sizes.classes])

    def references(self) -> Iterator[Row]:
        """Run programs that have to learn everything again for a new class, one member each."""
        environment.require("torch", "baselines")
        from klda_bench.methods.authors import AuthorsKLDA

        components = self._sizes.components

        def authors() -> AuthorsKLDA:
            made = AuthorsKLDA(n_components=components, gamma=GAMMA, device=self._device)
            made.learn_task(self._samples, self._labels)
            return made

        def scikit_learn() -> Any:
            kernel = RBFSampler(gamma=GAMMA, n_components=components, random_state=0)
            rule = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-3)
            return make_pipeline(kernel, rule).fit(self._samples, self._labels)

        programs: dict[str, tuple[Callable[[], Any], int]] = {AUTHORS: (authors, ONE_AT_A_TIME)}
        if self._device == "cpu":
            programs["scikit-learn: RBFSampler, LDA (lsqr)"] = (scikit_learn, len(self._test))
        for name, (fitted, asked) in programs.items():
            model, learn = self._learn(fitted)
            rows = self._test[:asked]
            predict = self._clock(partial(model.predict, rows), repeats=3) / asked
            row: Row = {"program": name, "members": 1, "learn_seconds": learn}
            yield row | {"add_class_seconds": learn, "predict_microseconds": 1e6 * predict}


def _tensor(rows: np.ndarray, device: str) -> Any:
    return environment.require("torch", "baselines").from_numpy(rows).to(device)


def _numpy_floor(rows: np.ndarray, means: np.ndarray) -> None:
    from scipy.linalg import blas, lapack

    size = rows.shape[1]
    square = np.zeros((size, size), np.float32)
    blas.ssyrk(1.0, rows.T, beta=1.0, c=square.T, trans=0, lower=0, overwrite_c=1)
    square[range(size), range(size)] += 1000.0
    lapack.spotrf(square.T, lower=0, clean=0, overwrite_a=1)
    lapack.spotrs(square.T, means.copy().T, lower=0, overwrite_b=1)


def _torch_floor(rows: Any, means: Any) -> None:
    import torch

    square = rows.T @ rows
    square.diagonal().add_(1000.0)
    torch.cholesky_solve(means.T, torch.linalg.cholesky(square))
