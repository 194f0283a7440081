"""Ctrl-C between steps, not in the middle of one: held back until then, or not heard at all."""

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
    if not _can_be_interrupted():
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


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Hold off Ctrl-C for the moment it takes to save.

    Without this an interrupt between the save and the end of the command would leave the model
    changed by a command that says it was interrupted.
    """
    if not _can_be_interrupted():
        yield
        return
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _can_be_interrupted() -> bool:
    return threading.current_thread() is threading.main_thread()
