"""How much faster more workers learn, and whether they learn the same.

A file of texts is learned with all-MiniLM-L6-v2, one thread per worker, so that nearly all of the
time goes into encoding:

- *one process*: without Ray, the model that the others are compared with;
- *1 worker* and *W workers* on a local Ray;
- *W workers, one killed*: one of them is killed with SIGKILL half-way;
- *machine lost* (if asked for): on a cluster of two machines, both on this one, the one that has
  the workers and everything that they gathered is taken away half-way, once another has joined.

Each run has its seconds from call to model and those from the first worker that had loaded its
foundation model to the model (``working``); rows per second; the largest difference of scores on
texts that were not learned, relative to the largest score; and whether every class has the same
number of samples.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from threadpoolctl import threadpool_limits

from klda import Learner
from klda import cluster as cluster_
from klda.cluster.connection import Resources, connected
from klda_bench.data import read_table
from klda_bench.demo import examples
from klda_bench.environment import require
from klda_bench.measure.common import Components, RowCount
from klda_bench.results import Row

HELD_OUT = 400
STORE_BYTES = 1 << 30  # of each machine that is made up


def make_texts(n: int, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Yield texts that ask two things of the demonstration at once, and both intents as a class."""
    rng, asked = random.Random(seed), examples()[: 12 * 24]  # of 12 intents: 144 classes
    for _ in range(n):
        one, other = rng.choices(asked, k=2)
        yield f"{one.text}, and {other.text}", f"{one.intent} {other.intent}"


def write_texts(path: Path, rows: int) -> Path:
    """Write texts and their classes as a CSV file."""
    pd.DataFrame(make_texts(rows), columns=["text", "label"]).to_csv(path, index=False)
    return path


def cluster(
    rows: RowCount = 20_000,
    file: Annotated[Path | None, typer.Option(help="Labelled texts to learn instead.")] = None,
    workers: Annotated[int, typer.Option(help="The larger number of workers.")] = 2,
    n_components: Components = 5000,
    address: Annotated[str, typer.Option(help="Of a Ray cluster.")] = "local",
    lose_machine: Annotated[
        bool, typer.Option("--lose-machine", help="Measure the loss of a machine, too.")
    ] = False,
) -> Iterator[Row]:
    """Measure learning on Ray: one process, one worker, several, and with one lost."""
    require("ray", "cluster")
    with tempfile.TemporaryDirectory() as folder:
        texts = file or write_texts(Path(folder) / "texts.csv", rows)
        held_out = [text for text, _ in make_texts(HELD_OUT, seed=1)]
        alone, row = _one_process(texts, n_components)
        yield row
        job = _Job(texts, n_components, alone, held_out)
        with connected(address, Resources(workers)):
            one = job.run("1 worker", 1)
            yield one
            many = job.run(f"{workers} workers", workers)
            yield many
            yield job.run_killed(f"{workers} workers, one killed", workers)
        if lose_machine:
            yield job.run_lost(f"{workers} workers, machine lost", workers)
    for what, name in (("from call to model", "seconds"), ("once they have started", "working")):
        ratio = round(one[name] / many[name], 3)
        yield {"what": f"speed-up of {workers} workers over one, {what}", "ratio": ratio}


def _row(run: str, rows: int, seconds: float, working: float) -> Row:
    row: Row = {"what": "learning on a cluster", "run": run, "rows": rows, "seconds": seconds}
    row |= {"working": working, "rows_a_second": rows / working, "killed": 0}
    return row | {"relative_error": None, "same_counts": None}


def _learner(n_components: int) -> Learner:
    learner = Learner("minilm", device="cpu")
    learner.classifier.set_params(n_components=n_components)
    return learner


def _one_process(file: Path, n_components: int) -> tuple[Learner, Row]:
    learner = _learner(n_components)
    start = time.perf_counter()
    with threadpool_limits(1):  # as each worker has
        texts, labels, _ = read_table(file)
        learner.learn(texts, labels)
    seconds = time.perf_counter() - start
    return learner, _row("one process", learner.samples, seconds, seconds)


@dataclass(frozen=True)
class _Job:
    """What every run on Ray has in common."""

    file: Path
    n_components: int
    alone: Learner
    held_out: list[str]

    def run(self, name: str, workers: int, harm: Callable[[Any], None] | None = None) -> Row:
        learner, half = _learner(self.n_components), self.alone.samples / 2
        ready: list[float] = []  # when the first worker was

        def watch(status: Any) -> None:
            nonlocal harm
            if not ready and status.workers:
                ready.append(time.perf_counter())
            if harm is not None and status.rows >= half:
                harm(status)
                harm = None

        start = time.perf_counter()
        cluster_.learn(self.file, learner=learner, workers=workers, progress=watch, device="cpu")
        end = time.perf_counter()
        expected = self.alone.scores(self.held_out)
        difference = np.abs(learner.scores(self.held_out) - expected).max()
        error = float(difference / np.abs(expected).max())
        same = learner.classes == self.alone.classes
        row = _row(name, learner.samples, end - start, end - (ready or [start])[0])
        return row | {"relative_error": error, "same_counts": same}

    def run_killed(self, name: str, workers: int) -> Row:
        killed = []

        def kill(pid: int) -> None:
            with contextlib.suppress(ProcessLookupError):  # all was learned before
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        def harm(status: Any) -> None:
            # A little later: when the worker is in the middle of its next group.
            threading.Timer(1.0, kill, args=(status.workers[0].pid,)).start()

        return self.run(name, workers, harm) | {"killed": len(killed)}

    def run_lost(self, name: str, workers: int) -> Row:
        ray = require("ray", "cluster")
        store = {"object_store_memory": STORE_BYTES}
        machines = require("ray.cluster_utils", "cluster").Cluster(
            initialize_head=True, head_node_args={"num_cpus": 0} | store
        )
        doomed = machines.add_node(num_cpus=workers, **store)

        def lose(status: Any) -> None:
            machines.add_node(num_cpus=workers, **store)
            machines.remove_node(doomed, allow_graceful=False)

        ray.init(address=machines.address, logging_level=logging.ERROR, log_to_driver=False)
        try:
            return self.run(name, workers, lose) | {"killed": 1}
        finally:
            ray.shutdown()
            machines.shutdown()
