"""The workers: a foundation model each, in a process of its own, wherever Ray puts it."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from klda import encoders
from klda.classifiers import from_state
from klda.cluster.blocks import Rows
from klda.cluster.errors import ClusterError
from klda.cluster.shares import Gatherer, Recipe, Share, merge
from klda.data.threads import work_behind
from klda.errors import KldaError, require
from klda.learner import Learner

Spans = Sequence[tuple[int, int, int]]


@dataclass(frozen=True)
class WorkerInfo:
    """Where a worker runs.

    Attributes
    ----------
    pid : int
        Its process.
    host : str
        Its machine.
    device : str
        Where it encodes.
    """

    pid: int
    host: str
    device: str


class Attempts:
    """Counts how often each piece of work was begun; runs beside the driver.

    Ray tries again without end, and also counts what never reached a worker because a machine was
    gone. What must end is work that kills its worker each time, by taking too much memory mostly.
    """

    def __init__(self) -> None:
        self._begun: Counter[str] = Counter()

    def begin(self, work: str) -> int:
        """Note that work is begun; returns how often it was."""
        self._begun[work] += 1
        return self._begun[work]


@dataclass(frozen=True)
class Work:
    """What was done for one group: rows, and seconds spent on it."""

    rows: int
    seconds: float


class Worker:
    """A foundation model that turns groups of rows into results.

    Between two groups it keeps nothing but the foundation model: each result is a function of what
    is passed in, so it does not matter which worker makes it, or how often it is tried.

    Parameters
    ----------
    foundation : dict
        Fingerprint of the foundation model, which must be found here under its name.
    options : dict
        How to load it.
    device : str
        Where it and the statistics are.
    threads : int
        Threads to use.
    attempts : str
        Name of the job's `Attempts`.
    retries : int
        How often work is tried again after it was begun and its worker died.
    """

    def __init__(
        self,
        foundation: dict[str, Any],
        options: dict[str, Any],
        device: str,
        threads: int,
        attempts: str,
        retries: int,
    ) -> None:
        self._foundation, self._options = foundation, options
        self._device, self._threads = device, threads
        self._attempts, self._retries = attempts, retries
        self._encoder: encoders.Encoder | None = None
        self._asked: tuple[str, Learner] | None = None

    def arrive(self) -> None:
        """Tell that a place was found."""

    def prepare(self, number: int) -> WorkerInfo:
        """Load the foundation model."""
        self._begin(f"starting worker {number}")
        self._opened()
        return WorkerInfo(os.getpid(), socket.gethostname(), self._device)

    def draw(self, classifier: Any, rows: Rows, spans: Spans, *blocks: Any) -> Recipe:
        """Let a classifier fix its random features as learning the first rows does."""
        self._begin("drawing random features")
        inputs, labels, _ = next(rows.batches(blocks, spans, 0))
        if getattr(classifier, "gamma", None) != "auto":  # nothing is taken from the rows
            inputs, labels = inputs[:1], labels[:1]
        classifier.set_params(device=self._device)
        return Recipe.of(classifier.partial_fit(self._encode(inputs), labels))

    def learn(
        self, recipe: Recipe, rows: Rows, first_row: int, spans: Spans, *blocks: Any
    ) -> tuple[Work, Share]:
        """Encode a group of rows and gather its statistics."""
        self._begin(f"learning {_place(first_row, spans)}")
        start = time.perf_counter()
        gatherer = Gatherer(recipe, first_row, self._device)
        encoded = (
            (self._encode(inputs), labels)
            for inputs, labels, _ in rows.batches(blocks, spans, first_row)
        )
        if self._device == "cpu":  # a second thread would take a CPU that others were promised
            for batch in encoded:
                gatherer.learn(batch)
        else:
            work_behind(gatherer.learn, encoded)
        share = gatherer.share()
        return Work(share.rows, time.perf_counter() - start), share

    def merge(self, number: int, one: Share, other: Share) -> Share:
        """Add two shares; here because this process is warm and holds the CPUs already."""
        self._begin(f"merge {number}")
        return merge(one, other)

    def predict(
        self,
        state: tuple[dict[str, np.ndarray], dict[str, Any]],
        answer: Answer,
        rows: Rows,
        first_row: int,
        spans: Spans,
        *blocks: Any,
    ) -> tuple[Work, str]:
        """Answer a group of rows in a parquet file; returns its name."""
        self._begin(f"predicting {_place(first_row, spans)}")
        start = time.perf_counter()
        learner = self._learner(state, str(answer.folder))
        name = f"part-{first_row:012d}.parquet"
        tables, row = [], first_row
        for inputs, _, source in rows.batches(blocks, spans, first_row):
            tables.append(answer.table(learner, inputs, source, row))
            row += len(inputs)
        answer.write(tables, name)
        return Work(row - first_row, time.perf_counter() - start), name

    def _begin(self, work: str) -> None:
        ray = require("ray", "cluster")
        begun = ray.get(ray.get_actor(self._attempts).begin.remote(work))
        if begun > self._retries + 1:
            raise ClusterError(
                f"{work[0].upper()}{work[1:]}: the worker died, also when it was tried again "
                f"{self._retries} times. Workers that die again and again mostly run out of "
                "memory: use fewer a machine, or a smaller batch_size."
            )

    def _opened(self) -> encoders.Encoder:
        if self._encoder is None:
            encoder = self._load()
            if not encoders.same_features(self._foundation, encoder.fingerprint()):
                raise ClusterError(
                    f"The foundation model {self._foundation['name']!r} on the machine "
                    f"{socket.gethostname()} is not the one that the model was made with: install "
                    "the same one on all machines of the cluster."
                )
            self._encoder = encoder
            threadpool_limits(self._threads)
            if self._foundation["modality"] != "features":
                require("torch", "text").set_num_threads(self._threads)
        return self._encoder

    def _load(self) -> encoders.Encoder:
        fixed = {key: self._foundation[key] for key in ("layers", "modality")}
        try:
            return encoders.load(
                self._foundation["name"], **(self._options | fixed | {"device": self._device})
            )
        except KldaError as error:
            raise ClusterError(
                f"On the machine {socket.gethostname()} the foundation model can't be opened: "
                f"{error}"
            ) from error

    def _encode(self, inputs: Any) -> np.ndarray:
        return self._opened().encode(inputs)

    def _learner(self, state: tuple[dict[str, np.ndarray], dict[str, Any]], job: str) -> Learner:
        if self._asked is None or self._asked[0] != job:
            classifier = from_state(*state, device=self._device)
            self._asked = (job, Learner(self._opened(), classifier=classifier))
        return self._asked[1]


@dataclass(frozen=True)
class Answer:
    """What is written of each row, and where.

    Attributes
    ----------
    folder : Path
        Visible under this path on all machines.
    refused : float or None
        Share of known inputs that may be taken for unknown; None if the model can't tell.
    columns : tuple of str
        Columns of a dataset to copy.
    """

    folder: Path
    refused: float | None
    columns: tuple[str, ...] = ()

    def table(self, learner: Learner, inputs: Any, source: Any, first_row: int) -> Any:
        """Answer inputs: an Arrow table with one row each."""
        arrow = require("pyarrow", "cluster")
        top = learner.predict_top(inputs, 1 if self.refused is None else 2, reject=self.refused)
        # Of an input that is refused, "unknown" comes first and the likeliest class second.
        known = [None if self.refused is None else not np.isnan(row[0][1]) for row in top]
        best = [
            row[1] if is_known is False else row[0]
            for row, is_known in zip(top, known, strict=True)
        ]
        cells: dict[str, Any] = {"row": np.arange(first_row + 1, first_row + len(top) + 1)}
        for name in self.columns:
            cells[name] = _carried(source, name)
        if learner.modality != "features" and not (self.columns and source is not None):
            cells[learner.modality] = [_shown(value) for value in inputs]
        cells["label"] = [label for label, _ in best]
        cells["probability"] = np.array([p for _, p in best], np.float64)
        cells["known"] = arrow.array(known, arrow.bool_())
        return arrow.table(cells)

    def write(self, tables: list[Any], name: str) -> None:
        """Write one file: complete under its name, or not there."""
        arrow, parquet = require("pyarrow", "cluster"), require("pyarrow.parquet", "cluster")
        if not self.folder.is_dir():
            raise ClusterError(
                f"output: {self.folder} is not visible on the machine {socket.gethostname()}. "
                "Workers write their part of the answers themselves: name a folder that all "
                "machines of the cluster see."
            )
        partial = self.folder / f".{name}.{socket.gethostname()}.{os.getpid()}"
        parquet.write_table(arrow.concat_tables(tables), partial)
        partial.replace(self.folder / name)


def _place(first_row: int, spans: Spans) -> str:
    rows = sum(stop - start for _, start, stop in spans)
    return f"rows {first_row + 1:,} to {first_row + rows:,}"


def _carried(source: Any, name: str) -> Any:
    if source is None or name not in source.column_names:
        has = "files have no columns to copy" if source is None else ", ".join(source.column_names)
        raise KldaError(f"columns names {name!r}, which is not in the dataset ({has}).")
    return source.column(name)


def _shown(value: Any) -> str | None:
    return str(value) if isinstance(value, str | Path) else None
