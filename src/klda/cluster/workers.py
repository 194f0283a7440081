"""The workers: one foundation model each, in a process of its own, wherever Ray places it."""

from __future__ import annotations

import socket
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from klda.cluster.connection import ClusterError
from klda.data import Batch
from klda.encoders import Encoder
from klda.engine.engine import Engine
from klda.errors import KldaError, require
from klda.learner import Learner
from klda.learner.inputs import InputEncoder
from klda.storage.stored import parameters as stored_parameters

Packed = tuple[dict[str, np.ndarray], dict[str, Any]]
Given = tuple[dict[str, Any], dict[str, np.ndarray], dict[str, Any]]  # with parameters


def packed(learner: Learner, engine: Engine, **what: bool) -> Given:
    """Return an engine, with the parameters of a learner, as workers are given it."""
    return learner.parameters.stored(), *engine.pack(learner.parameters, **what)


class Worker:
    """A foundation model that turns parts into results.

    Between two parts it keeps nothing but the foundation model. Each result is a function of what
    is passed in, so it doesn't matter which worker computes it, or how often. The foundation model
    is given by its fingerprint, and must be installed here under its name.
    """

    def __init__(self, foundation: dict[str, Any], options: dict[str, Any], threads: int) -> None:
        self._foundation, self._options, self._threads = foundation, options, threads

    @cached_property
    def _encoder(self) -> Encoder:
        """The foundation model, opened for the first part."""
        name = self._foundation["name"]
        try:
            encoder = InputEncoder.of_stored(self._foundation, self._options, None).encoder
        except KldaError as error:
            raise ClusterError(
                f"The foundation model {name!r} can't be used on the machine "
                f"{socket.gethostname()}: {error} Install the same one on all machines of the "
                "cluster."
            ) from error
        threadpool_limits(self._threads)
        if torch := sys.modules.get("torch"):  # an encoder that runs on it has imported it
            torch.set_num_threads(self._threads)
        return encoder

    def _learner(self, packed: Given) -> Learner:
        stored, arrays, meta = packed
        parameters = stored_parameters(stored | {"device": self._options["device"]})
        learner = Learner(self._encoder, classifier=parameters)
        learner.engine = Engine.unpack(arrays, meta, parameters)
        return learner

    def learn(self, packed: Given, first_row: int, *batches: Batch) -> Packed:
        """Learn a part into an empty model, and return it packed, without its map."""
        learner = self._learner(packed)
        learner.learn_batches((_visible(batch.inputs), batch.labels) for batch in batches)
        return learner.engine.model.pack(with_map=False)

    def predict(self, packed: Given, reject: float, first_row: int, *batches: Batch) -> Any:
        """Return an Arrow table with one prediction per row, beside other columns of the rows."""
        arrow = require("pyarrow", "cluster")
        learner, row, tables = self._learner(packed), first_row, []
        for batch in batches:
            rows = learner.encode(_visible(batch.inputs))
            answers = learner.answer_rows(rows, top=1, reject=reject)
            best = [answer.top[0] for answer in answers]
            cells: dict[str, Any] = {"row": np.arange(row + 1, row + len(best) + 1)}
            if batch.cells is not None:
                cells |= {name: list(map(_plain, column)) for name, column in batch.cells.items()}
            elif learner.modality != "features":
                cells[learner.modality] = [_shown(value) for value in batch.inputs]
            said = {
                "label": [label for label, _ in best],
                "probability": np.array([probability for _, probability in best], np.float64),
                "known": arrow.array([answer.known for answer in answers], arrow.bool_()),
            }
            # A column that the rows have already keeps its name.
            cells |= {f"predicted_{name}" if name in cells else name: said[name] for name in said}
            tables.append(arrow.table(cells))
            row += len(best)
        return arrow.concat_tables(tables, promote_options="default")


def _visible(inputs: Any) -> Any:
    """Return inputs; raise if one is a path that does not exist on this machine."""
    for path in inputs:
        if isinstance(path, Path) and not path.exists():
            raise ClusterError(
                f"{path}: there is no such file on the machine {socket.gethostname()}. Images are "
                "read where they are encoded: put them where all machines of the cluster see them "
                "under the same path."
            )
    return inputs


def _plain(cell: Any) -> Any:
    return str(cell) if isinstance(cell, Path) else cell


def _shown(value: Any) -> str | None:
    return str(value) if isinstance(value, str | Path) else None
