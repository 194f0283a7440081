"""Work on a GPU in several streams, fed in turns by one thread.

One member's factorisation leaves most of a GPU idle; the work of other members fills it. Work
comes in steps: a job says ``yield`` where it would wait for the device, and the next job goes on.
Streams last as long as the process: torch keeps freed memory for the stream that used it, so
streams made anew each time would take new memory each time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from klda.backend.interface import Steps, T

MOST_LANES = 8

_STREAMS: dict[str, list[Any]] = {}
_MAKING = threading.Lock()


def side_by_side(device: str, jobs: Sequence[Steps[T]]) -> list[T]:
    """Run jobs in turns, each in a stream of its own, and return what they return.

    Work queued before in the current stream comes first, work queued after it comes last.
    """
    import torch

    streams = _streams(torch, device, min(len(jobs), MOST_LANES))
    caller = torch.cuda.current_stream(device)
    for stream in streams:
        stream.wait_stream(caller)
    results: dict[int, T] = {}
    waiting = dict(enumerate(jobs))
    try:
        while waiting:
            for i, job in list(waiting.items()):
                with torch.cuda.stream(streams[i % len(streams)]):
                    try:
                        next(job)
                    except StopIteration as end:
                        results[i] = end.value
                        del waiting[i]
    finally:
        for stream in streams:
            caller.wait_stream(stream)
    return [results[i] for i in range(len(jobs))]


def _streams(torch: Any, device: str, n: int) -> list[Any]:
    with _MAKING:
        streams = _STREAMS.setdefault(device, [])
        while len(streams) < n:
            streams.append(torch.cuda.Stream(device))
        return streams[:n]
