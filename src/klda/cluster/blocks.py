"""Where rows come from: files read as on one machine, or the blocks of a Ray Data dataset.

Either way the driver sees references and row numbers only; the rows lie in Ray's object store,
where the workers find them. Files are read by tasks of their own on the driver's machine, so that
a file need not be visible elsewhere; a lost block is read again by Ray.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from klda.cluster.errors import ClusterError
from klda.data import Batch, Columns, Table, TableError, identity
from klda.data.arrow import input_values
from klda.data.batch import RawBatch
from klda.data.columns import check_label_type, choose_columns
from klda.errors import KldaError, require

FILES_AHEAD = 4  # opened before their turn
CHUNKS_AHEAD = 64  # read of each file before their turn


@dataclass(frozen=True)
class Piece:
    """Some rows of a block: the unit that is handed out."""

    ref: Any
    start: int
    stop: int
    size: int
    weight: float  # its part of everything; NaN where that can't be told

    @property
    def rows(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(frozen=True)
class Group:
    """Consecutive rows that one worker turns into one result.

    Attributes
    ----------
    first_row : int
        Number of the first row, from 0, among all.
    rows : int
        How many.
    refs : list
        Blocks, each once.
    spans : list of (int, int, int)
        Which of them, and from which row to which.
    weight : float
        Its part of everything.
    """

    first_row: int
    rows: int
    refs: list[Any]
    spans: list[tuple[int, int, int]]
    weight: float

    @classmethod
    def of(cls, first_row: int, pieces: Sequence[Piece]) -> Group:
        """Put pieces together; neighbours in one block become one span."""
        refs: list[Any] = [pieces[0].ref]
        spans = [(0, pieces[0].start, pieces[0].stop)]
        for before, piece in pairwise(pieces):
            if piece.ref == before.ref and piece.start == before.stop:
                spans[-1] = (*spans[-1][:2], piece.stop)
                continue
            if piece.ref != before.ref:
                refs.append(piece.ref)
            spans.append((len(refs) - 1, piece.start, piece.stop))
        rows = sum(piece.rows for piece in pieces)
        return cls(first_row, rows, refs, spans, sum(piece.weight for piece in pieces))


# ---------------------------------------------------------------------------------------------
# On the driver


def beside_driver(ray: Any) -> Any:
    """Return what keeps a task or an actor on the driver's machine."""
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )


def _read(table: Table, labels: bool, rows: int, known: dict[str, Any]) -> Iterator[Any]:
    """Run as a task: each chunk of a file, and after it what the driver needs to know of it."""
    if known != identity(table.path):  # when a block that was lost is read again
        raise TableError(f"{table.path} was changed while it was being read: begin anew.")
    for batch in table.batches(labels=labels, rows=rows):
        yield batch
        yield len(batch), _bytes(batch.inputs), batch.fraction


def _bytes(inputs: Any) -> int:
    return int(inputs.nbytes) if isinstance(inputs, np.ndarray) else sum(map(len, map(str, inputs)))


def pieces_of_tables(
    ray: Any, tables: Sequence[Table], *, labels: bool, rows: int
) -> Iterator[Piece]:
    """Read files in order, some chunks ahead.

    Parameters
    ----------
    ray : module
        Connected.
    tables : sequence of Table
        Read one after the other; the next few are begun early.
    labels : bool
        Whether each row must have a label.
    rows : int
        Largest number of rows in a chunk.

    Yields
    ------
    Piece
        One a chunk.
    """
    read = ray.remote(
        num_cpus=0,
        num_returns="streaming",
        max_retries=-1,
        scheduling_strategy=beside_driver(ray),
        _generator_backpressure_num_objects=2 * CHUNKS_AHEAD,
    )(_read)
    sizes = [max(1, table.path.stat().st_size) if table.path.is_file() else 1 for table in tables]
    waiting = deque(range(len(tables)))
    begun: deque[tuple[int, Any]] = deque()
    try:
        while waiting or begun:
            while waiting and len(begun) < FILES_AHEAD:
                i = waiting.popleft()
                begun.append((i, read.remote(tables[i], labels, rows, identity(tables[i].path))))
            i, chunks = begun[0]
            done = 0.0
            for ref in chunks:
                known = next(chunks, ref)  # there is one for each chunk, but none for an error
                count, size, fraction = _fetched(ray, known)
                yield Piece(ref, 0, count, size, sizes[i] * (fraction - done) / sum(sizes))
                done = fraction
            begun.popleft()
    finally:
        for _, chunks in begun:
            ray.cancel(chunks, force=False)


def _fetched(ray: Any, ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        if isinstance(getattr(error, "cause", None), KldaError | OSError):
            raise error.cause from None
        raise


def pieces_of_dataset(dataset: Any, *, rows: int) -> Iterator[Piece]:
    """Run a dataset, and cut its blocks where they are large.

    Parameters
    ----------
    dataset : ray.data.Dataset
        Executed as its pieces are asked for.
    rows : int
        Largest number of rows in a piece.

    Yields
    ------
    Piece
        In the order in which Ray Data delivers.
    """
    for bundle in dataset.iter_internal_ref_bundles():
        for ref, known, part in zip(bundle.block_refs, bundle.metadata, bundle.slices, strict=True):
            first = 0 if part is None else part.start_offset
            end = known.num_rows if part is None else part.end_offset
            a_row = (known.size_bytes or 0) / max(1, known.num_rows)
            for start in range(first, end, rows):
                stop = min(start + rows, end)
                yield Piece(ref, start, stop, int(a_row * (stop - start)), float("nan"))


class Feed:
    """Takes in pieces in a thread of its own, a bounded number ahead, and gives out groups.

    Parameters
    ----------
    pieces : iterator of Piece
        Where they come from.
    room_rows, room_bytes : int
        How much may wait.
    """

    def __init__(self, pieces: Iterator[Piece], room_rows: int, room_bytes: int) -> None:
        self._pieces = pieces
        self._room = (room_rows, room_bytes)
        self._waiting: deque[Piece] = deque()
        self._rows = self._bytes = 0
        self._next_row = 0
        self._complete = self._closed = False
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._take_in, name="read ahead", daemon=True)
        self._thread.start()

    def _take_in(self) -> None:
        try:
            for piece in self._pieces:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._has_room())
                    if self._closed:
                        break
                    self._waiting.append(piece)
                    self._rows += piece.rows
                    self._bytes += piece.size
                    self._changed.notify_all()
        except BaseException as error:
            self._failure = error
        finally:
            close = getattr(self._pieces, "close", None)
            if close is not None:
                close()
            with self._changed:
                self._complete = True
                self._changed.notify_all()

    def _has_room(self) -> bool:
        rows, size = self._room
        return not self._waiting or (self._rows < rows and self._bytes < size)

    def first(self) -> Piece | None:
        """Wait for the first piece; None if there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._complete)
            if self._failure is not None:
                raise self._failure
            return self._waiting[0] if self._waiting else None

    @property
    def exhausted(self) -> bool:
        """Whether all was given out."""
        with self._changed:
            return self._complete and not self._waiting and self._failure is None

    def check(self) -> None:
        """Raise the error that ended the reading, if one did."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def wait(self) -> None:
        """Wait a moment for more to come in."""
        with self._changed:
            if not self._complete:
                self._changed.wait(timeout=1.0)

    def take(self, least: int, most: int, workers: int) -> Group | None:
        """Give out a group, or None while there is too little to be worth one.

        Groups have `most` rows in the middle of a long job and become smaller towards its end, so
        that no worker is left with a large one while the others have nothing to do: half of what
        remains is shared out at a time (guided self-scheduling), down to `least`.
        """
        with self._changed:
            full = not self._has_room()
            if not self._waiting or (self._rows < least and not self._complete and not full):
                return None
            wanted = min(most, max(least, self._rows // (2 * workers)))
            if self._complete:
                wanted = min(wanted, -(-self._rows // workers))
            taken: list[Piece] = []
            while self._waiting and sum(piece.rows for piece in taken) < wanted:
                taken.append(self._waiting.popleft())
            group = Group.of(self._next_row, taken)
            self._next_row += group.rows
            self._rows -= group.rows
            self._bytes -= sum(piece.size for piece in taken)
            self._changed.notify_all()
            return group

    def close(self) -> None:
        """Take in no more, and wait for the thread."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join(timeout=30)


# ---------------------------------------------------------------------------------------------
# On a worker


@dataclass(frozen=True)
class Rows:
    """How inputs and labels are taken out of a block.

    Attributes
    ----------
    modality : str
        What inputs are.
    input_column, label_column : str or None
        Columns of a dataset; guessed by their names as in files.
    labels : bool
        Whether there must be labels.
    text_labels : bool or None
        Whether classes are texts or integers; None if any will do.
    at_once : int
        Rows that are taken out at a time.
    """

    modality: str
    input_column: str | None
    label_column: str | None
    labels: bool
    at_once: int
    text_labels: bool | None = None

    def batches(
        self, blocks: Sequence[Any], spans: Sequence[tuple[int, int, int]], first_row: int
    ) -> Iterator[tuple[Any, list[Any], Any]]:
        """Yield inputs, labels and the rows themselves, some at a time, in order."""
        for i, start, stop in spans:
            for at in range(start, stop, self.at_once):
                end = min(at + self.at_once, stop)
                yield self._batch(blocks[i], at, end, first_row)
                first_row += end - at

    def _batch(self, block: Any, start: int, stop: int, row: int) -> tuple[Any, list[Any], Any]:
        if isinstance(block, Batch):
            inputs, labels, rows = block.inputs[start:stop], block.labels, None
            names = labels[start:stop] if self.labels and labels else []
        else:
            accessor = require("ray.data.block", "cluster").BlockAccessor.for_block(block)
            rows = accessor.to_arrow().slice(start, stop - start).combine_chunks()
            chosen = Columns(self.input_column, self.label_column)
            modality: Any = self.modality
            table = Table(Path("dataset"), "dataset", modality, chosen)
            column, label = choose_columns(table, rows.column_names, self.labels)
            inputs = self._inputs(rows, column, table, row)
            names = self._labels(rows.column(label), table, row) if self.labels else []
        if self.modality == "image":
            _check_visible(inputs)
        return inputs, names, rows

    def _inputs(self, rows: Any, name: str, table: Table, row: int) -> Any:
        column = rows.column(name)
        if self.modality == "image" and str(column.type) not in ("string", "large_string", "null"):
            accessor = require("ray.data.block", "cluster").BlockAccessor.for_block(rows)
            return list(accessor.to_numpy(name))
        return table.check(RawBatch(input_values([column], table, row), None), row).inputs

    def _labels(self, column: Any, table: Table, row: int) -> list[Any]:
        labels = column.to_pylist()
        for i, label in enumerate(labels):
            check_label_type(label, table, f"row {row + i + 1}")
        if self.text_labels is not None and isinstance(labels[0], str) != self.text_labels:
            raise KldaError(
                f"dataset: labels are such as {labels[0]!r}, but the model's classes are "
                f"{'texts' if self.text_labels else 'integers'}; use one kind."
            )
        return labels


def _check_visible(inputs: Sequence[Any]) -> None:
    for path in inputs:
        if isinstance(path, str | Path) and not Path(path).exists():
            raise ClusterError(
                f"{path}: there is no such file on the machine {socket.gethostname()}. Images are "
                "read where they are encoded: put them where all machines of the cluster see them "
                "under the same path."
            )
