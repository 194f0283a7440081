"""Where rows come from: files, or a Ray Data dataset; both are tables that the driver reads.

It puts their batches into Ray's object store, and hands references to the workers, cut into parts
of consecutive rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from klda.data import BATCH_ROWS, Batch, Layout, Table, open_tables
from klda.data.batch import Block, Contents
from klda.data.frames import frames_table
from klda.errors import KldaError, require
from klda.labels import Label


def open_rows(
    ray: Any, data: Any, modality: Any, layout: Layout, *, classes: Collection[Label] = ()
) -> list[Table]:
    """Open files, or a dataset."""
    if is_dataset(ray, data):
        data.context.enable_progress_bars = False  # there is one for all
        return [dataset_table(data, modality, layout)]
    given = [data] if isinstance(data, str | Path) else data
    if not isinstance(given, Sequence) or not all(isinstance(i, str | Path) for i in given):
        raise KldaError(
            f"data is a {type(data).__name__}; give paths of files, or a ray.data.Dataset."
        )
    tables = open_tables(given, modality=modality, layout=layout, classes=classes)
    # Workers, which open images themselves, have other working directories.
    return [replace(table, path=table.path.resolve()) for table in tables]


def is_dataset(ray: Any, data: Any) -> bool:
    """Check whether data is a dataset of Ray Data."""
    return isinstance(data, ray.data.Dataset)


def dataset_table(dataset: Any, modality: Any, layout: Layout) -> Table:
    """Return a dataset as a table that errors call "dataset", to be read once.

    Columns are guessed as in files. How much has been read is not known: the fraction is 0.
    """
    parts = iter(dataset.iter_batches(batch_size=BATCH_ROWS[modality], batch_format="pyarrow"))
    first = next(parts, None)
    if first is None:
        raise KldaError("data is an empty dataset: it holds no rows.")
    parts = itertools.chain([first], parts)
    if modality != "image":
        frames = ((_plain(part), 0.0) for part in parts)
        return frames_table(lambda *_: frames, _plain(first), "dataset", modality, layout)

    def blocks(columns: Sequence[str] | None, rows: int) -> Iterator[Block]:
        accessor = require("ray.data.block", "cluster").BlockAccessor
        for part in parts:  # images are paths, or arrays of pixels
            block = accessor.for_block(part)
            names = columns or part.column_names
            yield Block({name: list(block.to_numpy(name)) for name in names}, 0.0)

    contents = nullcontext(Contents(first.column_names, blocks))
    return Table(Path("dataset"), modality, lambda table: contents, layout, typed=True)


def _plain(table: Any) -> Any:
    """Return a table with the lists underneath its tensor columns, Ray's or Arrow's."""
    arrow = require("pyarrow", "cluster")
    for i, column in enumerate(table.columns):
        if isinstance(column.type, arrow.BaseExtensionType):
            storage = arrow.chunked_array([chunk.storage for chunk in column.chunks])
            table = table.set_column(i, table.column_names[i], storage)
    return table


@dataclass(frozen=True)
class Part:
    """Consecutive rows that one worker turns into one result; rows are numbered from 0."""

    first_row: int
    n_rows: int
    batches: list[Any]  # references
    fraction: float = 0.0  # of all rows; 0 where that is not known

    def __str__(self) -> str:
        return f"rows {self.first_row + 1:,} to {self.first_row + self.n_rows:,}"


def cut(
    batches: Iterable[Batch],
    put: Callable[[Batch], Any],
    workers: int,
    least: int,
    most: int,
    most_bytes: float = float("inf"),
) -> Iterator[Part]:
    """Put batches into the store and cut them into parts that shrink towards the end.

    All workers then finish together: a part takes a quarter of the rows that are left for one
    worker (guided self-scheduling), but at least and at most so many, and no more once it has
    `most_bytes`. Where the number of rows is unknown, half of them are taken to be left. Few rows
    are divided evenly.
    """
    held: list[Any] = []
    taken = first_row = n_bytes = 0
    before = fraction = 0.0
    for batch in batches:
        held.append(put(batch))
        taken += len(batch)
        n_bytes += _n_bytes(batch.inputs)
        fraction = batch.fraction
        total = taken / (fraction or 0.5)
        wanted = max(min(least, total / workers), (total - taken) / (4 * workers))
        if taken - first_row >= min(most, wanted) or n_bytes >= most_bytes:
            yield Part(first_row, taken - first_row, held, fraction - before)
            held, first_row, n_bytes, before = [], taken, 0, fraction
    if held:
        yield Part(first_row, taken - first_row, held, fraction - before)


def _n_bytes(inputs: Any) -> int:
    if hasattr(inputs, "nbytes"):
        return int(inputs.nbytes)
    return sum(getattr(value, "nbytes", 0) or len(str(value)) for value in inputs)
