"""Threads that each feed a stream of their own on a GPU.

One member's factorisation leaves most of a GPU idle; the work of other members fills it. Threads
and streams last as long as the process: torch keeps freed memory for the stream that used it, so
streams made anew each time would take new memory each time, and wait for the whole device to get
it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

T = TypeVar("T")

MOST_LANES = 8

_LANES: dict[str, list[_Lane]] = {}
_MAKING = threading.Lock()


class _Lane:
    """One thread and one stream of a device."""

    def __init__(self, torch: Any, device: str) -> None:
        self._torch, self._device = torch, device
        self._stream = torch.cuda.Stream(device)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="klda-lane")

    def submit(self, action: Callable[[], T], ready: Any) -> Future[T]:
        """Run an action in this lane once an event of the caller's stream has come to pass."""
        return self._thread.submit(self._run, action, ready)

    def _run(self, action: Callable[[], T], ready: Any) -> T:
        cuda = self._torch.cuda
        with cuda.device(self._device), cuda.stream(self._stream):
            self._stream.wait_event(ready)
            result = action()
            self._stream.synchronize()
        return result


def side_by_side(device: str, actions: Sequence[Callable[[], T]]) -> list[T]:
    """Run actions at the same time on a GPU; return when all are done, with their results."""
    import torch

    lanes = _lanes(torch, device, min(len(actions), MOST_LANES))
    ready = torch.cuda.current_stream(device).record_event()
    futures = [lanes[i % len(lanes)].submit(action, ready) for i, action in enumerate(actions)]
    wait(futures)
    return [future.result() for future in futures]


def _lanes(torch: Any, device: str, n: int) -> list[_Lane]:
    with _MAKING:
        if device not in _LANES:
            # torch loads its linear algebra at the first call, and fails if that comes from two
            # threads at once.
            torch.linalg.cholesky_ex(torch.ones((1, 1), device=device))
        lanes = _LANES.setdefault(device, [])
        while len(lanes) < n:
            lanes.append(_Lane(torch, device))
        return lanes[:n]
