"""Ctrl-C between steps, not in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold an interrupt back until the block is done.

    Only the main thread is ever interrupted; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    caught: list[tuple[int, FrameType | None]] = []

    def note(number: int, frame: FrameType | None) -> Any:
        caught.append((number, frame))

    if not callable(before):  # ignored, or none of Python's
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if caught:
        before(*caught[0])
