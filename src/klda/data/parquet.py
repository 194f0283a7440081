"""Parquet files of texts, of paths of images, or of features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda._optional import require
from klda.data.chunk import Chunk, Columns, Modality, TableError
from klda.data.columns import (
    FEATURE_COLUMNS,
    LABEL_COLUMNS,
    TEXT_COLUMNS,
    choose_columns,
    find_column,
    input_of,
    label_of,
    no_column,
)

if TYPE_CHECKING:
    from klda.data.table import Table


def _open_parquet(path: Path) -> Any:
    parquet = require("pyarrow.parquet", "parquet")
    arrow = require("pyarrow", "parquet")
    try:
        return parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise TableError(f"{path}: not a parquet file, or a damaged one ({error}).") from error


def parquet_modalities(path: Path) -> tuple[Modality, ...]:
    """Tell what a parquet file can hold, the likeliest first."""
    with _open_parquet(path) as file:
        schema = file.schema_arrow
    if _feature_columns(schema, Columns()) is not None and not any(
        str(schema.field(name).type) in ("string", "large_string")
        for name in schema.names
        if name.lower() in TEXT_COLUMNS
    ):
        return ("features", "text", "image")
    return ("text", "image", "features")


def _feature_columns(schema: Any, columns: Columns) -> list[str] | None:
    """One column of lists, or all columns of floating-point numbers; None when there is neither."""
    types = require("pyarrow.types", "parquet")
    if columns.input is not None:
        return [columns.input]
    lists = [
        name
        for name in schema.names
        if types.is_list(schema.field(name).type)
        or types.is_large_list(schema.field(name).type)
        or types.is_fixed_size_list(schema.field(name).type)
    ]
    if lists:
        named = [name for name in lists if name.lower() in FEATURE_COLUMNS]
        return (named or lists)[:1]
    floats = [name for name in schema.names if types.is_floating(schema.field(name).type)]
    return floats or None


def read_parquet(table: Table, labels: bool, rows: int, skip: int) -> Iterator[Chunk]:
    """Read the rows of a parquet file."""
    with _open_parquet(table.path) as file:
        total = max(file.metadata.num_rows, 1)
        if table.modality == "features":
            yield from _parquet_features(table, file, labels, rows, skip)
            return
        chosen = choose_columns(table, file.schema_arrow.names, labels)
        wanted = [name for name in chosen if name is not None]
        done = skip
        for batch in _record_batches(file, wanted, rows, skip):
            values = batch.column(chosen.input).to_pylist()
            inputs = [input_of(v, table, f"row {done + i}") for i, v in enumerate(values, 1)]
            names = _parquet_labels(batch, chosen.label, table, done)
            done += len(inputs)
            if inputs:
                yield Chunk(inputs, names, done / total)


def _record_batches(file: Any, columns: list[str], rows: int, skip: int) -> Iterator[Any]:
    """Record batches of so many rows, across row groups; groups that are left out are not read."""
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    first = 0
    while first < len(sizes) and sizes[first] <= skip:
        skip -= sizes[first]
        first += 1
    held: list[Any] = []
    for batch in file.iter_batches(
        batch_size=rows, columns=columns, row_groups=list(range(first, len(sizes)))
    ):
        left_out = min(skip, len(batch))
        skip -= left_out
        held.append(batch.slice(left_out))
        while (count := sum(map(len, held))) >= rows:
            whole = _joined(held)
            yield whole.slice(0, rows)
            held = [whole.slice(rows)] if count > rows else []
    if any(map(len, held)):
        yield _joined(held)


def _joined(batches: list[Any]) -> Any:
    if len(batches) == 1:
        return batches[0]
    arrow = require("pyarrow", "parquet")
    return arrow.Table.from_batches(batches).combine_chunks().to_batches()[0]


def _parquet_labels(batch: Any, label: str | None, table: Table, done: int) -> list[str] | None:
    if label is None:
        return None
    values = batch.column(label).to_pylist()
    return [label_of(v, table, f"row {done + i}") for i, v in enumerate(values, 1)]


def _parquet_features(
    table: Table, file: Any, need_labels: bool, rows: int, skip: int
) -> Iterator[Chunk]:
    total = max(file.metadata.num_rows, 1)
    schema = file.schema_arrow
    inputs = _feature_columns(schema, table.columns)
    if inputs is None:
        raise TableError(
            f"{table.path}: found neither a column of lists nor columns of floating-point numbers "
            f"to take as features; its columns are: {', '.join(schema.names)}."
        )
    label = find_column(table, schema.names, table.columns.label, LABEL_COLUMNS)
    if label is None and need_labels:
        raise no_column(table, schema.names, "label", "--label-column", LABEL_COLUMNS)
    wanted = [*inputs, *([] if label is None else [label])]
    done = skip
    for batch in _record_batches(file, wanted, rows, skip):
        features = _stack(batch, inputs, table, done)
        names = _parquet_labels(batch, label, table, done)
        done += len(features)
        if len(features):
            yield Chunk(features, names, done / total)


def _stack(batch: Any, inputs: list[str], table: Table, done: int) -> np.ndarray:
    """Feature rows of a record batch, from one column of lists or one column a feature."""
    columns = [batch.column(name) for name in inputs]
    if any(column.null_count for column in columns):
        raise TableError(f"{table.path}, rows {done + 1} and on: a feature is missing.")
    if len(columns) > 1:
        return np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])
    flat = columns[0].flatten().to_numpy(zero_copy_only=False)
    if len(columns[0]) == 0 or flat.size % len(columns[0]):
        raise TableError(f"{table.path}, rows {done + 1} and on: rows of different lengths.")
    compute = require("pyarrow.compute", "parquet")
    lengths = compute.list_value_length(columns[0]).unique().to_pylist()
    if len(lengths) > 1:
        raise TableError(
            f"{table.path}, rows {done + 1} and on: rows of different lengths: {sorted(lengths)}."
        )
    return np.asarray(flat).reshape(len(columns[0]), -1)
