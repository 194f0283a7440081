"""One thread that changes the model: journal, apply, swap the snapshot, acknowledge.

Changes that wait are taken together: one sync, one update, one solve, however many there are. A
change that can't be applied is refused before it is written. The journal is folded into the model
folder in the background; learning goes on meanwhile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from klda import storage
from klda.learner import ForgetTraceWarning, Learner
from klda.server.changes import Change, Projection
from klda.server.errors import BusyError, ConflictError
from klda.server.journal import Journal
from klda.server.keeper import Keeper, yield_to_others
from klda.server.memory import Acknowledgement, Memory
from klda.server.settings import Settings
from klda.server.snapshot import Snapshot
from klda.server.undo import bring_back, set_aside

MAX_GROUP = 256
MAX_GROUP_ROWS = 2048
SOURCE = "service"

log = logging.getLogger("klda.server")


@dataclass(eq=False)
class _Request:
    """A change on its way, or a function to be run between changes."""

    change: Change | None = None
    run: Callable[[], Any] | None = None
    future: Future = field(default_factory=Future)

    def settle(self, outcome: Any) -> None:
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, BaseException):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)


class Writer:
    """The thread that changes the model.

    Parameters
    ----------
    settings : Settings
        How often to fold, and how long an undo is possible.
    keeper : Keeper
        The model folder.
    """

    def __init__(self, settings: Settings, keeper: Keeper) -> None:
        self._settings, self._keeper = settings, keeper
        self._journal = Journal(settings.model)
        self._queue: queue.Queue[_Request | None] = queue.Queue()
        self._memory = Memory()
        self._learner: Learner | None = None
        self._folding: Future | None = None
        self._folded = 0  # the last change in the model folder
        self._unfolded_rows = 0
        self._last_fold = time.monotonic()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.snapshot: Snapshot
        self.on_swap: Callable[[Snapshot], None] = lambda snapshot: None

    # ------------------------------------------------------------------ from other threads

    def start(self) -> None:
        """Open the folder, replay the journal, start the thread."""
        self._load(*self._keeper.open())
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, fold the journal, give the folder back."""
        self._stopping = True
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._keeper.close()

    def submit(self, change: Change) -> Future:
        """Make a change.

        Parameters
        ----------
        change : Change
            Without a number.

        Returns
        -------
        Future of Acknowledgement
            Done once the change is on disk and the snapshot has it.
        """
        return self._put(_Request(change=change))

    def inspect(self, function: Callable[[Learner, Memory], Any]) -> Future:
        """Run a function that reads the learner, between changes.

        Parameters
        ----------
        function : callable
            Gets the learner and the memory; must not change them.

        Returns
        -------
        Future
            Of what it returns.
        """
        return self._put(_Request(run=lambda: function(self.learner, self._memory)))

    @property
    def learner(self) -> Learner:
        """The learner, for the writer's thread and before it starts."""
        assert self._learner is not None
        return self._learner

    @property
    def waiting(self) -> int:
        """Changes that wait."""
        return self._queue.qsize()

    @property
    def unfolded(self) -> int:
        """Changes that only the journal has."""
        return self._memory.position - self._folded

    def _put(self, request: _Request) -> Future:
        if self._stopping:
            raise BusyError("The service is stopping: try again in a moment.")
        if self._queue.qsize() >= self._settings.max_queue:
            raise BusyError("Too many changes are waiting: try again in a moment.")
        self._queue.put(request)
        return request.future

    # ------------------------------------------------------------------ start

    def _load(self, learner: Learner, memory: Memory) -> None:
        self._learner, self._memory = learner, memory
        self._folded = memory.position
        self.snapshot = Snapshot(learner, memory.position)
        after = None if memory.saved_elsewhere else memory.position
        missed = [change for frame in self._journal.replay(after) for change in frame]
        if missed:
            log.info("replaying", extra={"changes": len(missed)})
        self._apply(missed)
        self._memory.position = self._journal.last
        self._unfolded_rows = sum(len(c.labels) for c in missed)
        self._swap()

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        yield_to_others()
        while True:
            group = self._next_group()
            changes = [request for request in group if request is not None and request.change]
            if changes:
                self._commit(changes)
            for request in group:
                if request is not None and request.run is not None:
                    self._look(request)
            if None in group:
                self._finish()
                return
            self._fold_if_due()

    def _next_group(self) -> list[_Request | None]:
        try:
            group = [self._queue.get(timeout=max(0.05, min(1.0, self._settings.fold_interval)))]
        except queue.Empty:
            return []
        rows = 0
        while group[-1] is not None and len(group) < MAX_GROUP and rows < MAX_GROUP_ROWS:
            try:
                group.append(self._queue.get_nowait())
            except queue.Empty:
                break
            last = group[-1]
            rows += len(last.change.labels) if last is not None and last.change else 0
        return group

    def _look(self, request: _Request) -> None:
        assert request.run is not None
        try:
            request.settle(request.run())
        except Exception as error:
            request.settle(error)

    def _commit(self, requests: list[_Request]) -> None:
        """Make the changes that can be made, all in one step, and answer everyone."""
        self._memory.purge(self._settings.undo_seconds)
        accepted, repeated = self._accept(requests)
        outcomes: dict[str, Any] = {}
        if accepted:
            changes = [request.change for request in accepted if request.change]
            done = self._make(changes)
            for request, outcome in zip(accepted, done, strict=True):
                request.settle(outcome)
                if request.change and request.change.key:
                    outcomes[request.change.key] = outcome
        for request in repeated:
            assert request.change is not None
            key = request.change.key
            outcome = outcomes.get(key) or self._memory.keys[key]
            if isinstance(outcome, Acknowledgement):
                outcome = replace(outcome, repeated=True)
            request.settle(outcome)

    def _accept(self, requests: list[_Request]) -> tuple[list[_Request], list[_Request]]:
        """Give numbers to changes that can be made, refuse others, set repetitions aside."""
        projection = Projection(self.learner.classes, self._memory.forgotten())
        accepted, repeated, now = [], [], time.time()
        digests: dict[str, str] = {}
        number = self._journal.last
        for request in requests:
            assert request.change is not None
            change = request.change.numbered(number + 1, now)
            try:
                earlier = self._memory.keys.get(change.key)
                made_before = digests.get(change.key) or (earlier and earlier.digest)
                if change.key and made_before:
                    _check_same_request(change, made_before)
                    repeated.append(request)
                    continue
                projection.accept(change)
                self._check_held(change)
            except Exception as error:
                request.settle(error)
                continue
            number += 1
            if change.key:
                digests[change.key] = change.digest
            request.change = change
            accepted.append(request)
        return accepted, repeated

    def _check_held(self, change: Change) -> None:
        """Refuse to take away samples that a ledger knows were never learned."""
        ledger = self.learner.ledger
        if change.kind == "remove" and change.rows is not None and ledger is not None:
            ledger.find(change.rows, change.labels)

    def _make(self, changes: list[Change]) -> Sequence[Any]:
        """Journal and apply changes; return an acknowledgement, or an error, for each."""
        if not storage.exists(self._settings.model):
            return self._make_first(changes)
        try:
            self._journal.append(changes)
        except Exception as error:
            log.exception("journal")
            return [error] * len(changes)
        try:
            acknowledgements = self._apply(changes)
            self._swap()
        except Exception as error:
            log.exception("apply")
            self._take_back(changes)
            return [error] * len(changes)
        self._unfolded_rows += sum(len(change.labels) for change in changes)
        return acknowledgements

    def _make_first(self, changes: list[Change]) -> Sequence[Any]:
        """Make the first changes of a new model durable by saving it: a journal needs a model."""
        try:
            acknowledgements = self._apply(changes)
            if self.learner.classes:
                self._keeper.save(self.learner, self._memory).result()
            self._journal.last = self._folded = self._memory.position
            self._swap()
        except Exception as error:
            log.exception("first learn")
            self._load(*self._keeper.reload())
            return [error] * len(changes)
        return acknowledgements

    def _take_back(self, changes: list[Change]) -> None:
        """Cancel changes that could not be applied, and go back to what is on disk."""
        number = self._journal.last
        cancels: list[Change] = [
            Change("cancel", sequence=number + i, target=change.sequence, when=time.time())
            for i, change in enumerate(changes, 1)
        ]
        self._journal.append(cancels)
        self._journal.rotate()
        if self._folding is not None:
            self._folding.result()
        self._load(*self._keeper.reload())

    # ------------------------------------------------------------------ applying

    def _apply(self, changes: Sequence[Change]) -> list[Acknowledgement]:
        """Apply changes in order, neighbouring learns together."""
        acknowledgements = []
        known = set(self.learner.classes)
        for kind, neighbours in groupby(changes, key=lambda change: change.kind):
            some = list(neighbours)
            if kind == "learn":
                self._learn(some)
            else:
                for change in some:
                    getattr(self, f"_{kind}")(change)
            classes = self.learner.classes
            for change in some:
                new = tuple(x for x in dict.fromkeys(change.labels) if x not in known)
                known.update(new if kind == "learn" else ())
                acknowledgement = Acknowledgement(
                    change.sequence,
                    len(classes),
                    sum(classes.values()),
                    new if kind == "learn" else (),
                    change.digest,
                )
                self._memory.note(change, acknowledgement)
                acknowledgements.append(acknowledgement)
            known = set(classes)
        return acknowledgements

    def _learn(self, changes: Sequence[Change]) -> None:
        rows = [change.rows for change in changes if change.rows is not None]
        labels = [label for change in changes for label in change.labels]
        self.learner.learn(np.concatenate(rows), labels, source=SOURCE)

    def _remove(self, change: Change) -> None:
        self.learner.forget(list(change.labels), change.rows)

    def _rename(self, change: Change) -> None:
        self.learner.rename(*change.labels)

    def _forget(self, change: Change) -> None:
        labels = list(dict.fromkeys(change.labels))
        gone = set_aside(self.learner, labels)
        with warnings.catch_warnings():  # the answer to the client says it
            warnings.simplefilter("ignore", ForgetTraceWarning)
            self.learner.forget(labels)
        self._memory.dropped[change.sequence] = (change.when, gone)

    def _restore(self, change: Change) -> None:
        _, gone = self._memory.dropped.pop(change.target)
        for one in gone:
            bring_back(self.learner, self._template(), one)

    def _template(self) -> Any:
        if self.learner.classes:
            return self.learner.classifier
        return self.snapshot.learner.classifier

    def _swap(self) -> None:
        previous = getattr(self, "snapshot", None)
        snapshot = Snapshot(self.learner, self._memory.position)
        if not snapshot.counts and previous is not None:
            snapshot.remember(previous)
        self.snapshot = snapshot
        self.on_swap(snapshot)

    # ------------------------------------------------------------------ folding

    def _fold_if_due(self) -> None:
        if self._folding is not None and self._folding.done():
            self._folding = None
        waited = time.monotonic() - self._last_fold >= self._settings.fold_interval
        many = self._unfolded_rows >= self._settings.fold_rows
        if self._folding is None and self.unfolded and (waited or many):
            self._fold()

    def _fold(self) -> Future | None:
        """Begin to save the model as it is now; the journal's files go once that is done."""
        self._last_fold = time.monotonic()
        if not self.learner.classes:
            return None  # a folder can't hold a model without classes: the journal keeps it
        self._memory.purge(self._settings.undo_seconds)
        position, began = self._memory.position, time.monotonic()
        self._journal.rotate()
        self._unfolded_rows = 0

        def done(saved: Future) -> None:
            if saved.exception() is not None:
                log.error("fold failed", extra={"error": str(saved.exception())})
                return
            self._folded = position
            self._journal.remove(position)
            seconds = round(time.monotonic() - began, 3)
            log.info("folded", extra={"position": position, "seconds": seconds})

        self._folding = self._keeper.save(self.learner, self._memory)
        self._folding.add_done_callback(done)
        return self._folding

    def _finish(self) -> None:
        if self._folding is not None:
            self._folding.exception()
        if self.unfolded:
            folding = self._fold()
            if folding is not None:
                folding.exception()
        self._journal.close()


def _check_same_request(change: Change, digest: str) -> None:
    if change.digest != digest:
        raise ConflictError(
            "Idempotency-Key was used for another request before: use a new key for each request."
        )
