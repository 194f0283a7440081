"""Threads that encode and answer: small requests that arrive together are encoded together.

While a batch is being encoded the next one gathers, so nothing waits for the sake of batching. A
large request takes part in every batch with a few inputs, so that small ones need not wait for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
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

    def ask(self, inputs: Any, top: int) -> Future:
        """Return a future of the snapshot and one answer per input."""
        return self._submit(Job(inputs, top=top))

    def encode(self, inputs: Any) -> Future:
        """Return a future of the feature rows of inputs to learn or remove; predicts go first."""
        return self._submit(Job(inputs))

    def _submit(self, job: Job) -> Future:
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
        batch: list[tuple[Job, slice]] = []
        queued, room = [job for job in self._jobs if job.left], self._max_batch
        most = room if len(queued) == 1 else SLICE
        asked, learned = ([job for job in queued if bool(job.top) is top] for top in (True, False))
        for jobs in (asked, learned):
            # The oldest has its turn in every batch; of the others, the short ones go first.
            for job in [*jobs[:1], *sorted(jobs[1:], key=lambda job: job.left)]:
                if count := min(job.left, most, room):
                    batch.append((job, slice(job.taken, job.taken + count)))
                    job.taken += count
                    room -= count
            room = SLICE if batch else room  # always some: learns must not wait forever
        return batch

    def _process(self, batch: list[tuple[Job, slice]], encode: Encode) -> None:
        """Encode a batch, and finish the requests that it completes."""
        batch = [(job, at) for job, at in batch if not job.future.done()]
        if not batch:
            return
        try:
            rows = encode(_join([job.inputs[at] for job, at in batch]))
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


def _join(parts: list[Any]) -> Any:
    is_rows = isinstance(parts[0], np.ndarray)
    return np.concatenate(parts) if is_rows else [item for part in parts for item in part]
