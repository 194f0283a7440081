"""Where rows come from: files, or a Ray Data dataset; both are tables that the driver reads.

It puts their batches into Ray's object store, and hands references to the workers, cut into parts
of consecutive rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from klda.data import Batch, Columns, Table, open_tables
from klda.data.arrow import input_columns, input_values
from klda.errors import KldaError, require
from klda.labels import Label


def open_rows(
    ray: Any,
    data: Any,
    modality: Any,
    columns: Columns,
    *,
    classes: Collection[Label] = (),
    copied: Sequence[str] = (),
) -> list[Table]:
    """Open files, or a dataset, whose columns may be `copied` beside its rows."""
    if isinstance(data, ray.data.Dataset):
        data.context.enable_progress_bars = False  # there is one for all
        return [dataset_table(data, modality, columns, copied)]
    given = [data] if isinstance(data, str | Path) else data
    if not isinstance(given, Sequence) or not all(isinstance(i, str | Path) for i in given):
        raise KldaError(
            f"data is a {type(data).__name__}; give paths of files, or a ray.data.Dataset."
        )
    if copied:
        raise KldaError(f"columns={list(copied)!r}: files have no columns to copy.")
    tables = open_tables(given, modality=modality, columns=columns, classes=classes)
    # Workers, which open images themselves, have other working directories.
    return [replace(table, path=table.path.resolve()) for table in tables]


def dataset_table(
    dataset: Any, modality: Any, columns: Columns, copied: Sequence[str] = ()
) -> Table:
    """Return a dataset as a table that errors call "dataset".

    Columns are guessed as in files. How much has been read is not known: the fraction is 0.
    """

    def read(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
        done = 0
        for block in dataset.iter_batches(batch_size=rows, batch_format="pyarrow"):
            names, label = input_columns(table, block.schema, labels)
            for name in set(copied) - set(block.column_names):
                has = ", ".join(block.column_names)
                raise KldaError(f"columns names {name!r}, which is not in the dataset ({has}).")
            yield Batch(
                _inputs(table, block, names, done),
                None if label is None else block.column(label).to_pylist(),
                fraction=0.0,
                extra=block.select(list(copied)) if copied else None,
            )
            done += len(block)

    return Table(Path("dataset"), modality, read, columns, typed=True)


def _inputs(table: Table, block: Any, names: list[str], before: int) -> Any:
    columns = [block.column(name) for name in names]
    kind = str(columns[0].type)
    if table.modality == "image" and kind not in ("string", "large_string", "null"):
        accessor = require("ray.data.block", "cluster").BlockAccessor.for_block(block)
        return tuple(accessor.to_numpy(names[0]))  # arrays of pixels, and no cells to check
    return input_values(columns, table, before)


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
