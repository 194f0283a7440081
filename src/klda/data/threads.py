"""Two threads at once, in order: one that reads ahead, one that keeps up with the caller.

Both hold only a few items, raise errors in the caller as if the two had taken turns, and leave no
thread behind when the caller stops early or is interrupted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from queue import Empty, Queue
from typing import Any, TypeVar

T = TypeVar("T")
U = TypeVar("U")

DEPTH = 2  # items that wait, at most
PATIENCE = 2.0  # seconds to wait for a thread that may be stuck reading from a silent pipe


def read_ahead(items: Iterable[T], *, patience: float = PATIENCE) -> Generator[T, None, None]:
    """Iterate in a thread, a few items ahead of the caller.

    An error in making an item is raised in its place. When the caller stops early or closes the
    generator, the thread is stopped; it is not waited for longer than the `patience`, in seconds,
    which is why it is a daemon and not an executor's thread.
    """
    waiting: Queue[tuple[Any, bool]] = Queue(DEPTH)  # items, and in the end the error, or None
    stopped = threading.Event()

    def hand_over() -> None:
        failure = None
        try:
            iterator: Any = iter(items)
            # Closed here, so that files are closed by the thread that opened them.
            with closing(iterator) if hasattr(iterator, "close") else nullcontext():
                for item in iterator:
                    waiting.put((item, False))
                    if stopped.is_set():
                        break
        except BaseException as error:
            failure = error
        if not stopped.is_set():
            waiting.put((failure, True))

    thread = threading.Thread(target=hand_over, name="read ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, at_end = waiting.get()
            if at_end:
                break
            yield item
        if item is not None:
            raise item
    finally:
        stopped.set()
        with suppress(Empty):  # room for what the thread is about to hand over
            while True:
                waiting.get_nowait()
        thread.join(patience)


def map_behind(work: Callable[[T], U], items: Iterable[T]) -> Generator[U, None, None]:
    """Work on one item after another in a thread, while the caller's thread makes the next item.

    Of the errors in work and in making items, the one of the earliest item is raised. If the caller
    stops early or is interrupted, the item at work is finished and those that wait are dropped.
    """
    failed = threading.Event()

    def take(item: T) -> Any:
        if failed.is_set():
            return None
        try:
            return work(item)
        except BaseException:
            failed.set()
            raise

    given: deque[Future[U]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="work behind") as pool:
        try:
            for item in items:
                if len(given) > 1:
                    yield given.popleft().result()
                given.append(pool.submit(take, item))
        except Exception:
            for one in given:
                one.result()  # an error of an earlier item is raised instead
            raise
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        while given:
            yield given.popleft().result()
