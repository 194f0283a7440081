"""The workers: one foundation model each, in a process of its own, wherever Ray places it."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from klda.cluster.connection import ClusterError
from klda.cluster.rows import BlockReader, Part
from klda.engine.backends import choose_backend
from klda.engine.engine import Engine
from klda.engine.model import Model
from klda.engine.parameters import Parameters
from klda.engine.solution import Solution
from klda.errors import KldaError, require
from klda.learner import Learner
from klda.learner.inputs import InputEncoder

Packed = tuple[dict[str, np.ndarray], dict[str, Any]]
Given = tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]  # with parameters


@dataclass(frozen=True)
class WorkerInfo:
    """Where a worker runs: its process, its machine, and the device it encodes on."""

    pid: int
    host: str
    device: str


class Worker:
    """A foundation model that turns parts into results.

    Between two parts it keeps nothing but the foundation model. Each result is a function of what
    is passed in, so it doesn't matter which worker computes it, or how often. The foundation model
    is given by its fingerprint, and must be installed here under its name.
    """

    def __init__(
        self, foundation: dict[str, Any], options: dict[str, Any], device: str, threads: int
    ) -> None:
        self._foundation, self._options = foundation, options
        self._device, self._threads = device, threads

    def load(self) -> WorkerInfo:
        """Open the foundation model."""
        host = socket.gethostname()
        options = self._options | {"device": self._device}
        name = self._foundation["name"]
        try:
            self._encoder = InputEncoder.of_stored(self._foundation, options, name).encoder
        except KldaError as error:
            raise ClusterError(
                f"The foundation model {name!r} can't be used on the machine {host}: {error} "
                "Install the same one on all machines of the cluster."
            ) from error
        threadpool_limits(self._threads)
        if torch := sys.modules.get("torch"):  # an encoder that runs on it has imported it
            torch.set_num_threads(self._threads)
        return WorkerInfo(os.getpid(), host, self._device)

    def learn(self, packed: Given, reader: BlockReader, part: Part, *contents: Any) -> Packed:
        """Learn a part into an empty model, and return the packed model without its map."""
        learner = self._learner(packed, Model)
        batches = reader.batches(part, contents)
        learner.learn_batches((inputs, labels) for inputs, labels, _ in batches)
        return learner.engine.model.pack(with_map=False)

    def predict(
        self,
        packed: Given,
        reader: BlockReader,
        reject: float,
        columns: Sequence[str],
        part: Part,
        *contents: Any,
    ) -> Any:
        """Return an Arrow table with one prediction per row; `columns` of a dataset are copied."""
        arrow = require("pyarrow", "cluster")
        learner, row, tables = self._learner(packed, Solution), part.first_row, []
        for inputs, _, rows in reader.batches(part, contents):
            answers = learner.answer_rows(learner.encode(inputs), top=1, reject=reject)
            best = [answer.top[0] for answer in answers]
            cells: dict[str, Any] = {"row": np.arange(row + 1, row + len(best) + 1)}
            cells |= {name: _copied(rows, name) for name in columns}
            if learner.modality != "features" and not columns:
                cells[learner.modality] = [_shown(value) for value in inputs]
            cells["label"] = [label for label, _ in best]
            cells["probability"] = np.array([probability for _, probability in best], np.float64)
            cells["known"] = arrow.array([answer.known for answer in answers], arrow.bool_())
            tables.append(arrow.table(cells))
            row += len(best)
        return arrow.concat_tables(tables)

    def _learner(self, packed: Given, kind: type[Model] | type[Solution]) -> Learner:
        """Return a learner with a model that learns, or with a solution that answers."""
        stored, arrays, meta = packed
        parameters = Parameters(**(stored | {"device": self._device}))
        backend = choose_backend(parameters.device, parameters.dtype)
        learner, known = (
            Learner(self._encoder, classifier=parameters),
            kind.unpack(arrays, meta, backend),
        )
        if isinstance(known, Model):
            learner.engine = Engine(known, None, parameters)
        else:
            learner.engine = Engine(None, known, parameters)
        return learner


def _copied(rows: Any, name: str) -> Any:
    if rows is None or name not in rows.column_names:
        has = "files have no columns to copy" if rows is None else ", ".join(rows.column_names)
        raise KldaError(f"columns names {name!r}, which is not in the dataset ({has}).")
    return rows.column(name)


def _shown(value: Any) -> str | None:
    return str(value) if isinstance(value, str | Path) else None
