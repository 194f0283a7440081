"""A file of rows, whatever its kind: which columns are used, and which values they may hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from klda.checks import Modality, first_not_finite
from klda.data.batch import BATCH_ROWS, Batch, Position, TableError, damage_named
from klda.data.columns import (
    GUESSED,
    INPUT_COLUMNS,
    LABEL_COLUMNS,
    Columns,
    guess_column,
    input_in_cell,
    label_in_cell,
)
from klda.errors import KldaError
from klda.labels import Label


@dataclass(frozen=True)
class Table:
    """A file of rows, opened each time :meth:`batches` is called.

    `read` is its reader: a function of the table, whether labels are needed, and the most rows of a
    batch, which yields the rows as they are in the file. The table checks them.
    """

    path: Path  # the file or folder; the name that errors call it by
    modality: Modality
    read: Callable[[Table, bool, int], Iterator[Batch]]
    columns: Columns = GUESSED  # those that were asked for
    classes: Collection[Label] = field(default=(), repr=False)  # of the model the rows are for
    content: bytes | None = field(default=None, repr=False)  # if it is not a file on disk
    header: bool = True  # whether the first line of a CSV names the columns, or is a row
    typed: bool = False  # whether integers are labels of their own, as in Python, or text

    def batches(
        self, *, labels: bool = True, rows: int | None = None, skip: int = 0
    ) -> Iterator[Batch]:
        """Read the file in batches of `rows` rows; the default depends on the modality.

        With `labels` each row must have one; without, no labels are read. The first `skip` rows are
        read but not checked, and leave the batches after them as they are. There is at least one
        batch, unless rows are skipped, and none is empty.
        """
        seen = 0
        for raw in self._unchecked(labels, rows or BATCH_ROWS[self.modality]):
            before, seen = seen, seen + len(raw)
            if seen > skip:
                skipped = max(skip - before, 0)
                yield self.check(raw.without_first(skipped), before + skipped)
        if not seen:
            raise TableError(f"{self.path} is empty: it holds no rows.")

    def _unchecked(self, labels: bool, rows: int) -> Iterator[Batch]:
        seen = 0
        with damage_named(lambda: f"{self.path}, after row {seen}" if seen else self.path):
            for raw in self.read(self, labels, rows):
                seen += len(raw)
                yield raw

    def check(self, raw: Batch, before: int) -> Batch:
        """Check the rows that a reader found; `before` is the number of rows read earlier."""
        inputs, labels = raw.inputs, raw.labels
        if self.modality == "features":
            inputs = np.array(inputs)
            self._check_finite(inputs, before)
        elif isinstance(inputs, list):
            as_input = partial(input_in_cell, modality=self.modality, folder=self.path.parent)
            inputs = self.each(as_input, inputs, before, raw.lines)
        if labels is not None:
            as_own_label = partial(label_in_cell, classes=self.classes, typed=self.typed)
            labels = self.each(as_own_label, labels, before, raw.lines)
        return replace(raw, inputs=inputs, labels=labels, end=Position(0, before + len(raw)))

    def _check_finite(self, rows: np.ndarray, before: int) -> None:
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            return  # not feature rows at all: the encoder says so
        broken = first_not_finite(rows)
        if broken is not None:
            raise TableError(
                f"{self.path}, row {before + broken + 1}: a feature is not finite in float32 (NaN, "
                "infinite or too large). Leave such rows out or repair them."
            )

    def each(
        self,
        check: Callable[[Any], Any],
        values: Sequence[Any],
        before: int,
        lines: Sequence[int] | None = None,
    ) -> list[Any]:
        """Check the values of a column; an error names the row or the line.

        `before` is the number of rows read earlier.
        """
        checked = []
        for i, value in enumerate(values):
            try:
                checked.append(check(value))
            except KldaError as error:
                where = f"row {before + i + 1}" if lines is None else f"line {lines[i]}"
                raise TableError(f"{self.path}, {where}: {error}") from error
        return checked

    # ---------------------------------------------------------------- columns

    def choose_columns(self, names: Sequence[str], need_labels: bool) -> tuple[str, str | None]:
        """Return the input and the label column: those asked for, or guessed from their names.

        `names` are the columns there are; without `need_labels` no label column is returned.
        """
        guesses = INPUT_COLUMNS[self.modality]
        inputs = self.choose_input(names, guesses)
        label = self._find(names, "label_column", self.columns.label, LABEL_COLUMNS)
        # In a table of two columns, knowing one is knowing the other.
        if len(names) == 2 and (inputs is None) != (label is None):
            other = next(name for name in names if name not in (inputs, label))
            inputs, label = inputs or other, label or other
        if inputs is None and len(names) == 1 and not need_labels:
            inputs = names[0]
        if inputs is None:
            raise self._not_found(names, self.modality, "input_column", guesses)
        if not need_labels:
            return inputs, None
        if inputs == label:
            raise TableError(
                f"{self.path}: the column {label!r} can't hold both the {self.modality} and the "
                f"label; its columns are: {', '.join(names)}. Set input_column and label_column."
            )
        return inputs, label or self.choose_label(names)

    def choose_input(self, names: Sequence[str], guesses: Sequence[str] = ()) -> str | None:
        """Return the input column: the one asked for, or one with the first of some names."""
        return self._find(names, "input_column", self.columns.input, guesses)

    def choose_label(self, names: Sequence[str]) -> str:
        """Return the label column alone."""
        label = self._find(names, "label_column", self.columns.label, LABEL_COLUMNS)
        if label is None:
            raise self._not_found(names, "label", "label_column", LABEL_COLUMNS)
        return label

    def _find(
        self, names: Sequence[str], parameter: str, asked: str | None, guesses: Sequence[str]
    ) -> str | None:
        if asked is None:
            return guess_column(names, guesses)
        found = asked if asked in names else guess_column(names, [asked.strip().lower()])
        if found is None:
            raise TableError(
                f"{parameter}={asked!r}: {self.path} has no column {asked!r}; its columns are: "
                f"{', '.join(names)}."
            )
        return found

    def _not_found(
        self, names: Sequence[str], what: str, parameter: str, guesses: Sequence[str]
    ) -> TableError:
        return TableError(
            f"{self.path}: can't tell which column holds the {what}; its columns are: "
            f"{', '.join(names)}. Set {parameter} (names found without it: {', '.join(guesses)})."
        )
