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
from klda.engine.arrays import Packed
from klda.engine.engine import Engine
from klda.engine.parameters import Parameters
from klda.errors import KldaError, require
from klda.inspection.refusal import Refusal
from klda.learner.answerer import Answerer
from klda.learner.inputs import InputEncoder
from klda.learner.state import State

Given = tuple[dict[str, Any], Refusal | None, dict[str, np.ndarray], dict[str, Any]]


def packed(learner: Answerer | State, engine: Engine, **what: bool) -> Given:
    """Return an engine, with what is set in a learner, as workers are given it."""
    set_values = engine.parameters.stored(), learner.refusal
    return *set_values, *engine.pack(**what)


class Worker:
    """A foundation model that turns parts into results.

    Between two parts it keeps nothing but the foundation model. Each result is a function of what
    is passed in, so it doesn't matter which worker computes it, or how often. The foundation model
    is given by its fingerprint, and must be installed here under its name.
    """

    def __init__(self, foundation: dict[str, Any], options: dict[str, Any], threads: int) -> None:
        self._foundation, self._options, self._threads = foundation, options, threads

    @cached_property
    def _inputs(self) -> InputEncoder:
        """The foundation model, opened for the first part."""
        name = self._foundation["name"]
        try:
            inputs = InputEncoder.of_stored(self._foundation, self._options, None)
            inputs.encoder  # noqa: B018  opened here, or else an error says why not
        except KldaError as error:
            raise ClusterError(
                f"The foundation model {name!r} can't be used on the machine "
                f"{socket.gethostname()}: {error} Install the same one on all machines of the "
                "cluster."
            ) from error
        threadpool_limits(self._threads)
        if torch := sys.modules.get("torch"):  # an encoder that runs on it has imported it
            torch.set_num_threads(self._threads)
        return inputs

    def _opened(self, packed: Given) -> Answerer:
        stored, refusal, arrays, meta = packed
        parameters = Parameters.of_stored(stored | {"device": self._options["device"]})
        engine = Engine.unpack(arrays, meta, parameters)
        return Answerer(self._inputs, State(engine=engine, refusal=refusal))

    def learn(self, packed: Given, first_row: int, *batches: Batch) -> Packed:
        """Learn a part into an empty model, and return it packed, without its map."""
        opened = self._opened(packed)
        for batch in batches:
            rows = opened.encode(_visible(batch.inputs))
            opened.engine.add(rows, batch.labels or [])
        return opened.engine.model.pack(with_map=False)

    def predict(self, packed: Given, reject: float | None, first_row: int, *batches: Batch) -> Any:
        """Return an Arrow table with one prediction per row, beside other columns of the rows."""
        arrow = require("pyarrow", "cluster")
        opened, row, tables = self._opened(packed), first_row, []
        for batch in batches:
            rows = opened.encode(_visible(batch.inputs))
            answers = opened.answer_rows(rows, top=1, reject=reject)
            best = [answer.top[0] for answer in answers]
            cells: dict[str, Any] = {"row": np.arange(row + 1, row + len(best) + 1)}
            if batch.cells is not None:
                cells |= {name: list(map(_plain, column)) for name, column in batch.cells.items()}
            elif opened.modality != "features":
                cells[opened.modality] = [_shown(value) for value in batch.inputs]
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
