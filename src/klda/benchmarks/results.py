"""One JSON line a finished run, in a file that only grows.

A line is written in one piece and flushed to the disk. A run killed while writing leaves at most
one torn line; the next writer closes it with a newline and readers pass over it, so that nothing
finished is lost and nothing unfinished counts.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

logger = logging.getLogger(__name__)


def key_of(settings: Mapping[str, Any]) -> str:
    """Name of a cell: the same settings give the same key, whatever their order.

    Parameters
    ----------
    settings : mapping
        JSON-able settings that determine the numbers.

    Returns
    -------
    str
        20 hexadecimal digits.
    """
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:20]


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
        """All finished runs, oldest first; torn lines are passed over."""
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
                    yield record

    def latest(self) -> dict[str, dict[str, Any]]:
        """Pick the best record of each cell: a later one wins, unless it measured less."""
        found: dict[str, dict[str, Any]] = {}
        for record in self.records():
            old = found.get(record["key"])
            if old is None or record.get("evaluate") == "each" or old.get("evaluate") != "each":
                found[record["key"]] = record
        return found


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
