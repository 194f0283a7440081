"""Parquet files, and a guard against those that are made to fill the memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from klda.checks import Modality
from klda.data.batch import Contents
from klda.data.chunks import BATCH_BYTES, gathered, rows_at_once
from klda.data.columns import TEXTS
from klda.data.damage import TableError
from klda.data.frames import contents_of_frames, feature_columns, narwhals, schema_of
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
        schema = schema_of(file.schema_arrow.empty_table())
    texts = [name for name, kind in schema.items() if kind == narwhals().String]
    if feature_columns(schema) and not any(name.casefold() in TEXTS for name in texts):
        return ("features", "text", "image")
    return ("text", "image", "features")


@contextmanager
def read_parquet(table: Table, source: Any = None) -> Iterator[Contents]:
    """Read the rows of a parquet file, from its path or from another source of its bytes."""
    source = source or table.path
    with _open(source) as file:

        def frames(columns: list[str] | None, rows: int) -> Iterator[tuple[Any, float]]:
            _check_metadata(source)
            groups = list(_unpacked(file, columns, str(table.path)))
            done, at_once = 0, _rows_at_once(groups, rows, table.modality)
            parts = ((part, part.nbytes) for part in file.iter_batches(at_once, columns=columns))
            for some in gathered(parts, rows // at_once, BATCH_BYTES):
                done += sum(map(len, some))
                yield arrow.Table.from_batches(some), done / file.metadata.num_rows

        arrow = require("pyarrow", "parquet")
        yield contents_of_frames(frames, file.schema_arrow.empty_table(), table)


def _rows_at_once(groups: list[tuple[int, int]], rows: int, modality: str) -> int:
    """Return how many rows may be unpacked at once, by the rows and bytes of each row group."""
    if modality == "features":
        return rows_at_once(rows, max((-(-size // n_rows) for n_rows, size in groups), default=0))
    # One text in a dictionary may be all that a column unpacks to, and each row may be that text.
    largest = max((size for _, size in groups), default=1)
    return min(rows, max(FEWEST_ROWS, BATCH_BYTES // 4 // max(1, largest)))


def _unpacked(file: Any, columns: list[str] | None, where: str) -> Iterator[tuple[int, int]]:
    """Yield for each row group its rows, and the bytes that some columns unpack to.

    Raises if a column would fill the memory.
    """
    wanted = set(columns or file.schema_arrow.names)
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        total = 0
        for column in map(group.column, range(group.num_columns)):
            path, packed = column.path_in_schema, column.total_compressed_size
            if wanted.isdisjoint(itertools.accumulate(path.split("."), "{}.{}".format)):
                continue
            size = max(column.total_uncompressed_size, 8 * column.num_values)
            is_list = column.num_values > group.num_rows
            most = max(LARGEST_COLUMN, LARGEST_RATIO * packed)
            if (size if is_list else column.total_uncompressed_size) > most:
                raise TableError(
                    f"{where}, row group {number + 1}: the column {path!r} would unpack from "
                    f"{packed:,} bytes to {size:,}. Write it in smaller row groups."
                )
            total += size
        yield max(1, group.num_rows), total


def _check_metadata(source: Any) -> None:
    """Raise if the metadata of a column can't be right.

    pyarrow ends the process when it is asked for such metadata; its reader raises. Batches of no
    rows, from a buffered file, let it look at all columns without reading any.
    """
    with _open(source, buffer_size=1 << 16) as file:
        for number in range(file.num_row_groups):
            for _ in file.reader.iter_batches(0, [number]):
                pass


def _open(source: Any, **options: Any) -> Any:
    return require("pyarrow.parquet", "parquet").ParquetFile(source, **options)
