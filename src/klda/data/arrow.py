"""Rows in Arrow columns: parquet files, and what both they and Ray's datasets are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from klda.data.batch import Batch, Modality, TableError
from klda.data.columns import (
    FEATURE_COLUMNS,
    TEXT_COLUMNS,
    asked_for,
    choose_columns,
    choose_label,
)
from klda.errors import require

if TYPE_CHECKING:
    from klda.data.table import Table


def parquet_modalities(path: Path) -> tuple[Modality, ...]:
    """Tell what a parquet file can hold, the likeliest first."""
    with _open(path) as file:
        schema = file.schema_arrow
    if _feature_columns(schema) and not any(
        str(schema.field(name).type) in ("string", "large_string")
        for name in schema.names
        if name.lower() in TEXT_COLUMNS
    ):
        return ("features", "text", "image")
    return ("text", "image", "features")


def read_parquet(table: Table, labels: bool, rows: int) -> Iterator[Batch]:
    """Read the rows of a parquet file."""
    with _open(table.path) as file:
        schema = file.schema_arrow
        inputs, label = input_columns(table, schema, labels)
        done, total = 0, max(file.metadata.num_rows, 1)
        wanted = [*inputs, *([] if label is None else [label])]
        for part in file.iter_batches(batch_size=rows, columns=wanted):
            values = input_values([part.column(name) for name in inputs], table, done)
            names = None if label is None else part.column(label).to_pylist()
            done += len(values)
            if len(values):
                yield Batch(values, names, done / total)


def input_columns(table: Table, schema: Any, labels: bool) -> tuple[list[str], str | None]:
    """Return the columns that hold the inputs, and with `labels` the one that holds the labels."""
    if table.modality != "features":
        name, label = choose_columns(table, schema.names, labels)
        return [name], label
    asked = asked_for(table, schema.names)
    inputs = [asked] if asked else _feature_columns(schema)
    if not inputs:
        raise TableError(
            f"{table.path}: found neither a column of lists nor columns of floating-point numbers "
            f"to use as features; its columns are: {', '.join(schema.names)}."
        )
    return inputs, choose_label(table, schema.names) if labels else None


def input_values(columns: Sequence[Any], table: Table, before: int) -> Any:
    """Return the inputs in one Arrow column, or in one column per feature.

    `before` is the number of rows read earlier.
    """
    if table.modality == "features":
        return _feature_matrix([_plain(column) for column in columns], table, before)
    return columns[0].to_pylist()


def _feature_matrix(columns: Sequence[Any], table: Table, before: int) -> np.ndarray:
    where = f"{table.path}, rows {before + 1} and on"
    if any(column.null_count for column in columns):
        raise TableError(f"{where}: a feature is missing.")
    if len(columns) > 1:
        return np.column_stack([column.to_numpy(zero_copy_only=False) for column in columns])
    (column,) = columns
    if not _is_list(column.type):
        raise TableError(
            f"{where}: a column of type {column.type} can't be features. Give a column of lists."
        )
    compute = require("pyarrow.compute", "parquet")
    lengths = compute.list_value_length(column).unique().to_pylist()
    if len(lengths) > 1:
        raise TableError(f"{where}: rows of different lengths: {sorted(lengths)}.")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat).reshape(len(column), -1)


def _plain(column: Any) -> Any:
    """Return one array; of a tensor column, Ray's or Arrow's, the lists underneath."""
    arrow = require("pyarrow", "parquet")
    if isinstance(column, arrow.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, arrow.ChunkedArray):
        column = column.chunk(0)
    return column.storage if isinstance(column.type, arrow.BaseExtensionType) else column


def _is_list(kind: Any) -> bool:
    types, arrow = require("pyarrow.types", "parquet"), require("pyarrow", "parquet")
    if isinstance(kind, arrow.BaseExtensionType):  # a tensor column
        kind = kind.storage_type
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _feature_columns(schema: Any) -> list[str]:
    """Return one column of lists, or all columns of floating-point numbers."""
    lists = [name for name in schema.names if _is_list(schema.field(name).type)]
    if lists:
        named = [name for name in lists if name.lower() in FEATURE_COLUMNS]
        return (named or lists)[:1]
    types = require("pyarrow.types", "parquet")
    return [name for name in schema.names if types.is_floating(schema.field(name).type)]


def _open(path: Path) -> Any:
    parquet = require("pyarrow.parquet", "parquet")
    arrow = require("pyarrow", "parquet")
    try:
        return parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise TableError(f"{path}: not a parquet file, or a damaged one ({error}).") from error
