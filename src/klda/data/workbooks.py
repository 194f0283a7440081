"""The first sheet of an Excel workbook."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator
from typing import Any

from klda.data.batch import Contents, Layout, TableError
from klda.data.lines import ByteFile
from klda.data.records import Row, contents_of_cells
from klda.errors import require

# A workbook that unpacks to more bytes than this, and to so many times its size, is made to fill
# the memory.
LARGEST_SHEET = 1 << 27
LARGEST_RATIO = 100
log = logging.getLogger("klda.data")


def read_workbook(file: ByteFile, layout: Layout) -> Contents:
    """Read the rows of the first sheet; cells are texts, as in a CSV file."""
    stream = file.seekable()
    with zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        packed = sum(member.compress_size for member in members)
        if not any(member.filename.startswith("xl/") for member in members):
            raise TableError(f"{file.name} is an archive, not a table. Unpack it first.")
    if unpacked > max(LARGEST_SHEET, LARGEST_RATIO * packed):
        raise TableError(
            f"{file.name} would unpack from {packed:,} bytes to {unpacked:,}. Save it as CSV."
        )
    book = require("openpyxl", "excel").load_workbook(stream, read_only=True, data_only=True)
    sheet = book.worksheets[0]
    if len(book.worksheets) > 1:
        log.info("%s: reads the first sheet, %r, only.", file.name, sheet.title)

    def rows() -> Iterator[Row]:
        for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
            cells = [_text(value) for value in values]
            if any(map(str.strip, cells)):
                yield Row(number, cells, sum(map(len, cells)))

    # The whole workbook is read before its first row.
    return contents_of_cells(rows(), layout, file.name, lambda: 1.0)


def _text(value: Any) -> str:
    """Return a cell as it is seen: 3 and not 3.0."""
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
