"""Rows in Arrow columns: parquet files, and what both they and Ray's datasets are made of."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klda.checks import Modality
from klda.data.batch import BATCH_BYTES, Batch, TableError, gathered, rows_at_once
from klda.data.columns import FEATURE_COLUMNS, TEXT_COLUMNS
from klda.data.table import Table
from klda.errors import require

# A column of a row group that unpacks to more bytes than this, and to so many times its size in the
# file, is made to fill the memory: texts are compressed to a tenth, logs to a hundredth.
LARGEST_COLUMN = 1 << 27
LARGEST_RATIO = 1000
FEWEST_ROWS = 16  # that are unpacked at once


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
        inputs, label = input_columns(table, file.schema_arrow, labels)
        done, total = 0, max(file.metadata.num_rows, 1)
        read = _feature_batches if table.modality == "features" else _cell_batches
        for values, names in read(table, file, inputs, label, rows):
            done += len(values)
            yield Batch(values, names, done / total)


def _feature_batches(
    table: Table, file: Any, inputs: list[str], label: str | None, rows: int
) -> Iterator[tuple[np.ndarray, list[Any] | None]]:
    columns = [*inputs, *([] if label is None else [label])]
    groups = _unpacked(table, file, columns)
    row_bytes = max((-(-size // n_rows) for n_rows, size in groups), default=0)
    done = 0
    for part in file.iter_batches(batch_size=rows_at_once(rows, row_bytes), columns=columns):
        values = input_values([part.column(name) for name in inputs], table, done)
        done += len(values)
        if len(values):
            yield values, None if label is None else part.column(label).to_pylist()


def _cell_batches(
    table: Table, file: Any, inputs: list[str], label: str | None, rows: int
) -> Iterator[tuple[list[Any], list[Any] | None]]:
    columns = [*inputs, label or inputs[0]]
    # One text in a dictionary may be all that a column unpacks to, and each row may be that text.
    largest = max((size for _, size in _unpacked(table, file, columns)), default=0)
    at_once = min(rows, max(FEWEST_ROWS, BATCH_BYTES // 4 // max(1, largest)))

    def cells() -> Iterator[tuple[tuple[Any, Any], int]]:
        for part in file.iter_batches(batch_size=at_once, columns=list(dict.fromkeys(columns))):
            values, names = (part.column(name).to_pylist() for name in columns)
            for value, name in zip(values, names, strict=True):
                yield (value, name), len(value) if isinstance(value, str) else 0

    for part in gathered(cells(), rows, BATCH_BYTES):
        values, names = zip(*part, strict=True)
        yield list(values), None if label is None else list(names)


def _unpacked(table: Table, file: Any, columns: list[str]) -> Iterator[tuple[int, int]]:
    """Yield for each row group its rows, and the bytes that some columns unpack to.

    Raises if a column would fill the memory.
    """
    _check_metadata(table.path)
    wanted = set(columns)
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        total = 0
        for column in map(group.column, range(group.num_columns)):
            path, packed = column.path_in_schema, column.total_compressed_size
            parents = itertools.accumulate(path.split("."), "{}.{}".format)
            if wanted.isdisjoint(parents):
                continue
            size = max(column.total_uncompressed_size, 8 * column.num_values)
            is_list = column.num_values > group.num_rows
            most = max(LARGEST_COLUMN, LARGEST_RATIO * packed)
            if (size if is_list else column.total_uncompressed_size) > most:
                raise TableError(
                    f"{table.path}, row group {number + 1}: the column {path!r} would unpack from "
                    f"{packed:,} bytes to {size:,}. Write it in smaller row groups."
                )
            total += size
        yield max(1, group.num_rows), total


def _check_metadata(path: Path) -> None:
    """Raise if the metadata of a column can't be right.

    pyarrow ends the process when it is asked for such metadata; its reader raises. Batches of no
    rows, from a buffered file, let it look at all columns without reading any.
    """
    with _open(path, buffer_size=1 << 16) as file:
        for number in range(file.num_row_groups):
            for _ in file.reader.iter_batches(0, [number]):
                pass


def input_columns(table: Table, schema: Any, labels: bool) -> tuple[list[str], str | None]:
    """Return the columns that hold the inputs, and with `labels` the one that holds the labels."""
    if table.modality != "features":
        name, label = table.choose_columns(schema.names, labels)
        return [name], label
    asked = table.choose_input(schema.names)
    inputs = [asked] if asked else _feature_columns(schema)
    if not inputs:
        raise TableError(
            f"{table.path}: found neither a column of lists nor columns of floating-point numbers "
            f"to use as features; its columns are: {', '.join(schema.names)}."
        )
    return inputs, table.choose_label(schema.names) if labels else None


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


def _open(path: Path, **options: Any) -> Any:
    return require("pyarrow.parquet", "parquet").ParquetFile(path, **options)
