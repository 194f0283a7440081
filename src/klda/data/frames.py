"""Tables in memory, of pandas, polars, pyarrow and Hugging Face; and streams of Arrow tables."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from klda.checks import Modality
from klda.data.batch import GUESSED, Block, Contents, Layout
from klda.data.chunks import HEAD_ROWS
from klda.data.columns import FEATURES
from klda.data.damage import TableError
from klda.data.table import Table
from klda.errors import KldaError, require
from klda.labels import Label

# Yields tables of so many rows, each with the fraction of all rows that has been read.
Frames = Callable[[list[str] | None, int], Iterator[tuple[Any, float]]]


def is_frame(value: Any) -> bool:
    """Whether a value is a table in memory."""
    kind = type(value)  # not the value itself, whose columns it may take long to compute
    return hasattr(kind, "columns") or hasattr(kind, "column_names")


def open_frame(
    frame: Any,
    *,
    modality: Modality = "text",
    layout: Layout = GUESSED,
    classes: Collection[Label] = (),
) -> Table:
    """Return a table in memory as a table to read; errors call it "the table"."""
    if hasattr(frame, "collect_schema") and hasattr(frame, "collect"):
        raise KldaError(f"inputs is a {type(frame).__name__}: collect it first, inputs.collect().")
    frames, first = (_of_dataset if hasattr(frame, "with_format") else _of_frame)(frame)
    return frames_table(frames, first, "the table", modality, layout, classes)


def frames_table(
    frames: Frames,
    first: Any,
    name: str,
    modality: Modality,
    layout: Layout,
    classes: Collection[Label] = (),
) -> Table:
    """Return a stream of tables as one; the `first` shows the columns, and may be empty."""

    @contextmanager
    def read(table: Table) -> Iterator[Contents]:
        yield contents_of_frames(frames, first, table)

    return Table(Path(name), modality, read, layout, classes, typed=True)


def _of_frame(frame: Any) -> tuple[Frames, Any]:
    try:
        frame = narwhals().from_native(frame, eager_only=True)
    except (TypeError, ValueError) as error:  # also a name that two columns have
        raise KldaError(f"inputs, a {type(frame).__name__}, can't be read: {error}") from error
    if strange := [name for name in frame.columns if not isinstance(name, str)]:
        raise KldaError(
            f"inputs has a column called {strange[0]!r}, which is no text: name the columns, as in "
            "inputs.columns = ['text', 'label']."
        )

    def frames(columns: list[str] | None, rows: int) -> Iterator[tuple[Any, float]]:
        chosen = frame if columns is None else frame.select(columns)
        for start in range(0, len(frame), rows):
            yield chosen[start : start + rows], min(1.0, (start + rows) / len(frame))

    return frames, frame.head(HEAD_ROWS)


def _of_dataset(dataset: Any) -> tuple[Frames, Any]:
    """Return a Hugging Face dataset as tables; numbers that stand for names become the names."""
    named = {
        name: kind.names for name, kind in dataset.features.items() if hasattr(kind, "int2str")
    }

    def frames(columns: list[str] | None, rows: int) -> Iterator[tuple[Any, float]]:
        arrow, done = require("pyarrow", "parquet"), 0
        chosen = dataset if columns is None else dataset.select_columns(columns)
        for block in chosen.with_format("arrow").iter(rows):
            for name in named.keys() & set(block.column_names):
                # -1 marks a row without a label.
                labels = [
                    named[name][i] if i is not None and i >= 0 else None
                    for i in block.column(name).to_pylist()
                ]
                at = block.column_names.index(name)
                block = block.set_column(at, name, arrow.array(labels, arrow.string()))
            done += len(block)
            yield block, done / len(dataset)

    return frames, dataset.features.arrow_schema.empty_table()


def contents_of_frames(frames: Frames, first: Any, table: Table) -> Contents:
    """Return what a stream of tables holds; the `first` shows the columns, and may be empty."""
    schema = schema_of(first)
    features = feature_columns(schema, table.layout.inputs)

    def blocks(columns: Sequence[str] | None, rows: int) -> Iterator[Block]:
        done = 0
        for native, fraction in frames(None if columns is None else list(columns), rows):
            frame = narwhals().from_native(native, eager_only=True)
            where = f"{table.path}, rows {done + 1} and on"
            found = {
                name: _matrix(frame[name], where)
                if table.modality == "features" and name in features
                else frame[name].to_list()
                for name in columns or frame.columns
            }
            done += len(frame)
            if len(frame):
                yield Block(found, fraction)

    def head(names: Sequence[str]) -> dict[str, Any]:
        cells = [name for name in names if not schema[name].is_nested()]
        sample = first if len(first) else next(frames(cells, HEAD_ROWS), (first, 0))[0]
        frame = narwhals().from_native(sample, eager_only=True)
        return {name: frame[name].head(HEAD_ROWS).to_list() for name in cells}

    return Contents(list(schema), blocks, head, features)


def schema_of(frame: Any) -> dict[str, Any]:
    """Return the types of the columns of a table."""
    return dict(narwhals().from_native(frame, eager_only=True).schema)


def feature_columns(schema: dict[str, Any], asked: Sequence[str] = ()) -> list[str]:
    """Return the columns asked for, or one column of lists, or all floating-point numbers."""
    nw = narwhals()
    spelt = [name.casefold() for name in asked]
    if found := [name for name in schema if name.casefold() in spelt]:
        return found
    lists = [name for name, kind in schema.items() if isinstance(kind, nw.List | nw.Array)]
    if lists:
        named = [name for name in lists if name.casefold() in FEATURES]
        return (named or lists)[:1]
    return [name for name, kind in schema.items() if kind.is_float()]


def _matrix(column: Any, where: str) -> np.ndarray:
    """Return a column of numbers, or of lists of numbers of the same length, as an array."""
    if column.null_count():
        raise TableError(f"{where}: a feature is missing.")
    if column.dtype.is_numeric():
        return np.asarray(column.to_numpy())
    if not column.dtype.is_nested():
        raise TableError(
            f"{where}: a column of type {column.dtype} can't be features. Give a column of lists."
        )
    compute = require("pyarrow.compute", "parquet")
    lists = column.to_arrow()
    lengths = compute.list_value_length(lists).unique().to_pylist()
    if len(lengths) > 1:
        raise TableError(f"{where}: rows of different lengths: {sorted(lengths)}.")
    return np.asarray(lists.flatten().to_numpy(zero_copy_only=False)).reshape(len(lists), -1)


def narwhals() -> Any:
    """Return the module that knows the tables of all libraries, imported when first needed."""
    return importlib.import_module("narwhals.stable.v2")
