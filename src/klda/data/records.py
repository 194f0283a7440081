"""Rows of cells, one by one, and the tables that they make."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from klda.data.batch import Block, Contents, Layout, nested
from klda.data.chunks import BATCH_BYTES, first_of, gathered
from klda.data.columns import count_titles, has_header, unique_names
from klda.messages import counted

DEEPEST = 5  # objects in objects whose cells have names
OF_SURVEYS = ('{"ImportId":', "Open-Ended Response")  # the last of several rows of a header
FILL = " Fill in the cells that are missing; put a text with line breaks in quotes."
log = logging.getLogger("klda.data")


class Row(NamedTuple):
    """A row of a file."""

    line: int  # that it begins on; 0 if that is not known
    cells: Any  # a list, or a mapping from the names of columns; or a text: what is wrong with it
    size: int  # in characters


def contents_of(records: Iterable[Row], fraction: Callable[[], float]) -> Contents:
    """Return a table of rows whose cells are named."""
    rows = iter(records)
    first = first_of(rows, lambda row: row.size)
    good = [row.cells for row in first if isinstance(row.cells, Mapping)]
    own = list(dict.fromkeys(name for cells in good for name in cells))
    names = list(dict.fromkeys(name for cells in good for name in names_in(cells)))

    def blocks(columns: Sequence[str] | None, most: int) -> Iterator[Block]:
        chosen = ((_chosen(row, columns), row.size) for row in itertools.chain(first, rows))
        for part in gathered(chosen, most, BATCH_BYTES):
            yield _block(part, columns or own, fraction(), all_cells=columns is None)

    return Contents(names, blocks, lambda some: {n: [nested(row, n) for row in good] for n in some})


def names_in(cells: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield the names of cells; of those in objects, as ``ticket.subject``."""
    for name, cell in cells.items():
        if isinstance(cell, dict) and cell and depth < DEEPEST:
            yield from (f"{name}.{inner}" for inner in names_in(cell, depth + 1))
        else:
            yield name


def _chosen(row: Row, columns: Sequence[str] | None) -> tuple[int, Any]:
    if columns is None or isinstance(row.cells, str):
        return row.line, row.cells
    return row.line, {name: nested(row.cells, name) for name in columns}


def _block(
    part: Sequence[tuple[int, Any]], columns: Sequence[str], fraction: float, all_cells: bool
) -> Block:
    lines, found = zip(*part, strict=True)
    broken = {i: cells for i, cells in enumerate(found) if isinstance(cells, str)}
    rows = [{} if i in broken else cells for i, cells in enumerate(found)]
    if all_cells:  # JSON may have names that the first rows have not
        columns = list(dict.fromkeys([*columns, *itertools.chain.from_iterable(rows)]))
    return Block({n: [cells.get(n) for cells in rows] for n in columns}, fraction, lines, broken)


def contents_of_cells(
    rows: Iterable[Row], layout: Layout, where: str, fraction: Callable[[], float], hint: str = ""
) -> Contents:
    """Return a table of rows whose cells the first row names, or numbers where it is no header.

    Rows of another length are broken; the `hint` says how that happens. A header that comes again,
    as in files that were joined, is skipped.
    """
    left = iter(rows)
    head = first_of(left, lambda row: row.size)
    of_survey = _drop_titles(head, where)
    good = [row.cells for row in head if isinstance(row.cells, list)]
    header = of_survey if layout.header is None else layout.header
    if header is None and good:
        header = has_header(good, layout)
        if not header:
            log.info("%s: found no header; the first line counts as a row.", where)
    first = good[0] if good else []
    names = _column_names(good) if header else [str(i + 1) for i in range(len(first))]

    def named() -> Iterator[Row]:
        for row in itertools.chain(head, left):
            cells = row.cells
            if isinstance(cells, str):
                yield row
                continue
            while len(cells) > len(names) and not cells[-1].strip():
                cells.pop()
            if header and cells == first:
                continue
            if len(cells) == len(names):
                yield Row(row.line, dict(zip(names, cells, strict=True)), row.size)
            else:
                has = counted(len(cells), "column")
                broken = f"broken row: it has {has}, but the first line has {len(names)}."
                fix = hint if len(cells) > len(names) else FILL
                yield row._replace(cells=broken + fix)

    return replace(contents_of(named(), fraction), header=header)


def _drop_titles(rows: list[Row], where: str) -> bool | None:
    """Drop the titles above a header, or the rows below it in which surveys say more of it.

    True for a survey, None for other tables, which may have no header.
    """
    last = next((i for i in (2, 1) if any(map(_is_of_survey, rows[i : i + 1]))), 0)
    drop = range(1, 1 + last) if last else range(count_titles([row.cells for row in rows]))
    for _ in drop:
        row = rows.pop(drop.start)
        log.info("%s: skips line %d, %r.", where, row.line, next(filter(None, row.cells)))
    return bool(last) or None


def _is_of_survey(row: Row) -> bool:
    return any(cell.startswith(OF_SURVEYS) for cell in row.cells)


def _column_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the names of columns, given in the first of some rows."""
    names = unique_names(rows[0])
    if {len(cells) for cells in rows[1:] if cells[-1].strip()} == {len(names) + 1}:
        return ["row", *names]  # R numbers the rows without a name for that
    return names
