"""How much faster more workers learn, and whether they learn the same.

Run as ``klda bench cluster``. A file of texts is learned with all-MiniLM-L6-v2, one
thread a worker, so that nearly all of the time goes into encoding:

- *one process*: without Ray, the model that the others are compared with;
- *1 worker* and *W workers* on a local Ray;
- *W workers, one killed*: one of them is killed with SIGKILL half-way;
- *machine lost* (if asked for): on a cluster of two machines, both on this one, that which has the
  workers and all that they gathered is taken away half-way, once another has joined.

Each run has its seconds from call to model (``seconds``) and those from the first worker that had
loaded its foundation model to the model (``working``); rows a second; the largest difference of
scores on texts that were not learned, relative to the largest score; and whether every class has
the same number of samples.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from klda import cluster
from klda.benchmarks.resources import machine, versions
from klda.cluster.pool import Resources, connected
from klda.data import open_table, read
from klda.errors import require
from klda.learner import Learner

TOPICS = (
    *("parcel", "invoice", "password", "subscription", "refund", "flight", "hotel", "card"),
    *("phone", "printer", "recipe", "weather", "concert", "insurance", "mortgage", "library"),
    *("garden", "camera", "bicycle", "passport", "dentist", "museum", "battery", "translation"),
)
ASKS = (
    "where can I find the {topic} that I asked for {when}",
    "please cancel my {topic}, I do not need it {when}",
    "how much will the {topic} cost me if I order it {when}",
    "my {topic} does not work as it should {when}, what can I do about it",
    "I would like to change the details of the {topic} {when}",
    "who is responsible for the {topic} and when can I talk to them {when}",
)
WHENS = ("today", "next week", "in the morning", "before the holidays", "last month", "in spring")
DETAILS = (
    *("it is rather urgent", "I have written about this twice", "there is no hurry", "thank you"),
    *("the number is {number}", "my neighbour has one, too", "it was bought {number} days ago"),
)
HELD_OUT = 400
STORE_BYTES = 1 << 30  # of each machine that is made up


@dataclass(frozen=True)
class Run:
    """One measured run."""

    name: str
    workers: int
    rows: int
    seconds: float
    working: float
    relative_error: float | None
    same_counts: bool | None
    killed: int = 0


def make_texts(n: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield texts of 10 to 30 words, and the class of each: what is asked of which topic."""
    rng = random.Random(seed)
    for _ in range(n):
        topic, ask = rng.choice(TOPICS), rng.randrange(len(ASKS))
        details = ", ".join(rng.sample(DETAILS, 2)).format(number=rng.randrange(10_000))
        text = ASKS[ask].format(topic=topic, when=rng.choice(WHENS))
        yield f"{text}, {details}", f"{topic} {ask}"


def measure(
    file: Path,
    held_out: list[str],
    *,
    workers: int = 2,
    n_components: int = 5000,
    address: str | None = None,
    lose_machine: bool = False,
    on_run: Callable[[Run], None] | None = None,
) -> dict[str, Any]:
    """Measure all runs on one file.

    Parameters
    ----------
    file : Path
        Labelled texts.
    held_out : list of str
        Texts whose scores are compared.
    workers : int
        The larger number of workers.
    n_components : int
        Random features D.
    address : str, optional
        Of the cluster; local by default.
    lose_machine : bool
        Whether to measure the loss of a machine, too.
    on_run : callable, optional
        Called with each run when it is done.

    Returns
    -------
    dict
        Settings, machine, versions, runs, and the speed-up of W workers over one.
    """
    runs: list[Run] = []

    def add(run: Run) -> None:
        runs.append(run)
        if on_run is not None:
            on_run(run)

    alone, run = _one_process(file, n_components)
    add(run)
    job = _Job(file, n_components, alone, held_out)
    with connected(address or "local", Resources(workers)):
        add(job.run("1 worker", 1))
        add(job.run(f"{workers} workers", workers))
        add(job.run_killed(f"{workers} workers, one killed", workers))
    if lose_machine:
        add(job.run_lost(f"{workers} workers, machine lost", workers))
    one, many = runs[1], runs[2]
    return {
        "file": file.name,
        "n_components": n_components,
        "classes": len(alone.classes),
        "machine": machine(),
        "versions": versions() | {"ray": require("ray", "cluster").__version__},
        "runs": [asdict(run) for run in runs],
        "speed_up": round(one.seconds / many.seconds, 3),
        "speed_up_working": round(one.working / many.working, 3),
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Hold this process to one thread, as each worker is."""
    torch = require("torch", "text")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def _learner(n_components: int) -> Learner:
    learner = Learner("minilm", device="cpu")
    learner.classifier.set_params(n_components=n_components)
    return learner


def _one_process(file: Path, n_components: int) -> tuple[Learner, Run]:
    learner = _learner(n_components)
    start = time.perf_counter()
    with _one_thread():
        batches = read([open_table(file, modality="text")], labels=True)
        learner.learn((batch.inputs, batch.labels) for batch in batches)
    end = time.perf_counter()
    return learner, Run("one process", 0, learner.samples, end - start, end - start, None, None)


class _Watcher:
    """Notes when the first worker was ready, and does harm half-way."""

    def __init__(self, rows: int, harm: Callable[[cluster.Status], None] | None) -> None:
        self.ready: float | None = None
        self._half = rows / 2
        self._harm = harm

    def __call__(self, status: cluster.Status) -> None:
        if self.ready is None and status.workers:
            self.ready = time.perf_counter()
        if self._harm is not None and status.rows >= self._half:
            self._harm(status)
            self._harm = None


class _Killer:
    """Kills a worker, a little later: when it is in the middle of its next group."""

    def __init__(self) -> None:
        self.killed = 0

    def __call__(self, status: cluster.Status) -> None:
        threading.Timer(1.0, self._kill, args=(status.workers[0].pid,)).start()

    def _kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # all was learned before
            os.kill(pid, signal.SIGKILL)
            self.killed += 1


@dataclass(frozen=True)
class _Job:
    """What every run on Ray has in common."""

    file: Path
    n_components: int
    alone: Learner
    held_out: list[str]

    def run(
        self, name: str, workers: int, harm: Callable[[cluster.Status], None] | None = None
    ) -> Run:
        learner = _learner(self.n_components)
        watcher = _Watcher(self.alone.samples, harm)
        start = time.perf_counter()
        cluster.learn(self.file, learner=learner, workers=workers, progress=watcher, device="cpu")
        end = time.perf_counter()
        expected = self.alone.scores(self.held_out)
        difference = np.abs(learner.scores(self.held_out) - expected).max()
        return Run(
            name,
            workers,
            learner.samples,
            end - start,
            end - (watcher.ready or start),
            float(difference / np.abs(expected).max()),
            learner.classes == self.alone.classes,
        )

    def run_killed(self, name: str, workers: int) -> Run:
        killer = _Killer()
        run = self.run(name, workers, killer)
        return replace(run, killed=killer.killed)

    def run_lost(self, name: str, workers: int) -> Run:
        ray = require("ray", "cluster")
        store = {"object_store_memory": STORE_BYTES}
        machines = require("ray.cluster_utils", "cluster").Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0} | store
        )
        doomed = machines.add_node(num_cpus=workers, **store)

        def lose(status: cluster.Status) -> None:
            machines.add_node(num_cpus=workers, **store)
            machines.remove_node(doomed, allow_graceful=False)

        ray.init(address=machines.address, logging_level=logging.ERROR, log_to_driver=False)
        try:
            return replace(self.run(name, workers, lose), killed=1)
        finally:
            ray.shutdown()
            machines.shutdown()


def table(result: dict[str, Any]) -> Any:
    """Return the result as a rich table."""
    from rich.table import Table

    grid = Table(title=f"D = {result['n_components']}, M = {result['classes']}")
    columns = ("run", "rows", "seconds", "working (s)", "rows a second", "error", "same counts")
    for column in columns:
        grid.add_column(column, justify="left" if column == "run" else "right")
    for run in result["runs"]:
        error, same = run["relative_error"], run["same_counts"]
        grid.add_row(
            run["name"] + (f" ({run['killed']})" if run["killed"] else ""),
            f"{run['rows']:,}",
            f"{run['seconds']:.1f}",
            f"{run['working']:.1f}",
            f"{run['rows'] / run['working']:.0f}",
            "-" if error is None else f"{error:.1e}",
            "-" if same is None else str(same),
        )
    return grid


def main(arguments: list[str] | None = None) -> None:
    """Measure, print a table and JSON lines, and write them to a file if asked to."""
    from rich.console import Console

    parser = argparse.ArgumentParser(prog="klda bench cluster", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="texts to make (20,000)")
    parser.add_argument("--file", type=Path, help="labelled texts to learn instead")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--n-components", type=int, default=5000)
    parser.add_argument("--address", help="of a Ray cluster; local by default")
    parser.add_argument("--lose-machine", action="store_true", help="measure that, too")
    parser.add_argument("--output", type=Path, help="JSONL file to append to")
    options = parser.parse_args(arguments)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        file = options.file or _write(Path(folder) / "texts.csv", options.rows)
        held_out = [text for text, _ in make_texts(HELD_OUT, seed=1)]
        result = measure(
            file,
            held_out,
            workers=options.workers,
            n_components=options.n_components,
            address=options.address,
            lose_machine=options.lose_machine,
            on_run=lambda run: console.print(f"{run.name}: {run.seconds:.1f} s", style="dim"),
        )
    console.print(table(result))
    console.print(
        f"Speed-up of {options.workers} workers over one: {result['speed_up']:.2f} from call to "
        f"model, {result['speed_up_working']:.2f} once workers have started."
    )
    line = json.dumps(result)
    console.print(line, soft_wrap=True, markup=False, highlight=False)
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _write(path: Path, rows: int) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows(itertools.chain([("text", "label")], make_texts(rows)))
    return path


if __name__ == "__main__":
    main()
