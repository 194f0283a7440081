"""An import: rows that are read, looked at, and taught in the background while the page waits.

It goes through its stages once::

    open <-> reading        its columns may be chosen; a task looks for wrong labels
    teaching -> done        or stopping -> cancelled, by who asks for it
    done, cancelled -> undone
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from klda.checks import is_blank
from klda.data import BadRow, Layout
from klda.errors import KldaError
from klda.inspection.suspects import Suspect
from klda.labels import Label, similar_names, spelt
from klda.server.changes import Key, Undo, digest
from klda.server.errors import INTERNAL, ServerError
from klda.server.inputs import column_names, rows_of_file, texts_of_file
from klda.server.page.routes import PAGE
from klda.server.service import Service
from klda.server.settings import MAX_COMPARED

CHUNK = 64  # rows that are encoded between two looks at the progress
PART = 4096  # rows that are taught as one change
MOST_ROWS = 100_000  # of a file of texts
RARER = 4  # times fewer rows: a new class with a name like another's is likely a misspelling
LEAVE_OUT, AS = "leave-out", "as:"  # what is to become of a row

Stage = Literal["open", "reading", "teaching", "stopping", "done", "cancelled", "undone"]
_IS = {
    "open": "was not taught yet",
    "reading": "is being read",
    "teaching": "is being taught already",
    "stopping": "is being cancelled",
    "done": "was taught already",
    "cancelled": "was cancelled",
    "undone": "was undone",
}
# New classes, each with another that is called much alike, and whether the two are one.
Near = list[tuple[Label, Label, bool]]

log = logging.getLogger("klda.server")


@dataclass(eq=False)
class Import:
    """A file of texts, or image files, on the way into the model."""

    service: Service
    name: str
    content: bytes = b""  # of a file of texts
    inputs: list[Any] = field(default_factory=list)  # texts, or image files
    labels: list[Label] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)  # rows that can't be used
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    stage: Stage = "open"
    # What was read:
    columns: list[str] = field(default_factory=list)
    layout: Layout = field(default_factory=Layout)
    problem: str = ""  # why its rows can't be read, if the choice of other columns may help
    unsorted: list[str] = field(default_factory=list)  # texts that have no class
    given: dict[str, str] = field(default_factory=dict)  # what was chosen for names and rows
    waits: bool = False  # whether its texts were put into the Inbox
    # What is known of the rows:
    rows: list[np.ndarray] = field(default_factory=list)  # features of the next inputs
    done: int = 0  # rows encoded
    suspects: list[Suspect] | None = None  # rows to look at; None before they are found
    unchecked: str = ""  # why they can't be found
    # What was taught:
    taught: int = 0  # rows that the model did not have
    began: float = 0.0
    seconds: float = 0.0  # that it took
    changes: list[int] = field(default_factory=list)  # their numbers
    new: set[Label] = field(default_factory=set)
    error: str = ""
    _task: asyncio.Task | None = None  # looks at the rows, or teaches them

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self.inputs)

    @property
    def is_running(self) -> bool:
        """Whether rows are being taught."""
        return self.stage in ("teaching", "stopping")

    @property
    def speed(self) -> float:
        """Rows per second."""
        seconds = self.seconds or time.monotonic() - self.began
        return self.done / max(seconds, 1e-3)

    def _go_on(self, stage: Stage, *after: Stage) -> None:
        if self.stage not in after:
            raise ServerError(f"This import {_IS[self.stage]}: reload the page.", 409)
        self.stage = stage

    # ------------------------------------------------------------------ reading

    async def read(self, layout: Layout, *, has_classes: bool = True) -> None:
        """Find the columns and read the rows; those that can't be used are set aside."""
        self._go_on("reading", "open")
        try:
            await self._stop_checking()
            self.layout, self.inputs, self.labels, self.bad = layout, [], [], []
            self.problem, self.unsorted, self.given, self.rows, self.done = "", [], {}, [], 0
            await asyncio.to_thread(self._read, has_classes)
        finally:
            self.stage = "open"

    def _read(self, has_classes: bool) -> None:
        file, layout = (self.content, self.name), self.layout
        self.columns = column_names(*file, layout)
        try:
            if has_classes:
                known = self.service.snapshot.counts
                found = rows_of_file(*file, known, layout, skip_bad=True, most=MOST_ROWS)
                self.inputs, self.labels, self.layout, self.bad = found
                if any(self._has_no_class(one.cells) for one in self.bad):
                    texts, rows, _ = texts_of_file(*file, self.layout, MOST_ROWS)
                    pairs = zip(texts, rows, strict=True)
                    self.unsorted = [text for text, row in pairs if self._has_no_class(row)]
                    self.bad = [one for one in self.bad if not self._has_no_class(one.cells)]
                return
        except KldaError as error:
            _raise_too_large(error)  # with other columns, there are as many rows
            self.problem = str(error)
        try:  # perhaps there are texts, and no classes
            self.unsorted, _, self.layout = texts_of_file(*file, layout)
        except KldaError as error:
            _raise_too_large(error)
            if len(self.columns) < 2:
                raise ServerError(self.problem) from error

    def _has_no_class(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row of the file has a text, and no class."""
        return is_blank(row.get(str(self.layout.label))) and not all(
            is_blank(row.get(name)) for name in self.layout.inputs
        )

    async def choose(self, given: dict[str, str]) -> None:
        """Take what was chosen for names and rows, and look at the rows again."""
        self._go_on("open", "open")
        self.given = given
        await self._stop_checking()

    @property
    def near(self) -> Near:
        """New classes that are called much like others and have few rows beside them.

        Two are one if that was chosen, or if only their spelling differs and nothing was chosen.
        """
        known, counts = self.service.snapshot.counts, Counter(self.labels)
        examples = counts + Counter(known)
        near = []
        for label, other in similar_names([one for one, _ in counts.most_common()], known).items():
            is_same = spelt(label) == spelt(other)
            if is_same or counts[label] * RARER <= examples[other]:
                chosen = self.given.get(f"{AS}{label}")
                near.append((label, other, is_same if chosen is None else chosen == str(other)))
        return near

    def meant(self, near: Near) -> list[Label]:
        """Return the labels, with one name for those that are one class."""
        same = {name: other for name, other, is_same in near if is_same}
        return [same.get(label, label) for label in self.labels]

    # ------------------------------------------------------------------ looking at the rows

    def check(self) -> None:
        """Look for wrong labels and duplicates in the background, unless that was begun."""
        if self.total > MAX_COMPARED:
            self.unchecked = f"it compares at most {MAX_COMPARED:,} rows."
        elif self.inputs and self.stage == "open" and self._task is None:
            self._task = asyncio.create_task(self._check())

    async def _check(self) -> None:
        try:
            await self._encode(self.total)
            find = self.service.snapshot.learner.suspects_rows
            self.suspects = await self.service.run(find, self.rows[0], self.meant(self.near))
        except KldaError as error:
            self.unchecked = str(error)
        except Exception:
            log.exception("a table could not be checked")
            self.unchecked = INTERNAL

    async def _stop_checking(self) -> None:
        """Stop; the next `check` begins again, where the rows are encoded to."""
        self.drop()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._task, self.suspects, self.unchecked = None, None, ""

    def drop(self) -> None:
        """Stop looking at the rows; the import is not used any more."""
        if self._task is not None and not self.is_running:
            self._task.cancel()

    # ------------------------------------------------------------------ teaching

    async def begin(self, given: dict[str, str]) -> None:
        """Start teaching, with what was chosen for names and rows."""
        self._go_on("teaching", "open")
        self.given, suspects, check = given, self.suspects or [], self._task
        if check is not None:
            check.cancel()
            await asyncio.wait([check])
        self._take(suspects)
        self.began = time.monotonic()
        self._task = asyncio.create_task(self._teach())

    def _take(self, suspects: list[Suspect]) -> None:
        """Give rows the classes that were chosen, and leave out those that are to be left out."""
        labels = self.meant(self.near)
        named = {str(label): label for label in (*self.service.snapshot.counts, *labels)}
        chosen = {
            int(name.removeprefix("row:")): value
            for name, value in self.given.items()
            if name.startswith("row:") and name.removeprefix("row:").isdecimal()
        }
        dropped = {row for row, value in chosen.items() if value == LEAVE_OUT}
        if "duplicates" in self.given:
            dropped |= {one.row for one in suspects if one.problem == "duplicate"}
        fixed = {
            row: named[name]
            for row, value in chosen.items()
            if (name := value.removeprefix(AS)) != value and name in named
        }
        kept = [i for i in range(self.total) if i not in dropped]
        self.labels = [fixed.get(i, labels[i]) for i in kept]
        self.inputs = [self.inputs[i] for i in kept]
        if self.rows:
            self.rows = [np.concatenate(self.rows)[[i for i in kept if i < self.done]]]
            self.done = len(self.rows[0])

    async def _teach(self) -> None:
        """Teach the rows, part by part, each once if a file is sent again; an error ends it."""
        try:
            absent = set(self.labels) - set(self.service.snapshot.counts)
            for start in range(0, self.total, PART):
                part = slice(start, start + PART)
                await self._encode(min(part.stop, self.total))
                if self.stage == "stopping":
                    break
                await self._learn(part, absent)
        except KldaError as error:
            self.error = str(error)
        except Exception:
            log.exception("a table failed")
            self.error = INTERNAL
        finally:
            self.seconds, self.rows = time.monotonic() - self.began, []
            self.stage = "cancelled" if self.stage == "stopping" else "done"

    async def _encode(self, stop: int) -> None:
        """Encode the inputs before the one numbered `stop`, as far as it was not done already."""
        while self.done < stop and self.stage != "stopping":
            part = self.inputs[self.done : min(self.done + CHUNK, stop)]
            self.rows.append(await self.service.encode(part))
            self.done += len(part)
        self.rows = [np.concatenate(self.rows)] if self.rows else []

    async def _learn(self, part: slice, absent: set[Label]) -> None:
        rows, labels = self.rows[0][:PART], self.labels[part]
        self.rows = [self.rows[0][PART:]]  # what is taught is not kept
        named = [one if isinstance(one, str) else digest(one) for one in self.inputs[part]]
        key = digest(json.dumps([part.start, named, labels]).encode())
        made = await self.service.learn_rows(rows, labels, Key(key, key), PAGE)
        # A file that is sent again counts once. But if a class of it was removed in between, who
        # sends it wants the class back: its rows are taught again, with a key of this import.
        again = [i for i, label in enumerate(labels) if label in absent]
        if made.repeated and again:
            rows, labels = rows[again], [labels[i] for i in again]
            made = await self.service.learn_rows(rows, labels, Key(f"{key}-{self.id}", key), PAGE)
        if not made.repeated:
            self.changes.append(made.number)
            self.new.update(made.new_classes)
            self.taught += len(rows)

    def cancel(self) -> None:
        """Stop after the rows that are being encoded; those not taught yet are left out."""
        if self.stage == "teaching":
            self.stage = "stopping"

    async def finish(self, seconds: float) -> None:
        """Wait until the rows are taught; after some seconds, cancel what is left of them."""
        if not self.is_running or self._task is None:
            await self._stop_checking()
            return
        try:
            await asyncio.wait_for(self._task, seconds)
        except TimeoutError:
            log.warning("a table was interrupted: send it again, rows already taught count once")

    # ------------------------------------------------------------------ undoing

    async def undo(self) -> None:
        """Take back all that was taught, or nothing if a part is too old or large."""
        self._go_on(self.stage, "done", "cancelled")
        possible = {change.number for change in await self.service.undoable()}
        if not possible.issuperset(self.changes):
            raise ServerError(
                "This import can't be undone any more: it was too long ago, or too large to keep "
                "for undo. Remove its classes instead.",
                409,
            )
        while self.changes:
            await self.service.change(Undo(self.changes[-1], by=PAGE))
            self.note_undone(self.changes[-1])

    def note_undone(self, number: int) -> None:
        """Note that a change was undone."""
        if number in self.changes:
            self.changes.remove(number)
            if not self.changes and not self.is_running:
                self.stage = "undone"


def _raise_too_large(error: KldaError) -> None:
    if isinstance(error, ServerError) and error.status == 413:
        raise error
