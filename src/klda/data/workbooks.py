"""The sheet of an Excel workbook that has the most rows, and those that begin like it."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator
from datetime import datetime, time
from itertools import chain, islice
from typing import Any

from klda.data.batch import Contents, Layout
from klda.data.chunks import HEAD_ROWS
from klda.data.damage import TableError
from klda.data.lines import ByteFile
from klda.data.records import Row, contents_of_cells
from klda.errors import require

# A workbook that unpacks to more bytes than this, and to so many times its size, is made to fill
# the memory.
LARGEST_SHEET = 1 << 27
LARGEST_RATIO = 100
log = logging.getLogger("klda.data")


def read_workbook(file: ByteFile, layout: Layout) -> Contents:
    """Read the sheet with the most rows, and others with the same header; cells are texts."""
    stream = file.seekable()
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        packed = sum(member.compress_size for member in members)
        names = [member.filename for member in members]
        if not any(name.startswith("xl/") for name in names):
            kind = "an archive, not a table. Unpack it first."
            if any(name.startswith("word/") for name in names):
                kind = "a Word document: copy its texts into a table."
            elif "content.xml" in names:
                kind = "an OpenDocument file: save it as .xlsx or .csv."
            raise TableError(f"{file.name} is {kind}")
    if unpacked > max(LARGEST_SHEET, LARGEST_RATIO * packed):
        raise TableError(
            f"{file.name} would unpack from {packed:,} bytes to {unpacked:,}. Save it as CSV."
        )
    book = require("openpyxl", "excel").load_workbook(stream, read_only=True, data_only=True)
    sheets = [one for one in book.worksheets if one.sheet_state == "visible"]
    if len(book.worksheets) > 1:
        heads = [list(islice(_rows(one), HEAD_ROWS)) for one in sheets]
        most = max(heads, key=len)
        sheets = [one for one, head in zip(sheets, heads, strict=True) if head[:1] == most[:1]]
        read = " and ".join(repr(one.title) for one in sheets)
        log.info("%s: reads the sheet%s %s only.", file.name, "s"[: len(sheets) > 1], read)
    rows = chain.from_iterable(map(_rows, sheets))
    # The whole workbook is read before its first row.
    return contents_of_cells(rows, layout, file.name, lambda: 1.0)


def _rows(sheet: Any) -> Iterator[Row]:
    for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
        cells = [_text(value) for value in values]
        if any(map(str.strip, cells)):
            yield Row(number, cells, sum(map(len, cells)))


def _text(value: Any) -> str:
    """Return a cell as it is seen: 3 and not 3.0, and a date without the time 00:00:00."""
    if value is None:
        return ""
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
