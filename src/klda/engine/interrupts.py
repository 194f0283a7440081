"""Ctrl-C while a model is being changed in place."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_interrupts: list[tuple[Any, ...]] = []  # that came while they were held back
_handler: Any = None  # whom they are handed to in the end; None while none is held back


@contextmanager
def held_back() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done: a change in place must not stop halfway.

    Only the main thread is ever interrupted; elsewhere, and inside another such block, this does
    nothing.
    """
    global _handler
    handler = signal.getsignal(signal.SIGINT)
    main = threading.current_thread() is threading.main_thread()
    if not main or _handler is not None or not callable(handler):
        yield
        return
    _interrupts.clear()
    signal.signal(signal.SIGINT, lambda *caught: _interrupts.append(caught))
    _handler = handler
    try:
        yield
    finally:
        _handler = None
        signal.signal(signal.SIGINT, handler)
        caught, _interrupts[:] = _interrupts[:], []
        if caught:
            handler(*caught[0])


def let_interrupts_through() -> None:
    """Raise an interrupt that is being held back: called where a change can be undone.

    Any other handler might not raise, so it is called when the block is done.
    """
    main = threading.current_thread() is threading.main_thread()
    if main and _interrupts and _handler is signal.default_int_handler:
        _interrupts.clear()
        raise KeyboardInterrupt
