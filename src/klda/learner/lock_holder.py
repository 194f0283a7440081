"""Which process holds a lock: written into the lock's file, for the message that others get."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock

LONGEST = 200  # characters of a command


@contextmanager
def noted(lock: BaseFileLock) -> Iterator[None]:
    """Note this process in the file of a lock that it holds, until it is about to release it."""
    if lock.lock_counter > 1:  # noted when it was first acquired
        yield
        return
    _write(lock, f"{os.getpid()}: {' '.join(sys.argv)[:LONGEST]}\n")
    try:
        yield
    finally:
        _write(lock, "")


def told(lock: BaseFileLock) -> str:
    """Say which process holds a lock, as ``" (process 4711: klda serve --model bot)"``."""
    holder = ""
    with suppress(OSError):
        holder = Path(lock.lock_file).read_text(encoding="utf-8", errors="replace").strip()
    return f" (process {holder})" if holder else ""


def _write(lock: BaseFileLock, text: str) -> None:
    with suppress(OSError):  # a file that is locked can't be written on Windows
        Path(lock.lock_file).write_text(text, encoding="utf-8", errors="replace")
