"""Rows of cells, one by one, and the tables that they make."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from klda.data.batch import BATCH_BYTES, Block, Contents, Layout, first_of, gathered
from klda.data.columns import has_header, is_title, unique_names

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
    names = list(dict.fromkeys(name for cells in good for name in cells))

    def blocks(columns: Sequence[str] | None, most: int) -> Iterator[Block]:
        chosen = ((_chosen(row, columns), row.size) for row in itertools.chain(first, rows))
        for part in gathered(chosen, most, BATCH_BYTES):
            yield _block(part, columns or names, fraction(), all_cells=columns is None)

    return Contents(names, blocks, lambda some: {n: [row.get(n) for row in good] for n in some})


def _chosen(row: Row, columns: Sequence[str] | None) -> tuple[int, Any]:
    if columns is None or isinstance(row.cells, str):
        return row.line, row.cells
    return row.line, {name: row.cells.get(name) for name in columns}


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
    as in files that were joined, is passed over.
    """
    left = iter(rows)
    head = first_of(left, lambda row: row.size)
    while len(head) > 1 and is_title(head[0].cells, head[1].cells):
        log.info("%s: passes over line %d, %r.", where, head[0].line, head.pop(0).cells[0])
    good = [row.cells for row in head if isinstance(row.cells, list)]
    header = layout.header
    if header is None and good:
        header = has_header(good, layout)
        if not header:
            log.info("%s: found no header; the first line counts as a row.", where)
    first = good[0] if good else []
    names = unique_names(first) if header else [str(i + 1) for i in range(len(first))]

    def named() -> Iterator[Row]:
        for row in itertools.chain(head, left):
            cells = row.cells
            while isinstance(cells, list) and len(cells) > len(names) and not cells[-1].strip():
                cells.pop()
            if isinstance(cells, str) or (header and cells == first):
                yield from [row] if isinstance(cells, str) else []
            elif len(cells) == len(names):
                yield Row(row.line, dict(zip(names, cells, strict=True)), row.size)
            else:
                has = f"{len(cells)} column{'' if len(cells) == 1 else 's'}"
                broken = f"broken row: it has {has}, but the first line has {len(names)}.{hint}"
                yield row._replace(cells=broken)

    return replace(contents_of(named(), fraction), header=header)
