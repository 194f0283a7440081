"""One JSON line a finished run, in a file that only grows.

A line is written in one piece and flushed to the disk. A run killed while writing leaves at most
one torn line; the next writer closes it with a newline and readers pass over it, so that nothing
finished is lost and nothing unfinished counts.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from klda.errors import KldaError
from klda_bench.identity import key_of, upgrade

__all__ = ["ResultStore", "key_of"]

logger = logging.getLogger(__name__)


class ResultStore:
    """Append-only store of finished runs.

    Parameters
    ----------
    path : path-like
        The ``.jsonl`` file; created, with its folder, on the first write.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one finished run.

        Parameters
        ----------
        record : mapping
            JSON-able; must have a ``key``.
        """
        line = (json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n").encode()
        try:
            self._write(line)
        except OSError as error:
            raise KldaError(
                f"output={str(self.path.parent)!r}: the result of a run can't be written ({error})."
                " Make room or give another --output; finished runs are kept."
            ) from error

    def _write(self, line: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{self.path}.lock"):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    line = b"\n" + line
                _write_all(descriptor, line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def records(self) -> Iterator[dict[str, Any]]:
        """All finished runs, oldest first, in this version's form; torn lines are passed over."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                try:
                    record = json.loads(line)
                except ValueError:
                    logger.warning("%s:%d: torn line passed over", self.path, number)
                    continue
                if isinstance(record, dict) and "key" in record:
                    yield upgrade(record)

    def latest(
        self, accept: Callable[[dict[str, Any]], bool] = lambda record: True
    ) -> dict[str, dict[str, Any]]:
        """Pick the best record of each cell: a later one wins, unless it measured less.

        Parameters
        ----------
        accept : callable
            Says of a record whether it counts; all do when not given.
        """
        found: dict[str, dict[str, Any]] = {}
        for record in filter(accept, self.records()):
            old = found.get(record["key"])
            if old is None or record.get("evaluate") == "each" or old.get("evaluate") != "each":
                found[record["key"]] = record
        return found


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
