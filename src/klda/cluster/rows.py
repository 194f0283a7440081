"""Where rows come from: files, read as on one machine, or the blocks of a Ray Data dataset.

The driver reads files and puts their batches into Ray's object store; the blocks of a dataset are
there already. What it hands to workers are references, cut into parts of consecutive rows.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from klda.cluster.connection import ClusterError
from klda.data import BATCH_ROWS, Batch, Columns, Table, open_tables, read
from klda.data.arrow import input_columns, input_values
from klda.data.columns import label_in_cell, raw_label
from klda.errors import KldaError, require
from klda.labels import Label


@dataclass(frozen=True)
class Block:
    """A `Batch`, or rows of a dataset's block from ``start`` on; they are encoded at once.

    ``fraction`` is how much of all data ends with them; None for a dataset, whose end is unknown.
    """

    ref: Any
    n_rows: int
    n_bytes: int = 0
    fraction: float | None = None
    start: int = 0


@dataclass(frozen=True)
class Part:
    """Consecutive rows that one worker turns into one result; rows are numbered from 0."""

    first_row: int
    blocks: list[Block]
    fraction: float | None = None

    @property
    def n_rows(self) -> int:
        """How many rows."""
        return sum(block.n_rows for block in self.blocks)

    def __str__(self) -> str:
        return f"rows {self.first_row + 1:,} to {self.first_row + self.n_rows:,}"


@dataclass(frozen=True)
class Source:
    """The files or the dataset that rows come from."""

    ray: Any
    reader: BlockReader
    tables: Sequence[Table]
    dataset: Any = None

    @classmethod
    def open(
        cls, ray: Any, data: Any, reader: BlockReader, classes: Collection[Label] = ()
    ) -> Source:
        """Open files, or take a dataset; `classes` are known, see `klda.data.open_tables`."""
        if isinstance(data, ray.data.Dataset):
            data.context.enable_progress_bars = False  # there is one for all
            return cls(ray, reader, [], data)
        given = [data] if isinstance(data, str | Path) else data
        if not isinstance(given, Sequence) or not all(isinstance(i, str | Path) for i in given):
            raise KldaError(
                f"data is a {type(data).__name__}; give paths of files, or a ray.data.Dataset."
            )
        modality, columns = reader.modality, reader.columns
        tables = open_tables(given, modality=modality, columns=columns, classes=classes)
        # Workers, which open images themselves, have other working directories.
        return cls(ray, reader, [replace(table, path=table.path.resolve()) for table in tables])

    def __str__(self) -> str:
        return ", ".join(table.path.name for table in self.tables) or "dataset"

    def blocks(self) -> Iterator[Block]:
        """Yield all rows in order; those of a dataset as Ray Data delivers them."""
        if self.dataset is not None:
            yield from _dataset_blocks(self.dataset, BATCH_ROWS[self.reader.modality])
            return
        for batch in read(self.tables, labels=self.reader.labels):
            size = _n_bytes(batch.inputs)
            yield Block(self.ray.put(batch), len(batch), size, batch.fraction)


def _n_bytes(inputs: Any) -> int:
    return int(inputs.nbytes) if isinstance(inputs, np.ndarray) else sum(map(len, map(str, inputs)))


def _dataset_blocks(dataset: Any, most_rows: int) -> Iterator[Block]:
    for bundle in dataset.iter_internal_ref_bundles():
        for ref, known, part in zip(bundle.block_refs, bundle.metadata, bundle.slices, strict=True):
            first = 0 if part is None else part.start_offset
            end = known.num_rows if part is None else part.end_offset
            row_bytes = (known.size_bytes or 0) / max(1, known.num_rows)
            for start in range(first, end, most_rows):
                n_rows = min(most_rows, end - start)
                yield Block(ref, n_rows, int(row_bytes * n_rows), start=start)


def cut(
    blocks: Iterable[Block], workers: int, least: int, most: int, most_bytes: float = float("inf")
) -> Iterator[Part]:
    """Cut rows into parts that shrink towards the end, so that all workers finish together.

    A part takes a quarter of the rows that are left for one worker (guided self-scheduling), but
    at least and at most so many, and no more once it has `most_bytes`. Where the number of rows is
    unknown, half of them are taken to be left. Few rows are divided evenly.
    """
    held: list[Block] = []
    taken = first_row = n_bytes = 0
    before = 0.0

    def part() -> Part:
        end = held[-1].fraction
        return Part(first_row, held, None if end is None else end - before)

    for block in blocks:
        held.append(block)
        taken += block.n_rows
        n_bytes += block.n_bytes
        total = taken / (block.fraction or 0.5)
        wanted = max(min(least, total / workers), (total - taken) / (4 * workers))
        if taken - first_row >= min(most, wanted) or n_bytes >= most_bytes:
            yield part()
            held, first_row, n_bytes, before = [], taken, 0, block.fraction or 0.0
    if held:
        yield part()


@dataclass(frozen=True)
class BlockReader:
    """How inputs, and labels if there must be any, are read from a block.

    Columns of a dataset are guessed from their names as in files.
    """

    modality: Any
    columns: Columns
    labels: bool

    def batches(
        self, part: Part, contents: Sequence[Any]
    ) -> Iterator[tuple[Any, list[Label], Any]]:
        """Yield inputs, labels, and the rows of a dataset as an Arrow table, block by block."""
        first_row = part.first_row
        for block, content in zip(part.blocks, contents, strict=True):
            yield self.read(content, block, first_row)
            first_row += block.n_rows

    def read(self, content: Any, block: Block, first_row: int = 0) -> tuple[Any, list[Label], Any]:
        """Return inputs, labels and rows of a block; ``first_row`` is for errors."""
        if isinstance(content, Batch):  # which is all of the block
            inputs, labels, rows = content.inputs, content.labels or [], None
        else:
            accessor = require("ray.data.block", "cluster").BlockAccessor.for_block(content)
            rows = accessor.to_arrow().slice(block.start, block.n_rows).combine_chunks()
            table = Table(Path("dataset"), self.modality, _no_file, self.columns)
            columns, label = input_columns(table, rows.schema, self.labels)
            inputs = self._inputs(rows, columns, table, first_row)
            labels = self._labels(rows.column(label), table, first_row) if self.labels else []
        if self.modality == "image":
            _check_visible(inputs)
        return inputs, labels, rows

    def _inputs(self, rows: Any, names: list[str], table: Table, first_row: int) -> Any:
        columns = [rows.column(name) for name in names]
        kind = str(columns[0].type)
        if self.modality == "image" and kind not in ("string", "large_string", "null"):
            accessor = require("ray.data.block", "cluster").BlockAccessor.for_block(rows)
            return list(accessor.to_numpy(names[0]))
        values = input_values(columns, table, first_row)
        return table.check(Batch(values, None), first_row).inputs

    def _labels(self, column: Any, table: Table, first_row: int) -> list[Label]:
        return table.each(_label, column.to_pylist(), first_row)


def _no_file(*_: object) -> Iterator[Batch]:
    raise NotImplementedError("the rows of a dataset are in its blocks")


def _label(value: Any) -> Label:
    """Return a label of a dataset: text is read as in files, an integer stays one."""
    return label_in_cell(value, ()) if isinstance(value, str) else raw_label(value)


def _check_visible(inputs: Sequence[Any]) -> None:
    for path in inputs:
        if isinstance(path, str | Path) and not Path(path).exists():
            raise ClusterError(
                f"{path}: there is no such file on the machine {socket.gethostname()}. Images are "
                "read where they are encoded: put them where all machines of the cluster see them "
                "under the same path."
            )
