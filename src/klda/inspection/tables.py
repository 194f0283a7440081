"""Small tables for people: as text for ``print``, as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

MOST_ROWS = 20


def text_table(head: Sequence[str], rows: Sequence[Sequence[Any]], most: int = MOST_ROWS) -> str:
    """Return a table as lines of text: the first column to the left, numbers to the right."""
    cells = [[str(cell) for cell in row] for row in (head, *rows[:most])]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    if len(rows) > most:
        lines.append(f"... {len(rows) - most:,} more")
    return "\n".join(lines)


def html_table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[Any]], most: int = MOST_ROWS
) -> str:
    """Return the same as HTML, below a title."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows[:most]
    )
    more = f"<p>... {len(rows) - most:,} more</p>" if len(rows) > most else ""
    return (
        f"<p>{escape(title)}</p><table><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table>{more}"
    )
