"""Tables: figures measured here beside the paper's, as data, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from klda_bench import paper
from klda_bench.metrics import FINAL, METRICS, Spread, paired_difference
from klda_bench.suite import Cell, unpack_bits


@dataclass(frozen=True)
class Entry:
    """One cell of a table.

    Parameters
    ----------
    ours : Spread or None
        Measured here.
    paper : paper.Figure or None
        Published.
    missing : str
        Why there is no figure of ours.
    note : str
        For instance the part of the data that was used.
    seeds : int
        Seeds that were asked for; fewer in `ours` are said.
    metrics : dict of str to Spread
        Every metric that was measured.
    """

    ours: Spread | None = None
    paper: paper.Figure | None = None
    missing: str = ""
    note: str = ""
    seeds: int = 0
    metrics: dict[str, Spread] = field(default_factory=dict)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in points."""
        if self.ours is None or self.paper is None:
            return None
        return self.ours.mean - self.paper.value

    @property
    def own_text(self) -> str:
        """Ours as text: mean and spread, and the number of seeds where it is small."""
        if self.ours is None:
            return self.missing or "-"
        return f"{spread_text(self.ours, self.seeds)}{'*' if self.note else ''}"

    @property
    def paper_text(self) -> str:
        """The paper's as text."""
        if self.paper is None:
            return "-"
        digits = 2 if self.paper.source == "SURVEY" else 1
        return f"{self.paper.value:.{digits}f}"

    @property
    def difference_text(self) -> str:
        """The difference as text."""
        return "-" if self.difference is None else f"{self.difference:+.1f}"


def spread_text(spread: Spread, seeds: int = 0) -> str:
    """Mean and standard deviation as text.

    Parameters
    ----------
    spread : Spread
        What to show.
    seeds : int, default=0
        Seeds that were asked for; one seed, or fewer than these, are said.
    """
    shown = f"{spread.mean:.2f}" if spread.n < 2 else f"{spread.mean:.2f} ± {spread.std:.2f}"
    few = spread.n == 1 or spread.n < seeds
    return f"{shown} ({spread.n} seed{'' if spread.n == 1 else 's'})" if few else shown


@dataclass
class Table:
    """A table of accuracies.

    Parameters
    ----------
    name : str
        Stem of its files.
    title : str
        Heading.
    row_names, rows : list of str
        Keys and headings of the rows.
    column_names, columns : list of str
        Keys and headings of the columns.
    entries : dict
        ``entries[row, column]``.
    notes : list of str
        Below the table.
    command : str
        What made it.
    metric : str
        What its figures are, one of :data:`klda_bench.metrics.METRICS`.
    """

    name: str
    title: str
    row_names: list[str]
    rows: list[str]
    column_names: list[str]
    columns: list[str]
    entries: dict[tuple[str, str], Entry]
    notes: list[str] = field(default_factory=list)
    command: str = ""
    metric: str = FINAL

    def to_json(self) -> dict[str, Any]:
        """Plain data, all figures unrounded."""
        return {
            "name": self.name,
            "title": self.title,
            "metric": self.metric,
            "command": self.command,
            "notes": self.notes,
            "columns": [
                {"name": name, "title": title}
                for name, title in zip(self.column_names, self.columns, strict=True)
            ],
            "rows": [
                {
                    "name": name,
                    "title": title,
                    "cells": {column: self._cell(name, column) for column in self.column_names},
                }
                for name, title in zip(self.row_names, self.rows, strict=True)
            ],
        }

    def _cell(self, row: str, column: str) -> dict[str, Any]:
        entry = self.entries[row, column]
        return {
            "ours": None if entry.ours is None else entry.ours.to_json(),
            "paper": None if entry.paper is None else entry.paper.value,
            "paper_backbone": None if entry.paper is None else entry.paper.backbone,
            "difference": entry.difference,
            "missing": entry.missing,
            "note": entry.note,
            "shown": entry.own_text,
            "metrics": {name: spread.to_json() for name, spread in entry.metrics.items()},
        }

    def to_csv(self) -> str:
        """One line a row; for each column our mean and spread, the paper's, all metrics."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        head = ["row"]
        for name in self.column_names:
            head += [f"{name}_mean", f"{name}_std", f"{name}_seeds", f"{name}_paper"]
            head += [f"{name}_difference", f"{name}_note"]
            head += [f"{name}_{metric}{end}" for metric in METRICS for end in ("", "_std")]
        writer.writerow(head)
        for row in self.row_names:
            line: list[Any] = [row]
            for column in self.column_names:
                line += _csv_cells(self.entries[row, column])
            writer.writerow(line)
        return stream.getvalue()

    def write(self, folder: Path) -> list[Path]:
        """Write ``name.csv`` and ``name.json`` into a folder; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        csv_file, json_file = folder / f"{self.name}.csv", folder / f"{self.name}.json"
        csv_file.write_text(self.to_csv(), encoding="utf-8")
        json_file.write_text(json.dumps(self.to_json(), indent=1) + "\n", encoding="utf-8")
        return [csv_file, json_file]


def _csv_cells(entry: Entry) -> list[Any]:
    own: list[Any] = ["", "", ""]
    if entry.ours is not None:
        std = "" if entry.ours.n < 2 else f"{entry.ours.std:.4f}"
        own = [f"{entry.ours.mean:.4f}", std, entry.ours.n]
    published = "" if entry.paper is None else entry.paper.value
    difference = "" if entry.difference is None else f"{entry.difference:.4f}"
    more: list[str] = []
    for metric in METRICS:
        spread = entry.metrics.get(metric)
        more.append("" if spread is None else f"{spread.mean:.4f}")
        more.append("" if spread is None or spread.n < 2 else f"{spread.std:.4f}")
    return [*own, published, difference, entry.missing or entry.note, *more]


def entry_of(
    cells: Sequence[Cell],
    published: paper.Figure | None,
    metric: str = FINAL,
    seeds: int | None = None,
) -> Entry:
    """Reduce the runs of one table cell.

    Parameters
    ----------
    cells : sequence of Cell
        One for each seed.
    published : paper.Figure or None
        The paper's figure.
    metric : str
        Key of the record's metrics.
    seeds : int, optional
        Seeds that were asked for; as many as there are cells when not given.
    """
    records = [cell.record for cell in cells if cell.record is not None]
    asked = len(cells) if seeds is None else seeds
    found: dict[str, Spread] = {}
    for name in METRICS:
        values = [record["metrics"].get(name) for record in records]
        measured = [value for value in values if value is not None]
        if measured:
            found[name] = Spread.of(measured)
    if metric in found:
        note = records[0]["settings"]["subset"]
        return Entry(found[metric], published, note=note, seeds=asked, metrics=found)
    gaps = [cell.gap for cell in cells if cell.gap]
    missing = gaps[0] if gaps else ("not measured" if records else "not run here")
    return Entry(None, published, missing=missing, seeds=asked, metrics=found)


def reasons(cells: Sequence[Cell], status: str = "unavailable") -> list[str]:
    """Why cells of a status have no figure, the first line of each reason once."""
    own = [cell.reason for cell in cells if cell.reason and cell.status == status]
    return list(dict.fromkeys(reason.splitlines()[0] for reason in own))


def notes_of(entries: dict[tuple[str, str], Entry], cells: Sequence[Cell]) -> list[str]:
    """Collect a table's notes: subsets, sources of the paper's figures, reasons for gaps."""
    found = [f"* {column}: {entry.note}" for (_, column), entry in entries.items() if entry.note]
    sources = {entry.paper.source for entry in entries.values() if entry.paper is not None}
    found += [f"Paper: {paper.SOURCES[source]}." for source in sorted(sources)]
    found += [f"Missing: {reason}" for reason in reasons(cells)]
    found += [f"Failed: {reason}" for reason in reasons(cells, "failed")]
    return list(dict.fromkeys(found))


def pairs_against(cells: Sequence[Cell], base: str, others: Sequence[str]) -> list[dict[str, Any]]:
    """Paired comparison of methods with a base method on the same test rows.

    Parameters
    ----------
    cells : sequence of Cell
        Runs of several methods.
    base : str
        Method that the others are compared with.
    others : sequence of str
        The other methods.

    Returns
    -------
    list of dict
        ``dataset``, ``method``, ``difference`` (method minus base, points), ``standard_error``
        and ``seeds``.
    """
    correct: dict[tuple[str, str], list[np.ndarray]] = {}
    for cell in cells:
        if cell.record is not None and cell.record["correct"]:
            # Rows come in the test file's order whatever the order of classes.
            bits = unpack_bits(cell.record["correct"], cell.record["rows_predicted"])
            correct.setdefault((cell.dataset, cell.method), []).append(bits)
    lines = []
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        for method in others:
            a, b = correct.get((dataset, method)), correct.get((dataset, base))
            if method == base or not a or not b or len(a[0]) != len(b[0]):
                continue
            difference, error = paired_difference(np.stack(a), np.stack(b))
            lines.append(
                {
                    "dataset": dataset,
                    "method": method,
                    "base": base,
                    "difference": round(difference, 4),
                    "standard_error": round(error, 4),
                    "seeds": len(a),
                }
            )
    return lines
