"""Rows of plain values in a JSON Lines file that only grows.

A line is written in one piece and flushed to the disk. A process killed while writing leaves at
most one torn line; the next writer closes it with a newline and readers skip it, so that nothing
finished is lost and nothing unfinished counts.

Every benchmark asks for its runs (:class:`Run`), and :meth:`Results.once` makes those that the
file does not hold. A run is named by the key of its settings: everything that determines its
numbers, and nothing else.
What our own defaults mean changes with the program, so :data:`PROGRAM` is part of the settings of
their runs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from klda.errors import KldaError

logger = logging.getLogger(__name__)

Row = dict[str, Any]
Notify = Callable[[str], None]
PROGRAM = "2026-11-20.3"
"""Since when our answers are what they are: change it with them, and our runs are made again.

A test compares recorded runs with what the program answers now.
"""
NOT_OPTIONS = ("backbone", "seed", "random_state", "device")
"""Parameters of a method that are no setting of its own, or change no number."""


def key_of(settings: Mapping[str, Any]) -> str:
    """Return the name of a run: the same settings give the same key, whatever their order."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class NotWrittenError(KldaError):
    """A result can't be kept, so it makes no sense to go on."""


@dataclass(frozen=True)
class Run:
    """A run that is asked for: the settings that name it, its title, and what makes its row."""

    settings: Row
    title: str
    make: Callable[[], Row]


def silent(message: str) -> None:
    """Tell nobody what is being done."""


class Results:
    """An append-only file of rows, created with its folder on the first write."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def of(cls, output: str | os.PathLike[str]) -> Results:
        """Return the runs of the grid in an output folder."""
        return cls(Path(output) / "results.jsonl")

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row, which JSON must be able to hold."""
        text = json.dumps(row, separators=(",", ":"), allow_nan=False, default=os.fspath)
        line = f"{text}\n".encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"), self.path.open("a+b", buffering=0) as file:
                if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                    line = b"\n" + line
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
        except OSError as error:
            raise NotWrittenError(
                f"output={str(self.path.parent)!r}: a result can't be written ({error}). Make room "
                "or give another --output; finished results are kept."
            ) from error

    def rows(self) -> Iterator[Row]:
        """Yield all finished runs, oldest first; torn lines are skipped."""
        if not self.path.exists():
            return
        for number, line in enumerate(self.path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                logger.warning("%s:%d: skipped a torn line", self.path, number)
                continue
            if isinstance(row, dict) and "key" in row:
                yield row

    def once(self, run: Run, notify: Notify = silent, *, each: bool = False) -> tuple[Row, bool]:
        """Return the row of a run, and whether it was missing: then it is made and kept.

        With `each`, a row counts only if it was measured after each task.
        """
        key = key_of(run.settings)
        row = self._finished.get(key)
        if row is not None and (not each or row["evaluate"] == "each"):
            return row, False
        notify(run.title)
        row = self._finished[key] = run.make() | {"key": key}
        self.append(row)
        return row, True

    @cached_property
    def _finished(self) -> dict[str, Row]:
        return self.latest()

    def latest(self) -> dict[str, Row]:
        """Pick the row of each key that counts: the last one, unless it measured less."""
        found: dict[str, Row] = {}
        for row in self.rows():
            old = found.get(row["key"])
            if old is None or row.get("evaluate") == "each" or old.get("evaluate") != "each":
                found[row["key"]] = row
        return found
