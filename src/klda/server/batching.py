"""Threads that encode and answer: small requests that arrive together are encoded together.

While a batch is being encoded the next one gathers, so nothing waits for the sake of batching. A
large request takes part in every batch with a few inputs, so that small ones need not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from klda.server.errors import ServerError
from klda.server.settings import MAX_WAITING
from klda.server.snapshot import Snapshot
from klda.server.workers import settle

SLICE = 16  # inputs of a request in a batch that others wait for

Encode = Callable[[Any], np.ndarray]


@dataclass(eq=False)
class Job:
    """The inputs of one request, encoded in one or more batches; `top` is 0 for a learn."""

    inputs: Sequence[Any] | np.ndarray
    top: int = 0
    future: Future = field(default_factory=Future)
    taken: int = 0  # inputs that are in a batch, or were
    done: dict[int, np.ndarray] = field(default_factory=dict)  # rows by first position

    @property
    def left(self) -> int:
        """Inputs not in a batch yet."""
        return len(self.inputs) - self.taken

    @property
    def is_encoded(self) -> bool:
        """Whether there is a row for each input."""
        return sum(map(len, self.done.values())) == len(self.inputs)

    @property
    def rows(self) -> np.ndarray:
        """The rows that are encoded, in order."""
        return np.concatenate([self.done[start] for start in sorted(self.done)])


def _parts(jobs: Sequence[Job], room: int, most: int) -> list[tuple[Job, slice]]:
    """Take up to `most` inputs of each job, as long as there is room.

    The oldest job has its turn in every batch; of the others, the short ones go first.
    """
    parts = []
    for job in [*jobs[:1], *sorted(jobs[1:], key=lambda job: job.left)]:
        if count := min(job.left, most, room):
            parts.append((job, slice(job.taken, job.taken + count)))
            job.taken += count
            room -= count
    return parts


class Batcher:
    """The threads that encode and answer.

    `snapshot` returns what to answer from. It is called after encoding, so that an answer includes
    every change acknowledged before its request came.
    """

    def __init__(self, snapshot: Callable[[], Snapshot], max_batch: int) -> None:
        self._snapshot, self._max_batch = snapshot, max_batch
        self._jobs: dict[Job, None] = {}  # unfinished, the oldest first
        self._wake = threading.Condition()
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self.on_batch: Callable[[int], None] = lambda size: None

    def start(self, encoders: Sequence[Encode]) -> None:
        """Start one thread per encoder, which turns inputs into feature rows, float32."""
        for encode in encoders:
            thread = threading.Thread(target=self._run, args=(encode,), name="batch", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Finish the waiting requests, then end the threads."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def problem(self) -> str:
        """Why it can't answer; "" if it can."""
        alive = self._threads and all(thread.is_alive() for thread in self._threads)
        return "" if alive else "a thread that answers has ended"

    @property
    def waiting(self) -> int:
        """Requests that wait or are being encoded."""
        return len(self._jobs)

    def submit(self, inputs: Any, top: int = 0) -> Future:
        """Return a future of the snapshot and one answer per input, with `top` classes each.

        Without `top`, it is one of the feature rows of the inputs; those who ask go first.
        """
        job = Job(inputs, top)
        with self._wake:
            if self._stopping:
                raise ServerError("The service is stopping: try again in a moment.", 503)
            if sum(bool(one.top) is bool(job.top) for one in self._jobs) >= MAX_WAITING:
                raise ServerError("Too many requests are waiting: try again in a moment.", 503)
            self._jobs[job] = None
            self._wake.notify()
        return job.future

    # ------------------------------------------------------------------ a thread

    def _run(self, encode: Encode) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._stopping or any(job.left for job in self._jobs))
                batch = self._take()
            if not batch:
                return
            self._process(batch, encode)

    def _take(self) -> list[tuple[Job, slice]]:
        """Take what is encoded next: predicts first, then learns."""
        queued = [job for job in self._jobs if job.left]
        most = self._max_batch if len(queued) == 1 else SLICE
        asked = _parts([job for job in queued if job.top], self._max_batch, most)
        room = SLICE if asked else self._max_batch  # always some: learns must not wait forever
        return asked + _parts([job for job in queued if not job.top], room, most)

    def _process(self, batch: list[tuple[Job, slice]], encode: Encode) -> None:
        """Encode a batch, and finish the requests that it completes."""
        gone = {job for job, _ in batch if job.future.done()}  # cancelled, or one part failed
        with self._wake:
            for job in gone:
                self._jobs.pop(job, None)
        batch = [(job, at) for job, at in batch if job not in gone]
        if not batch:
            return
        try:
            taken = [job.inputs[at] for job, at in batch]
            is_rows = isinstance(taken[0], np.ndarray)
            rows = encode(np.concatenate(taken) if is_rows else list(chain.from_iterable(taken)))
            self.on_batch(len(rows))
            parts = np.split(rows, np.cumsum([at.stop - at.start for _, at in batch])[:-1])
            with self._wake:
                for (job, at), part in zip(batch, parts, strict=True):
                    job.done[at.start] = part
                encoded = [job for job, _ in batch if job.is_encoded]
            self._finish(encoded)
        except Exception as error:
            if len(batch) == 1:
                self._close(batch[0][0], error)
                return
            for one in batch:  # a bad input must not fail the requests that it was batched with
                self._process([one], encode)

    def _finish(self, jobs: list[Job]) -> None:
        """Return the rows of learns, and answer predicts in one pass over the feature map."""
        for job in jobs:
            if not job.top:
                self._close(job, job.rows)
        asked = [job for job in jobs if job.top]
        if asked:
            snapshot, rows = self._snapshot(), np.concatenate([job.rows for job in asked])
            answers = iter(snapshot.answer(rows, max(job.top for job in asked)))
            for job in asked:
                own = islice(answers, len(job.inputs))
                self._close(job, (snapshot, [replace(a, top=a.top[: job.top]) for a in own]))

    def _close(self, job: Job, outcome: Any) -> None:
        with self._wake:
            self._jobs.pop(job, None)
        settle(job.future, outcome)
