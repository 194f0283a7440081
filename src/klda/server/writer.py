"""One thread that changes the model: journal, apply, swap the snapshot, acknowledge.

Changes that wait are taken together: one sync, one update, one solve, however many there are. A
change that can't be applied is refused before it is written; should it fail all the same, it is
cancelled, and those it was taken with are made one by one. The journal is folded into the model
folder in the background; learning goes on meanwhile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np

from klda import storage
from klda.errors import KldaError
from klda.learned import NotLearnedError
from klda.learner import ForgetTraceWarning, Learner
from klda.server.changes import Change, Projection
from klda.server.errors import BusyError, ConflictError, TroubleError
from klda.server.journal import Journal
from klda.server.keeper import Keeper, yield_to_others
from klda.server.memory import Acknowledgement, Memory
from klda.server.settings import Settings
from klda.server.snapshot import Snapshot
from klda.server.undo import bring_back, set_aside

MAX_GROUP = 256
MAX_GROUP_ROWS = 2048
RETRY_SECONDS = 5.0
# Errors that are the fault of a change, whenever it is applied.
AT_FAULT = (KldaError, ValueError, TypeError, LookupError, ArithmeticError)
SOURCE = "service"

log = logging.getLogger("klda.server")


@dataclass(eq=False)
class _Request:
    """A change on its way, or a function to be run between changes."""

    change: Change | None = None
    run: Callable[[], Any] | None = None
    future: Future = field(default_factory=Future)
    outcome: Any = None

    def settle(self, outcome: Any) -> None:
        self.outcome = outcome
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
        self._stale = False  # whether the model folder has forgotten classes whose time is over
        self._uncancelled: list[int] = []  # changes in the journal that must not count
        self._trouble = ""
        self._try_again = 0.0
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

    @property
    def trouble(self) -> dict[str, str]:
        """Why its parts can't do their work; "" for each that can."""
        ended = "" if self._thread.is_alive() else "the thread that learns has ended"
        return {"writer": ended or self._trouble, "journal": self._journal.trouble}

    def _put(self, request: _Request) -> Future:
        if self._stopping:
            raise BusyError("The service is stopping: try again in a moment.")
        if self._queue.qsize() >= self._settings.max_queue:
            raise BusyError("Too many changes are waiting: try again in a moment.")
        self._queue.put(request)
        return request.future

    # ------------------------------------------------------------------ start

    def _load(self, learner: Learner, memory: Memory) -> None:
        self._begin(learner, memory)
        after = None if memory.saved_elsewhere else memory.position
        missed = [change for frame in self._journal.replay(after) for change in frame]
        if after is not None:
            self._journal.remove(after)  # a kill may come between a save and this
        if missed:
            log.info("replaying", extra={"changes": len(missed)})
        self._replay(missed)
        self._memory.position = self._journal.last
        self._unfolded_rows = sum(len(c.labels) for c in missed)
        self._swap()

    def _begin(self, learner: Learner, memory: Memory) -> None:
        self._learner, self._memory = learner, memory
        self._folded = memory.position
        if not hasattr(self, "snapshot"):  # later, answers come from the last one meanwhile
            self.snapshot = Snapshot(learner, memory.position)

    def _replay(self, changes: list[Change]) -> None:
        """Apply changes; one that can't be applied is kept aside, and all others count."""
        left = list(changes)
        failed = self._first_failing([left]) if left else None
        while failed is not None:  # one by one now: what failed is the one change
            self._begin(*self._keeper.reload())
            failed = self._first_failing([[change] for change in left])
            if failed is not None:
                (change,), error = failed
                left = [other for other in left if other is not change]
                file = self._journal.keep_aside(change)
                log.error(
                    "change kept aside: it can't be applied to the model in the folder",
                    extra={"change": change.header(), "file": file.name, "error": str(error)},
                )

    def _first_failing(self, groups: list[list[Change]]) -> tuple[list[Change], Exception] | None:
        """Apply groups of changes; return the first that can't be applied, and why.

        Other errors (no memory, a disk or a GPU that fails) are raised: no change is left out for
        them.
        """
        for group in groups:
            try:
                self._apply(group)
                if len(group) > 1 or group[0].kind == "remove":
                    Snapshot(self.learner, 0)  # solves, which samples never learned may prevent
            except AT_FAULT as error:
                log.exception("replay")
                return group, error
        return None

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        yield_to_others()
        while True:
            group = self._next_group()
            try:
                self._serve([request for request in group if request is not None])
            except Exception:
                log.exception("writer")
                self._trouble = "a change could not be made or taken back: the log has it"
                self._try_again = time.monotonic() + RETRY_SECONDS
                for request in group:
                    if request is not None and not request.future.done():
                        request.settle(_troubled())
            if None in group:
                self._finish()
                return

    def _serve(self, group: list[_Request]) -> None:
        """Make the changes of a group, answer its questions, and do what is due."""
        if self._trouble and time.monotonic() >= self._try_again:
            self._recover()
        changes = [request for request in group if request.change is not None]
        if self._trouble:
            for request in changes:
                request.settle(_troubled())
        else:
            self._commit(changes)
        for request in group:
            if request.run is not None:
                self._look(request)
        self._journal.probe()
        if not self._trouble:
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
        """Make the changes that can be made, as many as possible in one step; answer everyone."""
        if requests:
            self._stale |= self._memory.purge(self._settings.undo_seconds)
        for together in _steps(requests):
            self._commit_step(together)

    def _commit_step(self, requests: list[_Request]) -> None:
        accepted, repeated = self._accept(requests)
        changes = [request.change for request in accepted if request.change]
        outcomes = self._make(changes) if changes else []
        if outcomes is None:
            for request in accepted:
                self._commit_step([request])
        else:
            for request, outcome in zip(accepted, outcomes, strict=True):
                request.settle(outcome)
        made = {request.change.key: request.outcome for request in accepted if request.change}
        for request in repeated:
            assert request.change is not None
            outcome = made.get(request.change.key) or self._memory.keys[request.change.key]
            if isinstance(outcome, Acknowledgement):
                outcome = replace(outcome, repeated=True)
            request.settle(outcome)

    def _accept(self, requests: list[_Request]) -> tuple[list[_Request], list[_Request]]:
        """Give numbers to changes that can be made, refuse others, set repetitions aside."""
        projection = Projection(
            self.learner.classes,
            self._memory.forgotten(),
            self._memory.taken,
            getattr(self.learner.classifier, "n_features_in_", 0),
        )
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
                self._check_learned(change)
            except Exception as error:
                request.settle(error)
                continue
            number += 1
            if change.key:
                digests[change.key] = change.digest
            request.change = change
            accepted.append(request)
        return accepted, repeated

    def _check_learned(self, change: Change) -> None:
        """Refuse to take away samples that were never learned, as far as that can be told."""
        if change.kind != "remove" or change.rows is None:
            return
        try:
            self.learner.check_learned(list(change.labels), change.rows)
        except NotLearnedError as error:
            raise ConflictError(str(error)) from error

    def _make(self, changes: list[Change]) -> Sequence[Any] | None:
        """Journal and apply changes; return an acknowledgement, or an error, for each.

        None if several failed together: then nothing has changed, and one may be at fault.
        """
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
            self._uncancelled += [change.sequence for change in changes]
            self._recover()
            return [error] if len(changes) == 1 else None
        self._unfolded_rows += sum(len(change.labels) for change in changes)
        return acknowledgements

    def _make_first(self, changes: list[Change]) -> Sequence[Any] | None:
        """Make the first changes of a new model durable by saving it: a journal needs a model."""
        try:
            acknowledgements = self._apply(changes)
            if self.learner.classes:
                self._keeper.save(self.learner, self._memory).result()
        except Exception as error:
            log.exception("first learn")
            self._load(*self._keeper.reload())
            return [error] if len(changes) == 1 else None
        self._journal.last = self._folded = self._memory.position
        self._swap()
        return acknowledgements

    def _recover(self) -> None:
        """Cancel changes that could not be applied, and go back to what is on disk."""
        if self._uncancelled:
            number, now = self._journal.last, time.time()
            cancels = [
                Change("cancel", target=target).numbered(number + i, now)
                for i, target in enumerate(self._uncancelled, 1)
            ]
            self._journal.append(cancels)
            self._uncancelled = []
        self._journal.rotate()
        if self._folding is not None:
            self._folding.exception()
        self._load(*self._keeper.reload())
        self._trouble = ""

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
        # What is in the journal was checked: replaying it must not depend on the last digits.
        self.learner.forget(list(change.labels), change.rows, verify=False)

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
        snapshot = Snapshot(self.learner, self._memory.position)
        if not snapshot.counts:
            snapshot.remember(self.snapshot)
        self.on_swap(snapshot)  # first: what is published can't be taken back
        self.snapshot = snapshot

    # ------------------------------------------------------------------ folding

    def _fold_if_due(self) -> None:
        if self._folding is not None and self._folding.done():
            self._folding = None
        waited = time.monotonic() - self._last_fold >= self._settings.fold_interval
        many = self._unfolded_rows >= self._settings.fold_rows
        over = self._memory.purge(self._settings.undo_seconds)
        self._stale |= over
        due = (self.unfolded or self._stale) and (waited or many or over)
        if self._folding is None and due:
            self._fold()

    def _fold(self) -> Future | None:
        """Begin to save the model as it is now; the journal's files go once that is done."""
        self._last_fold = time.monotonic()
        if not self.learner.classes:
            return None  # a folder can't hold a model without classes: the journal keeps it
        position, began = self._memory.position, time.monotonic()
        self._journal.rotate()
        self._unfolded_rows = 0
        self._stale = False

        def done(saved: Future) -> None:
            if saved.exception() is not None:
                log.error("fold failed", extra={"error": str(saved.exception())})
                self._stale = True  # to be tried again
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
        self._stale |= self._memory.purge(self._settings.undo_seconds)
        if (self.unfolded or self._stale) and not self._trouble:
            folding = self._fold()
            if folding is not None:
                folding.exception()
        self._journal.close()


def _steps(requests: list[_Request]) -> Iterator[list[_Request]]:
    """Split changes into those made in one step.

    Samples are taken away in a step of their own: whether they were learned can be told only once
    all changes before are made.
    """
    together: list[_Request] = []
    for request in requests:
        if request.change is not None and request.change.kind == "remove":
            yield from (step for step in (together, [request]) if step)
            together = []
        else:
            together.append(request)
    if together:
        yield together


def _troubled() -> TroubleError:
    return TroubleError("The model can't be changed at the moment; GET /v1/health says why.")


def _check_same_request(change: Change, digest: str) -> None:
    if change.digest != digest:
        raise ConflictError(
            "Idempotency-Key was used for another request before: use a new key for each request."
        )
