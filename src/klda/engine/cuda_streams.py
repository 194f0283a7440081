"""Work on a GPU in several streams, fed in turns by one thread.

One member's factorisation leaves most of a GPU idle; the work of other members fills it. Work
comes in steps: a job says ``yield`` where it would wait for the device, and another goes on.
Streams last as long as the process: torch keeps freed memory for the stream that used it, so
new streams each time would take new memory each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from klda.engine.arrays import Steps, T

MOST_STREAMS = 8

_STREAMS: dict[str, list[Any]] = {}
_MAKING = threading.Lock()


def side_by_side(device: str, jobs: Sequence[Steps[T]]) -> list[T]:
    """Run jobs in turns, each in a stream of its own, and return what they return.

    Work queued before in the current stream comes first, work queued after it comes last.
    """
    import torch

    streams = _streams(torch, device, min(len(jobs), MOST_STREAMS))
    caller = torch.cuda.current_stream(device)
    for stream in streams:
        stream.wait_stream(caller)

    def step(i: int) -> Callable[[], bool]:
        stream = streams[i % len(streams)]
        with torch.cuda.stream(stream):
            next(jobs[i])
            return stream.record_event().query

    try:
        return take_turns(len(jobs), step)
    finally:
        for stream in streams:
            caller.wait_stream(stream)


def take_turns(n_jobs: int, step: Callable[[int], Callable[[], bool]]) -> list[Any]:
    """Give each of some jobs its next step, those first that need not wait for it.

    Parameters
    ----------
    n_jobs : int
        Number of jobs.
    step : callable
        Does the next step of a job and returns what tells whether the one after would wait; raises
        ``StopIteration`` with the job's result.

    Returns
    -------
    list
        The results, in the order of the jobs.
    """
    results: dict[int, Any] = {}
    waiting: list[tuple[int, Callable[[], bool]]] = [(i, lambda: True) for i in range(n_jobs)]
    while waiting:
        # Where all have to wait, the one that began to wait first.
        turn = next((k for k, (_, ready) in enumerate(waiting) if ready()), 0)
        i, _ = waiting.pop(turn)
        try:
            waiting.append((i, step(i)))
        except StopIteration as end:
            results[i] = end.value
    return [results[i] for i in range(n_jobs)]


def _streams(torch: Any, device: str, n: int) -> list[Any]:
    with _MAKING:
        streams = _STREAMS.setdefault(device, [])
        while len(streams) < n:
            streams.append(torch.cuda.Stream(device))
        return streams[:n]
