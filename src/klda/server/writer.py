"""One thread that changes the model: apply, write to the journal, swap the snapshot, acknowledge.

Changes that wait are taken together: one update, one solve and one commit, however many there are.
Nobody sees the learner while it changes: answers come from the last snapshot. If anything fails
before the commit, the journal's transaction is rolled back and the learner is loaded again from
disk. The journal is folded into the model folder in the background; learning continues meanwhile.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from klda.errors import KldaError
from klda.learner import Learner
from klda.server import legacy
from klda.server.changes import Change
from klda.server.errors import ServiceError
from klda.server.journal import Journal, JournalError
from klda.server.locked_folder import LockedFolder
from klda.server.settings import ServiceSettings
from klda.server.snapshot import Snapshot
from klda.server.threads import lower_priority, settle
from klda.server.update import SERVICE, Update

MAX_GROUP = 256
MAX_GROUP_ROWS = 2048
RETRY_SECONDS = 5.0
# Errors that a change causes wherever it is applied. Others (no memory, a disk or a GPU that
# fails) are the machine's.
CHANGE_ERRORS = (KldaError, ValueError, TypeError, LookupError, ArithmeticError)

log = logging.getLogger("klda.server")


@dataclass(eq=False)
class Request:
    """A change that waits for the writer, or a function to run between changes."""

    change: Change | None = None
    function: Callable[[], Any] | None = None
    future: Future = field(default_factory=Future)


class Writer:
    """The thread that changes the model."""

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings, self._folder = settings, LockedFolder(settings)
        self._journal = Journal(settings.model)
        self._queue: queue.Queue[Request | None] = queue.Queue()
        self._saving: tuple[Future, int] | None = None  # a fold under way, and its last change
        self._next_fold = 0.0
        self._unfolded_rows = 0
        self._trouble = ""
        self._retry_at = 0.0
        self._stopping = False
        self._entrance = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self.learner: Learner  # for the writer's thread, and before it starts
        self.snapshot: Snapshot
        self.unfolded = 0  # changes that only the journal has

    # ------------------------------------------------------------------ from other threads

    def start(self) -> None:
        """Lock the folder, load the model, replay the journal, start the thread."""
        try:
            self._folder.lock()
            self._load()
        except BaseException:
            self._folder.close()
            raise
        self._thread.start()

    def stop(self) -> None:
        """Finish what waits, fold the journal, release the folder."""
        with self._entrance:
            self._stopping = True
            self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._folder.close()

    def submit(self, change: Change) -> Future:
        """Return a future that is done once a change is durable and the snapshot has it."""
        return self._put(Request(change=change))

    def inspect(self, function: Callable[[Learner, Journal], Any]) -> Future:
        """Run a function that reads the learner or the journal, between changes."""
        return self._put(Request(function=lambda: function(self.learner, self._journal)))

    @property
    def waiting(self) -> int:
        """Changes that wait."""
        return self._queue.qsize()

    @property
    def trouble(self) -> dict[str, str]:
        """Why its parts can't work; "" for each that can."""
        ended = "" if self._thread.is_alive() else "the thread that learns has ended"
        return {"writer": ended or self._trouble, "journal": self._journal.trouble}

    def _put(self, request: Request) -> Future:
        with self._entrance:  # nothing comes after the end of the queue, or it would wait forever
            if self._stopping:
                raise ServiceError("The service is stopping: try again in a moment.", 503)
            if self._queue.qsize() >= self._settings.max_queue:
                raise ServiceError("Too many changes are waiting: try again in a moment.", 503)
            self._queue.put(request)
        return request.future

    # ------------------------------------------------------------------ loading and replay

    def _load(self) -> None:
        """Load the model from disk and replay the changes that it does not have."""
        if self._saving is not None:
            self._saving[0].exception()  # waits
            self._saving = None
        position = self._open()
        missing = self._journal.missing(position)
        if missing:
            log.info("replaying", extra={"changes": len(missing)})
            self._replay(missing)
        self._note_unfolded()
        self._unfolded_rows = sum(len(change.labels) for change in missing)
        self.snapshot = Snapshot.of(self.learner, self._journal.last)

    def _open(self) -> int:
        """Open the model and its journal; return the number of the last change in the model."""
        self.learner, stored = self._folder.load()
        if stored is None:
            self._journal.open(in_memory=True)
            return 0
        self._journal.open()
        legacy.migrate(self._settings.model, stored, self._journal)
        noted = self.learner.extras.get(SERVICE, {})
        if self._journal.is_new and "keys" in noted:
            with self._journal.transaction():
                self._journal.add_keys(noted["keys"])
        position = noted.get("position", legacy.position(stored))
        return self._journal.start_at(position)

    def _replay(self, missing: list[Change]) -> None:
        """Apply changes; one that no longer fits the model is refused, and all others count."""
        left = list(missing)
        failed = self._first_failing([left])
        while failed is not None:  # one by one now, to find the change that fails
            self._open()
            failed = self._first_failing([[change] for change in left])
            if failed is not None:
                (change,), error = failed
                left = [other for other in left if other is not change]
                self._journal.refuse(change, str(error))
                log.error(
                    "change refused: it does not fit the model in the folder",
                    extra={"change": change.header(), "error": str(error)},
                )

    def _first_failing(self, groups: list[list[Change]]) -> tuple[list[Change], Exception] | None:
        for group in groups:
            try:
                with self._journal.transaction():
                    update = Update(self.learner, self._journal, verify=False)
                    for change in group:
                        update.remember(change, update.make(change))
                    update.finish()
                    if len(group) > 1 or group[0].kind == "remove":
                        Snapshot.of(self.learner, 0)  # solves, which may fail as well
            except JournalError:
                raise
            except CHANGE_ERRORS as error:
                log.exception("replay")
                return group, error
        return None

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        lower_priority()
        self._next_fold = time.monotonic() + self._settings.fold_interval
        while True:
            group = self._next_group()
            try:
                self._serve([request for request in group if request is not None])
            except Exception:
                log.exception("writer")
                self._trouble = "a change could not be made or rolled back; see the log"
                self._retry_at = time.monotonic() + RETRY_SECONDS
                for request in group:
                    if request is not None:
                        settle(request.future, _troubled())
            if None in group:
                break
        try:
            self._finish()
        except Exception:
            log.exception("stop")

    def _next_group(self) -> list[Request | None]:
        try:
            group = [self._queue.get(timeout=max(0.05, min(1.0, self._settings.fold_interval)))]
        except queue.Empty:
            return []
        rows = 0
        while (last := group[-1]) is not None and len(group) < MAX_GROUP:
            rows += len(last.change.labels) if last.change else 0
            if rows >= MAX_GROUP_ROWS:
                break
            try:
                group.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return group

    def _serve(self, group: list[Request]) -> None:
        """Make the changes of a group, run its functions, and do what is due."""
        if self._trouble and time.monotonic() >= self._retry_at:
            self._load()
            self._trouble = ""
        requests = [request for request in group if request.change is not None]
        if self._trouble:
            for request in requests:
                settle(request.future, _troubled())
        elif requests:
            self._commit(requests)
        for request in group:
            if request.function is not None:
                try:
                    settle(request.future, request.function())
                except Exception as error:
                    settle(request.future, error)
        self._journal.probe()
        if not self._trouble:
            self._fold_if_due()

    def _commit(self, requests: list[Request]) -> None:
        """Make the changes that can be made, in one transaction, and answer everyone."""
        if self._journal.purge(time.time() - self._settings.undo_seconds):
            self._next_fold = 0.0
        try:
            outcomes, snapshot = self._make([r.change for r in requests if r.change is not None])
        except Exception as error:
            log.exception("changes failed")
            self._load()
            if isinstance(error, (JournalError, OSError)) or len(requests) == 1:
                for request in requests:
                    settle(request.future, error)
            else:  # one of them failed, and the others must not fail with it
                for request in requests:
                    self._commit([request])
            return
        self.snapshot = snapshot
        self._note_unfolded()
        for request, outcome in zip(requests, outcomes, strict=True):
            settle(request.future, outcome)

    def _make(self, group: list[Change]) -> tuple[list[Any], Snapshot]:
        """Return an acknowledgement, or the error of a refused change, for each; and the result."""
        with self._journal.transaction():
            update = Update(self.learner, self._journal)
            outcomes = [update.answer(change) for change in group]
            update.finish()
            if not update.rows:
                return outcomes, self.snapshot
            snapshot = Snapshot.of(self.learner, self._journal.last)
            if not self._folder.has_model and snapshot.counts:
                self._save_new()
        if not self._journal.on_disk and self._folder.has_model:
            self._journal.to_disk()
        self._unfolded_rows += update.rows
        return outcomes, snapshot

    def _save_new(self) -> None:
        """Save a model for the first time: only then can its folder have a journal."""
        self._save({"position": self._journal.last, "keys": self._journal.keys()}).result()
        self._journal.drop_until(self._journal.last)

    def _save(self, noted: dict[str, Any]) -> Future:
        """Save the model as it is now, with what the service notes in it, in the background."""
        arrays, document = self.learner.pack()
        extras = {**self.learner.extras, SERVICE: noted}
        return self._folder.save(arrays, {**document, "extras": extras})

    def _note_unfolded(self) -> None:
        self.unfolded = self._journal.last - self._journal.folded

    # ------------------------------------------------------------------ folding

    def _fold_if_due(self) -> None:
        expired = self._journal.purge(time.time() - self._settings.undo_seconds)
        if expired or self._unfolded_rows >= self._settings.fold_rows:
            self._next_fold = 0.0
        if self._saving is not None and self._saving[0].done():
            self._end_fold()
        if self._saving is None and self.unfolded and time.monotonic() >= self._next_fold:
            self._begin_fold()

    def _begin_fold(self) -> None:
        """Start to save the model as it is now."""
        self._next_fold = time.monotonic() + self._settings.fold_interval
        if not self.learner.classes:
            return  # a folder can't hold a model without classes: the journal keeps the change
        position = self._journal.last
        self._unfolded_rows = 0
        self._saving = self._save({"position": position}), position

    def _end_fold(self) -> None:
        """Remove the changes from the journal that were saved."""
        assert self._saving is not None
        (saved, position), self._saving = self._saving, None
        error = saved.exception()
        if error is not None:
            log.error("fold failed", extra={"error": str(error)})
            return
        self._journal.mark_folded(position)
        self._note_unfolded()
        log.info("folded", extra={"position": position})

    def _finish(self) -> None:
        """Fold what is left and close the journal."""
        if self._saving is not None:
            self._end_fold()
        if not self._trouble:
            self._journal.purge(time.time() - self._settings.undo_seconds)
            if self.unfolded:
                self._begin_fold()
            if self._saving is not None:
                self._end_fold()
        self._journal.close()


def _troubled() -> ServiceError:
    return ServiceError(
        "The model can't be changed at the moment; see GET /v1/health.", 503, "trouble"
    )
