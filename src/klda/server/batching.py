"""One thread that encodes and answers: small requests that arrive together are encoded together.

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
from typing import Any

import numpy as np

from klda.engine.solution import Answer
from klda.labels import Label
from klda.server.errors import BusyError
from klda.server.snapshot import Snapshot

SLICE = 16  # inputs of a long request, or of a learn, in a batch that short predicts wait for

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
    done: int = 0
    parts: list[np.ndarray] = field(default_factory=list)
    tally: list[int] = field(default_factory=lambda: [0, 0, 0])

    @property
    def left(self) -> int:
        """Inputs not encoded yet."""
        return len(self.inputs) - self.done

    @property
    def rows(self) -> np.ndarray:
        """All rows, once encoded."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)


class Batcher:
    """The thread that encodes and answers.

    Parameters
    ----------
    encode : callable
        Turns inputs into feature rows, float32.
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
        self,
        encode: Callable[[Any], np.ndarray],
        snapshot: Callable[[], Snapshot],
        *,
        max_batch: int,
        wait: float,
        max_queue: int,
    ) -> None:
        self._encode, self._snapshot = encode, snapshot
        self._max_batch, self._wait, self._max_queue = max_batch, wait, max_queue
        self._asks: deque[Encoding] = deque()
        self._learns: deque[Encoding] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self.arriving = 0  # predicts that are being received or wait: worth waiting for
        self.on_batch: Callable[[int], None] = lambda size: None
        self._thread = threading.Thread(target=self._run, name="inference", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, then end the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def trouble(self) -> str:
        """Why it can't answer; "" if it can."""
        return "" if self._thread.is_alive() else "the thread that answers has ended"

    @property
    def waiting(self) -> int:
        """Requests that wait or are being encoded."""
        return len(self._asks) + len(self._learns)

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
            self._wake.notify()
        return job.future

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._asks or self._learns or self._stopping)
                if not self._asks and not self._learns:
                    return
                self._gather()
                batch = self._take()
            try:
                self._process(batch)
            except Exception as error:  # an unexpected error must not end the thread
                log.exception("batch")
                for job, _ in batch:
                    self._close(job, error)

    def _gather(self) -> None:
        """Wait a moment for requests that are about to arrive."""
        deadline = time.monotonic() + self._wait
        while self._max_batch > 1 and not self._stopping:
            count = sum(job.left for job in self._asks)
            left = deadline - time.monotonic()
            if count >= self._max_batch or self.arriving <= len(self._asks) or left <= 0:
                return
            self._wake.wait(left)

    def _take(self) -> list[tuple[Encoding, int]]:
        """Choose what is encoded next: requests, and how many inputs of each."""
        if self._max_batch == 1 and self._asks:
            batch = [(self._asks[0], self._asks[0].left)]  # one request at a time, whole
        else:
            batch = divide_batch(self._asks, self._max_batch)
        return batch + divide_batch(self._learns, SLICE if batch else self._max_batch)

    def _process(self, batch: list[tuple[Encoding, int]]) -> None:
        """Encode a batch; no request changes before all of that has succeeded."""
        try:
            rows = self._encode(_join([job.inputs[job.done : job.done + n] for job, n in batch]))
            snapshot = self._snapshot()
            self._compare(snapshot, batch, rows)
        except Exception as error:
            # One bad input must not fail the requests that it was batched with.
            if len(batch) > 1:
                for part in batch:
                    self._process([part])
            else:
                self._close(batch[0][0], error)
            return
        self.on_batch(len(rows))
        self._hand_out(snapshot, batch, rows)

    def _hand_out(
        self, snapshot: Snapshot, batch: list[tuple[Encoding, int]], rows: np.ndarray
    ) -> None:
        at = 0
        for job, n in batch:
            job.parts.append(rows[at : at + n])
            job.done += n
            at += n
        finished = [job for job, _ in batch if not job.left]
        self._answer(snapshot, [job for job in finished if job.top])
        for job in finished:
            if not job.top:
                self._close(job, (job.rows, tuple(job.tally)))

    def _compare(
        self, snapshot: Snapshot, batch: list[tuple[Encoding, int]], rows: np.ndarray
    ) -> None:
        """Count how the model answers on rows that it is about to learn."""
        at = 0
        chosen: list[int] = []
        owners: list[Encoding] = []
        labels: list[Label] = []
        for job, n in batch:
            if job.labels is not None:
                chosen += range(at, at + n)
                owners += [job] * n
                labels += job.labels[job.done : job.done + n]
            at += n
        if chosen:
            for job, verdict in zip(owners, snapshot.compare(rows[chosen], labels), strict=True):
                job.tally[verdict] += 1

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
