"""Threads that encode and answer: small requests that arrive together are encoded together.

While a batch is being encoded the next one gathers, so under load nothing waits for the sake of
batching; an idle service waits a few milliseconds at most, and not at all if no other request is
being received. Inputs to be learned join a few at a time: a large learn delays a predict by no more
than one small batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from klda.engine.solution import Answer
from klda.labels import Label
from klda.server.errors import BusyError
from klda.server.snapshot import Snapshot

SLICE = 16  # inputs of a long request, or of a learn, in a batch that short predicts wait for

Encode = Callable[[Any], np.ndarray]

log = logging.getLogger("klda.server")


@dataclass(eq=False)
class Encoding:
    """The inputs of one request, encoded in one or more batches.

    Attributes
    ----------
    inputs : sequence or ndarray
        Texts, images or rows.
    top : int
        For a predict: how many classes to name. 0 for inputs to be learned.
    labels : sequence of label or None
        For a learn: the labels, if the model is to be asked before it is taught.
    """

    inputs: Sequence[Any] | np.ndarray
    top: int = 0
    labels: Sequence[Label] | None = None
    future: Future = field(default_factory=Future)
    taken: int = 0  # inputs that are in a batch, or were
    parts: dict[int, np.ndarray] = field(default_factory=dict)  # by position of the first input
    tally: list[int] = field(default_factory=lambda: [0, 0, 0])

    @property
    def left(self) -> int:
        """Inputs not in a batch yet."""
        return len(self.inputs) - self.taken

    @property
    def is_complete(self) -> bool:
        """Whether all inputs are encoded."""
        return sum(map(len, self.parts.values())) == len(self.inputs)

    @property
    def rows(self) -> np.ndarray:
        """All rows, once encoded."""
        return np.concatenate([self.parts[start] for start in sorted(self.parts)])


class Part(NamedTuple):
    """Some inputs of a request, in a batch."""

    job: Encoding
    start: int
    size: int

    @property
    def at(self) -> slice:
        """Their positions in the request."""
        return slice(self.start, self.start + self.size)


class Batcher:
    """The threads that encode and answer.

    Parameters
    ----------
    snapshot : callable
        Returns the snapshot to answer from. Called after encoding, so that an answer includes every
        change acknowledged before its request came.
    max_batch : int
        Inputs encoded together.
    wait : float
        Seconds to wait for more.
    max_queue : int
        Requests that may wait.
    """

    def __init__(
        self, snapshot: Callable[[], Snapshot], *, max_batch: int, wait: float, max_queue: int
    ) -> None:
        self._snapshot = snapshot
        self._max_batch, self._wait, self._max_queue = max_batch, wait, max_queue
        self._asks: deque[Encoding] = deque()
        self._learns: deque[Encoding] = deque()
        self._unfinished: set[Encoding] = set()
        self._wake = threading.Condition()
        self._stopping = False
        self._threads: list[threading.Thread] = []
        self.arriving = 0  # predicts that are being received or wait: worth waiting for
        self.on_batch: Callable[[int], None] = lambda size: None

    def start(self, encoders: Sequence[Encode]) -> None:
        """Start one thread per encoder, which turns inputs into feature rows, float32."""
        for encode in encoders:
            thread = threading.Thread(target=self._run, args=(encode,), name="batch", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Finish what waits, then end the threads."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def trouble(self) -> str:
        """Why it can't answer; "" if it can."""
        alive = self._threads and all(thread.is_alive() for thread in self._threads)
        return "" if alive else "a thread that answers has ended"

    @property
    def waiting(self) -> int:
        """Requests that wait or are being encoded."""
        return len(self._unfinished)

    def ask(self, inputs: Any, top: int) -> Future:
        """Encode and answer: a future of the snapshot and one answer per input."""
        return self._submit(self._asks, Encoding(inputs, top=top))

    def encode(self, inputs: Any, labels: Sequence[Any] | None = None) -> Future:
        """Encode inputs that are to be learned or removed, after those that are asked about.

        A future of the rows and, if `labels` are given, of how many the model got right, got wrong,
        and could not know before it learns them.
        """
        return self._submit(self._learns, Encoding(inputs, labels=labels))

    def _submit(self, queue: deque[Encoding], job: Encoding) -> Future:
        with self._wake:
            if self._stopping:
                raise BusyError("The service is stopping: try again in a moment.")
            if len(queue) >= self._max_queue:
                raise BusyError("Too many requests are waiting: try again in a moment.")
            queue.append(job)
            self._unfinished.add(job)
            self._wake.notify()
        return job.future

    # ------------------------------------------------------------------ a thread

    def _run(self, encode: Encode) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asks or self._learns or self._stopping)
                if not self._asks and not self._learns:
                    return
                self._gather()
                batch = self._take()
            try:
                self._process(batch, encode)
            except Exception as error:  # an unexpected error must not end the thread
                log.exception("batch")
                for part in batch:
                    self._close(part.job, error)

    def _gather(self) -> None:
        """Wait a moment for requests that are about to arrive."""
        deadline = time.monotonic() + self._wait
        while self._max_batch > 1 and not self._stopping:
            count = sum(job.left for job in self._asks)
            left = deadline - time.monotonic()
            asked = sum(job.top > 0 for job in self._unfinished)
            if count >= self._max_batch or self.arriving <= asked or left <= 0:
                return
            self._wake.wait(left)

    def _take(self) -> list[Part]:
        """Choose what is encoded next."""
        if self._max_batch == 1 and self._asks:
            chosen = [(self._asks[0], self._asks[0].left)]  # one request at a time, whole
        else:
            chosen = divide_batch(self._asks, self._max_batch)
        chosen += divide_batch(self._learns, SLICE if chosen else self._max_batch)
        batch = []
        for job, count in chosen:
            batch.append(Part(job, job.taken, count))
            job.taken += count
            if not job.left:
                (self._asks if job.top else self._learns).remove(job)
        return batch

    def _process(self, batch: list[Part], encode: Encode) -> None:
        """Encode a batch; no request changes before all of that has succeeded."""
        batch = [part for part in batch if not part.job.future.done()]
        if not batch:
            return
        try:
            rows = encode(_join([part.job.inputs[part.at] for part in batch]))
            snapshot = self._snapshot()
            verdicts = self._compare(snapshot, batch, rows)
        except Exception as error:
            # One bad input must not fail the requests that it was batched with.
            if len(batch) > 1:
                for part in batch:
                    self._process([part], encode)
            else:
                self._close(batch[0].job, error)
            return
        self.on_batch(len(rows))
        self._answer(snapshot, [job for job in self._hand_out(batch, rows, verdicts) if job.top])

    def _hand_out(
        self, batch: list[Part], rows: np.ndarray, verdicts: list[list[int]]
    ) -> list[Encoding]:
        """Give each request its rows; return those that are complete, and close the learns."""
        complete, at = [], 0
        with self._wake:
            for part, own in zip(batch, verdicts, strict=True):
                part.job.parts[part.start] = rows[at : at + part.size]
                at += part.size
                for verdict in own:
                    part.job.tally[verdict] += 1
                if part.job.is_complete:
                    complete.append(part.job)
        for job in complete:
            if not job.top:
                self._close(job, (job.rows, tuple(job.tally)))
        return complete

    def _compare(self, snapshot: Snapshot, batch: list[Part], rows: np.ndarray) -> list[list[int]]:
        """Return for each part how the model answers on rows that it is about to learn."""
        found, at = [], 0
        for part in batch:
            own = rows[at : at + part.size]
            labels = part.job.labels
            found.append([] if labels is None else snapshot.compare(own, labels[part.at]))
            at += part.size
        return found

    def _answer(self, snapshot: Snapshot, jobs: list[Encoding]) -> None:
        """Answer requests together; where that fails, one by one, so each gets its own error."""
        try:
            answers = _answers(snapshot, jobs)
        except Exception as error:
            if len(jobs) > 1:
                for job in jobs:
                    self._answer(snapshot, [job])
            else:
                self._close(jobs[0], error)
            return
        for job, own in zip(jobs, answers, strict=True):
            self._close(job, (snapshot, own))

    def _close(self, job: Encoding, outcome: Any) -> None:
        with self._wake:
            self._unfinished.discard(job)
            for queue in (self._asks, self._learns):
                if job in queue:
                    queue.remove(job)
        if job.future.done() or not job.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)


def divide_batch(jobs: Sequence[Encoding], room: int) -> list[tuple[Encoding, int]]:
    """Choose the inputs of a batch: all of short requests, equal parts of long ones.

    Parameters
    ----------
    jobs : sequence of Encoding
        Those that wait, the oldest first.
    room : int
        Inputs in the batch.

    Returns
    -------
    list of (Encoding, int)
        Requests, and how many inputs of each. The oldest is always among them. Where the batch
        completes a request, longer ones take no more than `SLICE` of it: they would delay it.
    """
    if not jobs:
        return []
    least = min(jobs[0].left, SLICE, max(1, room // 2))
    room -= least
    first = list(islice(jobs, room + 1))
    taken = {id(jobs[0]): least}
    finishes = False
    for i, job in enumerate(sorted(first, key=lambda job: job.left)):
        held = taken.get(id(job), 0)
        n = min(job.left, held + room // (len(first) - i))
        if n < job.left and finishes:
            n = max(held, min(n, SLICE))
        finishes = finishes or n == job.left
        taken[id(job)] = n
        room -= n - held
    return [(job, taken[id(job)]) for job in first if taken[id(job)]]


def _answers(snapshot: Snapshot, jobs: list[Encoding]) -> list[list[Answer]]:
    """Answer all requests in one pass over the feature map."""
    if not jobs or not snapshot.counts:
        return [[] for _ in jobs]
    rows = np.concatenate([job.rows for job in jobs])
    answers = iter(snapshot.answer(rows, max(job.top for job in jobs)))
    return [
        [replace(answer, top=answer.top[: job.top]) for answer in islice(answers, len(job.inputs))]
        for job in jobs
    ]


def _join(parts: list[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    return [item for part in parts for item in part]
