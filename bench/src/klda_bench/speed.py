"""How fast the engine is, beside a plain re-implementation, scikit-learn, and the bare BLAS.

Run as ``klda bench speed`` or ``python -m klda_bench.speed``. All rows come from one run on
one machine, on synthetic features of CLINC150's size unless told otherwise:

- *klda*: learning is update and solve together, from features to a classifier that answers.
- *authors' form*: per-class updates, the pseudo-inverse of the scatter, and one sample at a time
  through the full Mahalanobis form (`klda_bench.reference`). One member is measured; five
  take five times as long.
- *scikit-learn*: ``LinearDiscriminantAnalysis(solver="lsqr", shrinkage=...)`` on the same random
  features; one member.
- *floor*: the matrix product, Cholesky and solve that no exact method can do without, as bare
  calls on arrays in memory, with no random features made and nothing checked. It is measured
  before and after each program of ours, which is compared with the floors next to it: what else
  the machine does then meets both. The process keeps freed memory (on Linux), so that neither
  waits for the system to find some; ``--fresh-memory`` has it taken anew each time.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from klda.backend import choose_backend
from klda.classifiers import KLDA, KLDAEnsemble
from klda_bench.reference import AuthorsKLDA
from klda_bench.resources import (
    PeakMemory,
    describe_device,
    freed_memory_kept,
    machine,
    resolve_device,
    versions,
)

GAMMA = 0.2
NEW_CLASS = 70  # samples of the class that is added to a fitted model
ROUNDS = 5  # all programs in turns; medians count


@dataclass(frozen=True)
class Sizes:
    """What is learned: by default as many samples, features and classes as CLINC150 has."""

    n_samples: int = 10_500
    n_features: int = 384
    n_classes: int = 150
    n_components: int = 5000
    members: int = 5
    n_test: int = 750
    n_one_at_a_time: int = 20


QUICK = {"n_samples": 3000, "n_features": 64, "n_classes": 30, "n_components": 800}


@dataclass(frozen=True)
class Row:
    """One measured program; times in seconds, None where it was not measured."""

    name: str
    members: int
    learn: float
    add_class: float | None
    predict_one: float | None
    over_floor: float | None = None


def allow_tf32(allowed: bool) -> None:
    """Let matrix products on a GPU round float32 inputs to TF32, or not; factors stay float32."""
    import torch

    torch.set_float32_matmul_precision("high" if allowed else "highest")


def measure(
    sizes: Sizes,
    device: str = "auto",
    *,
    reference: bool = True,
    tf32: bool = False,
    fresh_memory: bool = False,
    on_step: Callable[[str], None] = lambda step: None,
) -> dict[str, Any]:
    """Measure all programs.

    Parameters
    ----------
    sizes : Sizes
        What is learned.
    device : str
        ``"auto"``, ``"cpu"`` or a torch device.
    reference : bool
        Whether to run the slow ones, the authors' form and (on the CPU) scikit-learn.
    tf32 : bool
        Allow TF32 in matrix products, of the floor's as of ours. On the CPU it changes nothing.
    fresh_memory : bool
        Take memory from the system anew each time, instead of keeping what was freed.
    on_step : callable
        Called with what is measured next.

    Returns
    -------
    dict
        Settings, machine, versions, rows, and the ratios that the project promises.
    """
    device = resolve_device(device)
    if device != "cpu":
        allow_tf32(tf32)
    samples, labels = make_samples(sizes)
    memory = contextlib.nullcontext(False) if fresh_memory else freed_memory_kept()
    with memory as kept:
        rows = _in_turns(sizes, device, samples, labels, on_step)
    if reference:
        on_step("the slow programs")
        rows.append(_authors(sizes, device, samples, labels))
    if reference and device == "cpu":
        rows.append(_scikit_learn(sizes, samples, labels))
    peak = _peak_memory(sizes) if device == "cpu" else None
    return {
        "sizes": asdict(sizes),
        "device": describe_device(device),
        "tf32": tf32,
        "freed_memory_kept": kept,
        "machine": machine(),
        "versions": versions(),
        "rows": [asdict(row) for row in rows],
        "peak_memory_beyond_data": peak,
        "ratios": _ratios(rows, sizes.members),
    }


def _in_turns(
    sizes: Sizes,
    device: str,
    samples: np.ndarray,
    labels: np.ndarray,
    on_step: Callable[[str], None],
) -> list[Row]:
    """Measure the floor and ours, one after another, several times."""
    ours = partial(_Ours, sizes, device, samples, labels)
    floor = _Floor(sizes, device)
    programs = [ours(1, paper=True), ours(1, paper=False)]
    if sizes.members > 1:
        programs.append(ours(sizes.members, paper=True))
    for i in range(ROUNDS):
        on_step(f"round {i + 1} of {ROUNDS}")
        for program in programs:
            program.go_round(floor)
    return [floor.row(), *(program.row() for program in programs)]


def make_samples(sizes: Sizes, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit-length features of overlapping classes, and their labels."""
    rng = np.random.default_rng(seed)
    labels = np.arange(sizes.n_samples) % sizes.n_classes
    centres = rng.standard_normal((sizes.n_classes, sizes.n_features), dtype=np.float32)
    samples = rng.standard_normal((sizes.n_samples, sizes.n_features), dtype=np.float32)
    samples += 0.7 * centres[labels]
    samples /= np.linalg.norm(samples, axis=1, keepdims=True)
    return samples, labels


class Clock:
    """Seconds of a call, with the device's queue emptied before and after."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, action: Callable[[], Any], repeats: int = 1) -> float:
        """Return the seconds of the fastest of some calls."""
        best = np.inf
        for _ in range(repeats):
            self._wait()
            start = time.perf_counter()
            action()
            self._wait()
            best = min(best, time.perf_counter() - start)
        return float(best)

    def _wait(self) -> None:
        if self.device.startswith("cuda"):
            import torch

            torch.cuda.synchronize(self.device)


def _model(sizes: Sizes, device: str, members: int, paper: bool) -> KLDA:
    options: dict[str, Any] = {
        "n_components": sizes.n_components,
        "gamma": GAMMA,
        "random_state": 0,
        "device": device,
    }
    if members > 1:
        options["n_members"] = members
    kind = KLDAEnsemble if members > 1 else KLDA
    return kind.paper(**options) if paper else kind(ridge=1e-2, **options)


class _Ours:
    """A model of ours, learned anew in each round."""

    def __init__(
        self,
        sizes: Sizes,
        device: str,
        samples: np.ndarray,
        labels: np.ndarray,
        members: int,
        *,
        paper: bool,
    ) -> None:
        self.name = "klda, the paper's mode" if paper else "klda, default, ridge 1e-2"
        self.members, self._clock = members, Clock(device)
        self._samples, self._labels = samples, labels
        self._test = samples[: sizes.n_test]
        self._new = (self._test[:NEW_CLASS] + 0.05, np.full(NEW_CLASS, sizes.n_classes + 1))
        # The random features are drawn outside the clock: a model that learned a row and lost it.
        self._empty = _model(sizes, device, members, paper)
        self._empty.partial_fit(samples[:1], labels[:1]).remove(samples[:1], labels[:1])
        self._learn: list[float] = []
        self._over_floor: list[float] = []
        self._predict: list[float] = []
        self._add: list[float] = []

    def go_round(self, floor: _Floor) -> None:
        """Learn, between floors that take as long together; predict, add a class."""
        model, first = copy.deepcopy(self._empty), self._test[:1]
        n_floors = -(-self.members // 2)
        floors = [floor.seconds() for _ in range(n_floors)]
        learn = self._clock(lambda: model.partial_fit(self._samples, self._labels).predict(first))
        floors += [floor.seconds() for _ in range(n_floors)]
        self._learn.append(learn)
        self._over_floor.append(learn / (self.members * statistics.mean(floors)))
        self._predict.append(self._clock(lambda: model.predict(self._test), repeats=5))
        self._add.append(self._clock(lambda: model.partial_fit(*self._new).predict(first)))

    def row(self) -> Row:
        """Return the medians of all rounds."""
        learn, add = statistics.median(self._learn), statistics.median(self._add)
        predict = statistics.median(self._predict) / len(self._test)
        over = statistics.median(self._over_floor)
        return Row(self.name, self.members, learn, add, predict, over)


class _Floor:
    """What no exact method can do without, on arrays that are there already."""

    name, members = "floor: product, Cholesky, solve", 1

    def __init__(self, sizes: Sizes, device: str) -> None:
        backend, self._clock = choose_backend(device, "float32"), Clock(device)
        rng = np.random.default_rng(0)
        shape = (sizes.n_samples, sizes.n_components)
        self._rows = backend.asarray(rng.standard_normal(shape, dtype=np.float32))
        self._means = backend.copy(self._rows[: sizes.n_classes])
        self._work = _numpy_floor if device == "cpu" else _torch_floor
        self._work(self._rows[:100], self._means)
        self._seconds: list[float] = []

    def seconds(self) -> float:
        """Do it once."""
        self._seconds.append(self._clock(lambda: self._work(self._rows, self._means)))
        return self._seconds[-1]

    def row(self) -> Row:
        """Return the median of all."""
        return Row(self.name, self.members, statistics.median(self._seconds), None, None)


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
    clock = Clock(device)
    model = AuthorsKLDA(n_components=sizes.n_components, gamma=GAMMA, device=device)

    def learn() -> None:
        model.learn_task(samples, labels)
        model.predict(samples[:1])

    seconds = clock(learn)
    few = samples[: sizes.n_one_at_a_time]
    predict = statistics.median(clock(lambda: model.predict(few)) for _ in range(3)) / len(few)
    return Row("authors' form", 1, seconds, seconds, predict)


def _scikit_learn(sizes: Sizes, samples: np.ndarray, labels: np.ndarray) -> Row:
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

    kernel = _model(sizes, "cpu", 1, True).fit(samples[:200], labels[:200])._members[0].kernel
    assert kernel is not None
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=1e-3)
    clock = Clock("cpu")
    seconds = clock(lambda: model.fit(kernel.transform(samples), labels))
    test = samples[: sizes.n_test]
    predict = clock(lambda: model.predict(kernel.transform(test)), repeats=3) / len(test)
    return Row("scikit-learn LDA (lsqr) on the same features", 1, seconds, seconds, predict)


def _peak_memory(sizes: Sizes) -> int:
    """Bytes that learning and answering with all members takes beyond the data."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_report_peak, args=(sizes, queue))
    process.start()
    peak = int(queue.get(timeout=3600))
    process.join()
    return peak


def _report_peak(sizes: Sizes, queue: Any) -> None:
    samples, labels = make_samples(sizes)
    _model(sizes, "cpu", 1, True).fit(samples[:100], labels[:100]).predict(samples[:10])
    with PeakMemory() as idle:
        pass
    with PeakMemory() as memory:
        model = _model(sizes, "cpu", sizes.members, True)
        model.partial_fit(samples, labels).predict(samples[: sizes.n_test])
    queue.put(memory.peak_bytes - idle.peak_bytes)


def _ratios(rows: list[Row], members: int) -> dict[str, float]:
    """Return the ratios that the project promises, ours in the denominator where faster."""
    paper = {row.members: row for row in rows if "paper's mode" in row.name}
    default = next(row for row in rows if "default" in row.name)
    most, one = paper[max(paper)], paper[1]
    ratios = {
        "learning, one member, over the floor": one.over_floor or np.nan,
        "learning, all members, over the floor for as many": most.over_floor or np.nan,
        "learning, default, over the floor": default.over_floor or np.nan,
        "adding a class, over learning, one member": (one.add_class or 0.0) / one.learn,
    }
    for authors in rows:
        if authors.name != "authors' form":
            continue
        same = "authors' form over ours, as many members"
        alone = "learning, authors' five members over our one, default"
        ours = most.predict_one or np.nan
        ratios[f"learning, {same}"] = authors.learn * most.members / most.learn
        ratios[alone] = 5 * authors.learn / default.learn
        ratios[f"predicting, {same}"] = (authors.predict_one or 0.0) * most.members / ours
    return {name: round(float(value), 3) for name, value in ratios.items()}


def table(result: dict[str, Any]) -> Any:
    """Return the result as a rich table."""
    from rich.table import Table

    sizes = result["sizes"]
    title = "N = {n_samples}, d = {n_features}, D = {n_components}, M = {n_classes}".format(**sizes)
    precision = " with TF32" if result["tf32"] else ""
    grid = Table(title=f"{title} on {result['device']}{precision}")
    for column in ("program", "members", "learning (s)", "adding a class (s)", "predicting (µs)"):
        grid.add_column(column, justify="left" if column == "program" else "right")
    for row in result["rows"]:
        grid.add_row(
            row["name"],
            str(row["members"]),
            f"{row['learn']:.4g}",
            "-" if row["add_class"] is None else f"{row['add_class']:.4g}",
            "-" if row["predict_one"] is None else f"{1e6 * row['predict_one']:.4g}",
        )
    return grid


def main(arguments: list[str] | None = None) -> None:
    """Measure, print a table, and write JSON."""
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="klda bench speed", description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--n-components", type=int)
    parser.add_argument("--members", type=int)
    parser.add_argument("--tf32", action="store_true", help="allow TF32 in matrix products")
    parser.add_argument(
        "--fresh-memory", action="store_true", help="take memory from the system anew each time"
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    parser.add_argument("--no-reference", action="store_true", help="leave out the slow programs")
    parser.add_argument("--output", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    chosen: dict[str, int] = dict(QUICK) if options.quick else {}
    for name in ("n_components", "members"):
        if getattr(options, name) is not None:
            chosen[name] = getattr(options, name)
    console = Console()
    result = measure(
        Sizes(**chosen),
        options.device,
        reference=not options.no_reference,
        tf32=options.tf32,
        fresh_memory=options.fresh_memory,
        on_step=lambda step: console.print(f"measuring: {step}"),
    )
    console.print(table(result))
    for name, value in result["ratios"].items():
        console.print(f"{name}: {value:g}x")
    if result["peak_memory_beyond_data"] is not None:
        peak = result["peak_memory_beyond_data"] / 1e9
        console.print(f"peak memory beyond the data, all members: {peak:.2f} GB")
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
