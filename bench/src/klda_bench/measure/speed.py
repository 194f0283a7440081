"""How fast the engine is, beside the authors' form and the bare BLAS.

Programs are measured from the constructor to the first answer, in one run, on synthetic features.
The floor is the matrix product, Cholesky and solve that no exact method can do without, as bare
calls on arrays in memory; it is measured before and after each program of ours, which is compared
with the floors next to it: what else the machine does then meets both. Teaching one more sample and
asking once is measured apart, by models of several sizes in turns.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Annotated, Any

import numpy as np
import pandas as pd

from klda import KLDA, KLDAEnsemble, Learner
from klda.cli.options import option
from klda_bench import environment
from klda_bench.methods.registry import PROTOCOL_GAMMA
from klda_bench.options import Device, Output
from klda_bench.results import Row

GAMMA = PROTOCOL_GAMMA["minilm"]
SPREAD = 0.7  # of the centres, relative to the noise within classes
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
    quick: Annotated[bool, option("Small sizes, a few seconds.", "--quick")] = False,
    no_reference: Annotated[bool, option("Leave out the authors' form.", "--no-reference")] = False,
    output: Output = None,
) -> Iterator[Row]:
    """Measure the engine beside the authors' form and the bare BLAS."""
    sizes, device = QUICK if quick else Sizes(), environment.resolve_device(device)
    programs = _Programs(sizes, device)
    turns = product(range(ROUNDS), ((1, True), (1, False), (sizes.members, True)))
    runs = [row for _, which in turns for row in programs.ours(*which)]
    runs += [] if no_reference else [programs.authors()]
    medians = pd.DataFrame(runs).groupby(["program", "members"], sort=False).median()
    medians = medians[list(FIGURES)].astype(object)
    medians = medians.where(medians.notna(), None).reset_index()
    title = (
        f"N = {sizes.samples}, d = {sizes.features}, D = {sizes.components}, M = {sizes.classes}"
    )
    where = environment.describe_device(device)
    yield from ({"what": f"{title} on {where}", **row} for row in medians.to_dict("records"))
    yield from _teach_one(sizes, device)


def _teach_one(sizes: Sizes, device: str) -> Iterator[Row]:
    """Teach one sample and ask once, at several sizes; compare with the first beyond D / 2."""
    X, y = make_samples(max(sizes.taught), sizes.wide, sizes.intents)
    asks = {"probabilities": Learner.predict_proba, "labels": Learner.predict}
    base = next(n for n in sizes.taught if 2 * n > sizes.components)
    learners, runs = {}, []
    for n in sizes.taught:
        kernel = KLDA(device=device, n_components=sizes.components, random_state=0)
        known = n - len(asks) * ROUNDS
        learners[n] = Learner("features", classifier=kernel).learn_rows(X[:known], y[:known])
        learners[n].predict_proba(X[:1])
    for _, (name, ask), n in product(range(ROUNDS), asks.items(), learners):
        at = slice(learners[n].samples, learners[n].samples + 1)

        def teach_and_ask(ask: Any = ask, learner: Learner = learners[n], at: slice = at) -> None:
            ask(learner.learn_rows(X[at], y[at]), X[:1])

        runs.append({"samples": n, "ask": name, "seconds": seconds(teach_and_ask, device)})
    medians = pd.DataFrame(runs).groupby(["samples", "ask"]).seconds.median().unstack()
    for n in learners:
        row: Row = {"what": f"teach one sample, ask once: d = {sizes.wide}, M = {sizes.intents}"}
        row["samples"] = n
        for name in asks:
            row[f"{name}_seconds"] = float(medians[name][n])
            row[f"{name}_over_{base}"] = float(medians[name][n] / medians[name][base])
        yield row


class _Programs:
    """All programs on the same samples, each measured in the same way."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        self._sizes, self._device = sizes, device
        self._samples, self._labels = make_samples(sizes.samples, sizes.features, sizes.classes)
        self._test = self._samples[: sizes.test]
        shape = (sizes.samples, sizes.components)
        rows: Any = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        if device != "cpu":
            rows = environment.require("torch", "baselines").from_numpy(rows).to(device)
        self._lifted = rows
        self._floor(100)

    def ours(self, members: int, paper: bool) -> Iterator[Row]:
        """Learn, between floors that take as long together; predict, add a class."""
        options: dict[str, Any] = {"random_state": 0, "device": self._device}
        options["n_components"] = self._sizes.components

        def learned() -> KLDA:
            if members > 1:
                model = KLDAEnsemble.paper(gamma=GAMMA, n_members=members, **options)
            else:
                model = KLDA.paper(gamma=GAMMA, **options) if paper else KLDA(**options)
            return model.partial_fit(self._samples, self._labels)

        halves = range(-(-members // 2))
        floors = [self._seconds(self._floor) for _ in halves]
        name = "klda, the paper's mode" if paper else "klda, default"
        model, row = self._measured(name, learned, len(self._test))
        floors += [self._seconds(self._floor) for _ in halves]
        for each in floors:
            floor = {"program": "floor: product, Cholesky, solve", "members": 1}
            yield floor | {"learn_seconds": each}
        added = [self._seconds(self._add_class, model, i) for i in range(NEW_CLASSES)]
        row |= {"members": members, "add_class_seconds": statistics.median(added)}
        yield row | {"over_floor": row["learn_seconds"] / (members * statistics.mean(floors))}

    def authors(self) -> Row:
        """Run the authors' form, which has to learn everything again for a new class."""
        environment.require("torch", "baselines")
        from klda_bench.methods.authors import AuthorsKLDA

        def learned() -> AuthorsKLDA:
            components, device = self._sizes.components, self._device
            made = AuthorsKLDA(n_components=components, gamma=GAMMA, device=device)
            made.learn_task(self._samples, self._labels)
            return made

        _, row = self._measured(AUTHORS, learned, ONE_AT_A_TIME)
        return row | {"members": 1, "add_class_seconds": row["learn_seconds"]}

    def _measured(self, name: str, learned: Callable[[], Any], asked: int) -> tuple[Any, Row]:
        """Return a model, and the seconds until its first answer and of a later one."""
        made: list[Any] = []

        def learn() -> None:
            made.append(learned())
            made[0].predict(self._test[:1])

        row: Row = {"program": name, "learn_seconds": self._seconds(learn)}
        predict = min(self._seconds(made[0].predict, self._test[:asked]) for _ in range(5))
        return made[0], row | {"predict_microseconds": 1e6 * predict / asked}

    def _seconds(self, action: Callable[..., Any], *arguments: Any) -> float:
        return seconds(partial(action, *arguments), self._device)

    def _add_class(self, model: KLDA, i: int) -> None:
        samples = self._test[:NEW_CLASS] + np.float32(0.05 + 0.01 * i)
        labels = np.full(NEW_CLASS, self._labels.max() + 1 + i)
        model.partial_fit(samples, labels).predict(self._test[:1])

    def _floor(self, rows: int | None = None) -> None:
        """Do what no exact method can do without, on arrays that are there already."""
        work = _numpy_floor if self._device == "cpu" else _torch_floor
        work(self._lifted[:rows], self._lifted[: self._sizes.classes])


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


def make_samples(n_rows: int, n_features: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return unit-length features of overlapping classes and their labels."""
    rng = np.random.default_rng(0)
    centres = SPREAD * rng.standard_normal((n_classes, n_features), dtype=np.float32)
    labels = np.arange(n_rows) % n_classes
    samples = rng.standard_normal((n_rows, n_features), dtype=np.float32) + centres[labels]
    return samples / np.linalg.norm(samples, axis=1, keepdims=True), labels


def seconds(action: Callable[[], Any], device: str) -> float:
    """Return the seconds of a call, with the device's queue emptied before and after."""
    cuda = environment.require("torch", "baselines").cuda if device.startswith("cuda") else None
    if cuda is not None:
        cuda.synchronize(device)
    start = time.perf_counter()
    action()
    if cuda is not None:
        cuda.synchronize(device)
    return time.perf_counter() - start
