"""Rows written as CSV, TSV, JSONL, parquet or an Excel workbook, as they come."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from klda.data.chunks import gathered
from klda.errors import KldaError, require

Rows = Iterable[Mapping[str, Any]]  # cells by the names of their columns, the same in all rows
WRITTEN_ROWS = 2048  # of a parquet file, at once
MOST_SHEET_ROWS = 1 << 20
_NOT_IN_SHEETS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def write_csv(stream: TextIO, rows: Rows, delimiter: str = ",") -> None:
    """Write comma-separated values."""
    writer: Any = None
    for row in rows:
        if writer is None:
            options: dict[str, Any] = {"restval": "", "extrasaction": "ignore"}
            writer = csv.DictWriter(
                stream, list(row), delimiter=delimiter, lineterminator="\n", **options
            )
            writer.writeheader()
        writer.writerow({name: _text(cell) for name, cell in row.items()})


def write_jsonl(stream: TextIO, rows: Rows) -> None:
    """Write one JSON object per line."""
    for row in rows:
        stream.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


def _text(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    return json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else str(cell)


def write_parquet(path: Path, rows: Rows) -> None:
    """Write a parquet file; the first rows settle the types of the columns."""
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    parts = gathered(((dict(row), 1) for row in rows), WRITTEN_ROWS, WRITTEN_ROWS)
    first = next(parts, [])
    fields = [
        arrow.field(field.name, arrow.string() if field.type == arrow.null() else field.type)
        for field in arrow.Table.from_pylist(first).schema
    ]
    with parquet.ParquetWriter(path, arrow.schema(fields)) as writer:
        for part in chain([first] if first else [], parts):
            writer.write_table(arrow.Table.from_pylist(part, arrow.schema(fields)))


def write_workbook(path: Path, rows: Rows) -> None:
    """Write the only sheet of an Excel workbook."""
    excel = require("openpyxl", "excel")
    book = excel.Workbook(write_only=True)
    sheet = book.create_sheet("klda")

    def cells(values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            if isinstance(value, bool | int | float) or value is None:
                yield value
                continue
            cell = excel.cell.WriteOnlyCell(sheet, _NOT_IN_SHEETS.sub("", _text(value)))
            cell.data_type = "s"  # a text that begins with = is no formula
            yield cell

    for number, row in enumerate(rows, 2):
        if number > MOST_SHEET_ROWS:
            raise KldaError(
                f"A sheet of Excel has at most {MOST_SHEET_ROWS:,} rows: write a CSV file."
            )
        if number == 2:
            sheet.append(cells(row))
        sheet.append(cells(row.values()))
    book.save(path)


TEXT_WRITERS: dict[str, Callable[[TextIO, Rows], None]] = {
    ".csv": write_csv,
    ".tsv": partial(write_csv, delimiter="\t"),
    ".jsonl": write_jsonl,
}
FILE_WRITERS: dict[str, Callable[[Path, Rows], None]] = {
    ".parquet": write_parquet,
    ".xlsx": write_workbook,
}
