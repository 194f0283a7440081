"""How fast the engine is, beside a plain re-implementation, scikit-learn, and the bare BLAS.

All programs are measured in one run on one machine, on synthetic features of CLINC150's size:

- *klda*: learning is what a user calls, from the constructor over ``partial_fit`` to the first
  answer. Random features are drawn, features come from the host's memory; on a GPU the same is also
  measured with features that are on the device.
- *authors' form*, measured in the same way: per-class updates, the pseudo-inverse of the scatter,
  and one sample at a time through the full Mahalanobis form (`klda_bench.methods.authors`). One
  member is measured; five take five times as long.
- *scikit-learn*: ``RBFSampler`` and ``LinearDiscriminantAnalysis(solver="lsqr")``; one member.
- *floor*: the matrix product, Cholesky and solve that no exact method can do without, as bare
  calls on arrays in memory, with no random features made and nothing checked. It is measured
  before and after each program of ours, which is compared with the floors next to it: what else
  the machine does then meets both.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
import typer

from klda import KLDA, KLDAEnsemble
from klda_bench import environment
from klda_bench.measure.common import GAMMA, Clock, Device, Tf32, make_samples
from klda_bench.methods.authors import AuthorsKLDA
from klda_bench.results import Row

NEW_CLASS = 70  # samples of a class that is added to a fitted model
NEW_CLASSES = 5  # one after another, of which the median counts: some need another factorisation
ROUNDS = 5  # all programs in turns; medians count
ONE_AT_A_TIME = 20  # samples that the authors' form answers


@dataclass(frozen=True)
class Sizes:
    """What is learned: by default as many samples, features and classes as CLINC150 has."""

    samples: int = 10_500
    features: int = 384
    classes: int = 150
    components: int = 5000
    members: int = 5
    test: int = 750


QUICK = Sizes(3000, 64, 30, 800)


def speed(
    device: Device = "auto",
    n_components: Annotated[int | None, typer.Option(help="Random features D.")] = None,
    members: Annotated[int | None, typer.Option(help="Members of the ensemble.")] = None,
    tf32: Tf32 = False,
    fresh_memory: Annotated[
        bool,
        typer.Option("--fresh-memory", help="Take memory from the system again each time (Linux)."),
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, a few seconds.")] = False,
    no_reference: Annotated[
        bool, typer.Option("--no-reference", help="Leave out the slow programs.")
    ] = False,
) -> Iterator[Row]:
    """Measure the engine beside the authors' form, scikit-learn and the bare BLAS.

    The process keeps freed memory (on Linux), so that no program waits for the system to find
    some, unless --fresh-memory is given.
    """
    sizes, device = QUICK if quick else Sizes(), environment.resolve_device(device)
    components, members = n_components or sizes.components, members or sizes.members
    sizes = replace(sizes, components=components, members=members)
    if device != "cpu":
        environment.allow_tf32(tf32)
    samples, labels = make_samples(sizes.samples, sizes.features, sizes.classes)
    with contextlib.nullcontext(False) if fresh_memory else environment.freed_memory_kept() as kept:
        rows = _in_turns(sizes, device, samples, labels)
    if not no_reference:
        rows.append(_authors(sizes, device, samples, labels))
        if device == "cpu":
            rows.append(_scikit_learn(sizes, samples, labels))
    title = (
        f"N = {sizes.samples}, d = {sizes.features}, D = {sizes.components}, M = {sizes.classes}"
    )
    where = f"{environment.describe_device(device)}{' with TF32' if tf32 else ''}"
    yield from ({"what": f"{title} on {where}", **row} for row in rows)
    for name, ratio in _ratios(rows).items():
        yield {"what": name, "ratio": ratio}
    yield {"what": "freed memory kept", "kept": kept}
    if device == "cpu":
        peak = environment.in_child(_peak_memory, sizes)
        yield {"what": "peak memory beyond the data, all members", "peak_bytes": peak}


def _row(
    program: str,
    members: int,
    learn: float,
    add_class: float | None = None,
    predict: float | None = None,
    over_floor: float | None = None,
    learn_on_device: float | None = None,
) -> Row:
    """One measured program; None where it was not measured."""
    row: Row = {"program": program, "members": members, "learn_seconds": learn}
    row |= {"learn_on_device_seconds": learn_on_device}
    microseconds = None if predict is None else 1e6 * predict
    row |= {"add_class_seconds": add_class, "predict_microseconds": microseconds}
    return row | {"over_floor": over_floor}


def _in_turns(sizes: Sizes, device: str, samples: np.ndarray, labels: np.ndarray) -> list[Row]:
    """Measure the floor and ours, one after another, several times."""
    floor = _Floor(sizes, device)
    programs = [_Ours(sizes, device, samples, labels, 1, paper) for paper in (True, False)]
    if sizes.members > 1:
        programs.append(_Ours(sizes, device, samples, labels, sizes.members, True))
    for _ in range(ROUNDS):
        for program in programs:
            program.go_round(floor)
    return [floor.row(), *(program.row() for program in programs)]


def _model(sizes: Sizes, device: str, members: int, paper: bool) -> KLDA:
    options: dict[str, Any] = {"random_state": 0, "device": device}
    options["n_components"] = sizes.components
    if members > 1:
        return KLDAEnsemble.paper(gamma=GAMMA, n_members=members, **options)
    return KLDA.paper(gamma=GAMMA, **options) if paper else KLDA(**options)


class _Ours:
    """A model of ours, made and learned again in each round."""

    def __init__(
        self,
        sizes: Sizes,
        device: str,
        samples: np.ndarray,
        labels: np.ndarray,
        members: int,
        paper: bool,
    ) -> None:
        self.name = "klda, the paper's mode" if paper else "klda, default"
        self.members, self._clock = members, Clock(device)
        self._make = partial(_model, sizes, device, members, paper)
        self._samples, self._labels = samples, labels
        self._test = samples[: sizes.test]
        self._on_device = None if device == "cpu" else _tensor(samples, device)
        self._rounds: list[list[float]] = []

    def go_round(self, floor: _Floor) -> None:
        """Learn, between floors that take as long together; predict, add a class."""
        n_floors = -(-self.members // 2)
        floors = [floor.seconds() for _ in range(n_floors)]
        model, learn = self._learn(self._samples)
        floors += [floor.seconds() for _ in range(n_floors)]
        predict = self._clock(lambda: model.predict(self._test), repeats=5) / len(self._test)
        add = statistics.median(self._add_class(model, i) for i in range(NEW_CLASSES))
        over = learn / (self.members * statistics.mean(floors))
        figures = [learn, add, predict, over]
        if self._on_device is not None:
            figures.append(self._learn(self._on_device)[1])
        self._rounds.append(figures)

    def _add_class(self, model: KLDA, i: int) -> float:
        """Return the seconds until a model answers that has learned one more class."""
        samples = self._test[:NEW_CLASS] + np.float32(0.05 + 0.01 * i)
        labels = np.full(NEW_CLASS, self._labels.max() + 1 + i)
        return self._clock(lambda: model.partial_fit(samples, labels).predict(self._test[:1]))

    def _learn(self, samples: Any) -> tuple[KLDA, float]:
        """Return a new model and the seconds from its constructor to its first answer."""
        made: list[KLDA] = []

        def learn() -> None:
            made.append(self._make().partial_fit(samples, self._labels))
            made[0].predict(self._test[:1])

        seconds = self._clock(learn)
        return made[0], seconds

    def row(self) -> Row:
        """Return the medians of all rounds."""
        return _row(self.name, self.members, *np.median(self._rounds, axis=0).tolist())


class _Floor:
    """What no exact method can do without, on arrays that are there already."""

    def __init__(self, sizes: Sizes, device: str) -> None:
        self._clock, self._work = Clock(device), _numpy_floor if device == "cpu" else _torch_floor
        shape = (sizes.samples, sizes.components)
        rows: Any = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        if device != "cpu":
            rows = _tensor(rows, device)
        self._rows, self._means = rows, rows[: sizes.classes]
        self._work(rows[:100], self._means)
        self._seconds: list[float] = []

    def seconds(self) -> float:
        """Do it once."""
        self._seconds.append(self._clock(lambda: self._work(self._rows, self._means)))
        return self._seconds[-1]

    def row(self) -> Row:
        """Return the median of all."""
        return _row("floor: product, Cholesky, solve", 1, statistics.median(self._seconds))


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


def _authors(sizes: Sizes, device: str, samples: np.ndarray, labels: np.ndarray) -> Row:
    clock, made = Clock(device), []

    def learn() -> None:
        made.append(AuthorsKLDA(n_components=sizes.components, gamma=GAMMA, device=device))
        made[0].learn_task(samples, labels)
        made[0].predict(samples[:1])

    seconds = clock(learn)
    model, few = made[0], samples[:ONE_AT_A_TIME]
    predict = statistics.median(clock(lambda: model.predict(few)) for _ in range(3)) / len(few)
    return _row("authors' form", 1, seconds, seconds, predict)


def _scikit_learn(sizes: Sizes, samples: np.ndarray, labels: np.ndarray) -> Row:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.pipeline import make_pipeline

    kernel = RBFSampler(gamma=GAMMA, n_components=sizes.components, random_state=0)
    model = make_pipeline(kernel, LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-3))
    clock, test = Clock("cpu"), samples[: sizes.test]
    seconds = clock(lambda: model.fit(samples, labels))
    predict = clock(lambda: model.predict(test), repeats=3) / len(test)
    return _row("scikit-learn: RBFSampler, LDA (lsqr)", 1, seconds, seconds, predict)


def _peak_memory(sizes: Sizes) -> int:
    """Bytes that learning and answering with all members takes beyond the data."""
    samples, labels = make_samples(sizes.samples, sizes.features, sizes.classes)
    _model(sizes, "cpu", 1, True).fit(samples[:100], labels[:100]).predict(samples[:10])
    idle = environment.resident_bytes()
    with environment.peak_memory() as memory:
        model = _model(sizes, "cpu", sizes.members, True)
        model.partial_fit(samples, labels).predict(samples[: sizes.test])
    return memory.peak_bytes - idle


def _ratios(rows: list[Row]) -> dict[str, float]:
    """Return the ratios that the project promises, ours in the denominator where faster."""
    paper = {row["members"]: row for row in rows if "paper's mode" in row["program"]}
    default = next(row for row in rows if "default" in row["program"])
    most, one = paper[max(paper)], paper[1]
    ratios = {
        "learning, one member, over the floor": one["over_floor"],
        "learning, all members, over the floor for as many": most["over_floor"],
        "learning, default, over the floor": default["over_floor"],
        "adding a class, over learning, one member": one["add_class_seconds"]
        / one["learn_seconds"],
    }
    authors = next((row for row in rows if row["program"] == "authors' form"), None)
    if authors is not None:
        n, same = most["members"], "authors' form over ours, as many members"
        alone = "learning, authors' five members over our one, default"
        for verb, value in (("learning", "learn_seconds"), ("predicting", "predict_microseconds")):
            ratios[f"{verb}, {same}"] = authors[value] * n / most[value]
        ratios[alone] = 5 * authors["learn_seconds"] / default["learn_seconds"]
    return {name: round(float(value), 3) for name, value in ratios.items()}
