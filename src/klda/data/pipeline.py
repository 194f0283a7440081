"""Doing two things at once, in order: reading ahead, and handing on to a thread that keeps up.

Both hold a few items at most, hand errors to the caller as they were raised, and leave no thread
behind: not when the caller stops early, not when it is interrupted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

T = TypeVar("T")

DEPTH = 2  # items that wait, at most
PATIENCE = 2.0  # seconds, for a thread that may be stuck in a read from a pipe that says nothing


class _Channel(Generic[T]):
    """A queue between two threads that either end can close."""

    def __init__(self, depth: int) -> None:
        self._items: deque[T] = deque()
        self._depth = depth
        self._closed = False
        self._changed = threading.Condition()

    def put(self, item: T) -> bool:
        """Add an item once there is room; False if the channel was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._depth)
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def get(self) -> Iterator[T]:
        """Take items until the channel is closed and empty."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._items)
                if not self._items:
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def close(self, *, discard: bool = False) -> None:
        """Take no more items; those that wait are still handed out unless discarded."""
        with self._changed:
            self._closed = True
            if discard:
                self._items.clear()
            self._changed.notify_all()


def ahead(items: Iterable[T], *, depth: int = DEPTH) -> Generator[T, None, None]:
    """Iterate in a thread of its own, a few items ahead of the caller.

    Parameters
    ----------
    items : iterable
        Only the thread touches it, from the first item to the last.
    depth : int
        Items that wait, at most. One more is in the making.

    Yields
    ------
    object
        The items in their order. An error in making one is raised in its place. A caller that
        stops early, or closes the generator, stops the thread and waits for it, if not for ever.
    """
    channel: _Channel[T] = _Channel(depth)
    failure: list[BaseException] = []

    def work() -> None:
        iterator = iter(items)
        try:
            for item in iterator:
                if not channel.put(item):
                    break
        except BaseException as error:
            failure.append(error)
        finally:
            _close(iterator, failure)
            channel.close()

    thread = threading.Thread(target=work, name="read ahead", daemon=True)
    thread.start()
    try:
        yield from channel.get()
        if failure:
            raise failure[0]
    finally:
        channel.close(discard=True)
        thread.join(PATIENCE)


def _close(iterator: Iterator[T], failure: list[BaseException]) -> None:
    """Close a generator where it was used: its files are closed now, not whenever it is freed."""
    try:
        close = getattr(iterator, "close", None)
        if close is not None:
            close()
    except BaseException as error:
        failure.append(error)


class Behind(Generic[T]):
    """Does work on one item after another in a thread, while the caller makes the next item.

    Used as a context: leaving it waits until all items are done. If the work fails, its error is
    raised by the next `put` or on leaving, rather than an error of the caller's own with a later
    item: as if the two had taken turns. If the caller is interrupted, items that wait are dropped.

    Parameters
    ----------
    work : callable
        Called with each item, in order, one at a time.
    depth : int
        Items that wait, at most.

    Examples
    --------
    >>> from klda.data.pipeline import Behind
    >>> done = []
    >>> with Behind(done.append) as worker:
    ...     for item in range(3):
    ...         worker.put(item)
    >>> done
    [0, 1, 2]
    """

    def __init__(self, work: Callable[[T], None], *, depth: int = 1) -> None:
        self._work = work
        self._channel: _Channel[T] = _Channel(depth)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="keep up", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def put(self, item: T) -> None:
        """Hand on an item, once there is room for it."""
        if not self._channel.put(item) and self._failure is not None:
            raise self._failure

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = error is not None and not isinstance(error, Exception)
        self._channel.close(discard=interrupted)
        self._thread.join()
        if self._failure is not None and not interrupted:
            raise self._failure from None

    def _run(self) -> None:
        try:
            for item in self._channel.get():
                self._work(item)
        except BaseException as error:
            self._failure = error
            self._channel.close(discard=True)
