"""A file of rows, whatever its kind: read, its columns chosen, its rows checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from klda.checks import Modality, finite_rows
from klda.data.batch import GUESSED, BadRow, Batch, Block, Contents, Layout, Position
from klda.data.cells import input_in_cell, joined, label_in_cell
from klda.data.chunks import BATCH_ROWS
from klda.data.columns import choose, described, listed
from klda.data.damage import BadRowError, TableError, damage_named
from klda.errors import KldaError
from klda.labels import CaseFolder, Label

NOT_FINITE = (
    "a feature is not finite in float32 (NaN, infinite or too large). Leave such rows out, or "
    "repair them."
)
log = logging.getLogger("klda.data")


@dataclass(frozen=True)
class Table:
    """A file of rows, opened each time :meth:`batches` is called."""

    path: Path  # the file or folder; the name that errors call it by
    modality: Modality
    read: Callable[[Table], AbstractContextManager[Contents]]  # its reader
    layout: Layout = GUESSED  # what the user says of it
    classes: Collection[Label] = field(default=(), repr=False)  # of the model the rows are for
    open: Callable[[], BinaryIO] | None = field(default=None, repr=False)  # if it is no file
    typed: bool = False  # whether integers are labels of their own, as in Python, or text

    def batches(
        self,
        *,
        labels: bool = True,
        rows: int | None = None,
        skip: int = 0,
        keep: Collection[str] | None = (),
        bad: Callable[[BadRow], None] | None = None,
    ) -> Iterator[Batch]:
        """Read the file in batches of `rows` rows; the default depends on the modality.

        With `labels` each row must have one; without, no labels are read. The first `skip` rows are
        read but not checked, and leave the batches after them as they are. There is at least one
        batch, unless rows are skipped, and none is empty.

        Columns to `keep` are in the ``cells`` of the batches; None keeps all. Rows that can't be
        used are errors, unless a function takes the `bad` ones.
        """
        seen = 0

        def where() -> str:
            return f"{self.path}, after row {seen}" if seen else str(self.path)

        with damage_named(where), self.read(self) as contents:
            layout = self._chosen(contents, labels)
            # All of a row that can't be used is handed over.
            wanted = _wanted(contents, layout, self.modality, keep if bad is None else None)
            for block in contents.blocks(wanted, rows or BATCH_ROWS[self.modality]):
                before, seen = seen, seen + len(block)
                if seen > skip:
                    passed = max(skip - before, 0)
                    batch = self._checked(block.rest(passed), layout, before + passed, bad)
                    if len(batch):
                        yield batch if keep is None else _keeping(batch, keep)
        if not seen:
            raise TableError(f"{self.path} is empty: it holds no rows.")

    def _chosen(self, contents: Contents, labels: bool) -> Layout:
        """Choose the columns, and say which, unless their names leave no doubt."""
        if not contents.names:  # no row can be read
            return self.layout
        layout = choose(contents, self.layout, self.modality, labels, str(self.path))
        is_plain = layout.inputs in (("text",), self.layout.inputs)
        if self.modality == "text" and not (is_plain and layout.label in (None, "label")):
            log.info("%s: reads %s.", self.path, described(layout))
        return layout

    def _checked(
        self, block: Block, layout: Layout, before: int, bad: Callable[[BadRow], None] | None
    ) -> Batch:
        """Check the rows of a block; `before` is the number of rows read earlier."""
        problems = dict(block.broken or {})
        inputs = self._inputs(block, layout, problems)
        labels = None
        if layout.label is not None:
            as_own_label = partial(label_in_cell, classes=self.classes, typed=self.typed)
            labels = _each(as_own_label, block.column(layout.label), problems)
            if self.layout.ignore_case:
                labels = list(map(CaseFolder(self.classes), labels))
        for i in sorted(problems):
            line = block.lines[i] if block.lines else 0
            place = f"line {line}" if line else f"row {before + i + 1}"
            if bad is None:
                raise BadRowError(f"{self.path}, {place}: {problems[i]}")
            bad(BadRow(str(self.path), place, problems[i], block.row(i)))
        cells, end = dict(block.columns), Position(0, before + len(block))
        numbers: Sequence[int] = range(before + 1, end.rows + 1)
        if self.modality == "features":
            for name in layout.inputs:
                cells.pop(name, None)
        if problems:
            good = [i for i in range(len(block)) if i not in problems]
            inputs, labels = _some(inputs, good), labels and _some(labels, good)
            numbers = _some(numbers, good)
            cells = {name: _some(column, good) for name, column in cells.items()}
        return Batch(inputs, labels, block.fraction, end, cells, layout, numbers)

    def _inputs(self, block: Block, layout: Layout, problems: dict[int, str]) -> Any:
        columns = [block.column(name) for name in layout.inputs]
        if self.modality == "features":
            rows = np.column_stack(columns)
            if rows.dtype.kind not in "fiub":
                names = " and ".join(map(repr, layout.inputs))
                raise TableError(f"{self.path}: {names} can't be features: not numbers.")
            for i in np.flatnonzero(~finite_rows(rows)).tolist():
                problems[i] = NOT_FINITE
            return rows
        values = columns[0] if len(columns) == 1 else list(map(joined, zip(*columns, strict=True)))
        if isinstance(values, np.ndarray):  # images
            return values
        as_input = partial(input_in_cell, modality=self.modality, folder=self.path.parent)
        inputs = _each(as_input, values, problems)
        changed = (a is not b and a is not None for a, b in zip(inputs, values, strict=True))
        if self.modality == "text" and any(changed):
            log.info("%s: has HTML, which is read without its tags.", self.path)
        return inputs


def _wanted(
    contents: Contents, layout: Layout, modality: str, keep: Collection[str] | None
) -> list[str] | None:
    """Return the columns to read; None for all."""
    if keep is None and modality != "features":
        return None
    if keep is None:
        keep = [name for name in contents.names if contents.features and name != layout.label]
    for name in keep:
        if name not in contents.names:
            raise TableError(
                f"There is no column {name!r} to keep; there are: {listed(contents.names)}."
            )
    label = () if layout.label is None else (layout.label,)
    return list(dict.fromkeys((*layout.inputs, *label, *keep)))


def _keeping(batch: Batch, names: Collection[str]) -> Batch:
    cells = batch.cells or {}
    return replace(batch, cells={name: cells[name] for name in names} or None)


def _each(
    check: Callable[[Any], Any], values: Sequence[Any], problems: dict[int, str]
) -> list[Any]:
    """Check the values of a column; add what is wrong to the problems of their rows."""
    checked = []
    for i, value in enumerate(values):
        try:
            checked.append(check(value))
        except KldaError as error:
            problems.setdefault(i, str(error))
            checked.append(None)
    return checked


def _some(values: Any, rows: Sequence[int]) -> Any:
    return values[rows] if isinstance(values, np.ndarray) else [values[i] for i in rows]
