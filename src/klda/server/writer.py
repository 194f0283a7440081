"""One thread that owns the model: it locks the folder, loads, changes and saves the model.

Learns that wait are taken together: one update, one solve and one commit, however many there are.
A change is made to a copy of the learner, which shares all that never changes; once the journal has
it, the copy takes the learner's place. If anything fails before that, nothing has changed.

A checkpoint saves the model to its folder.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from klda.engine.model import DamagedModelError
from klda.errors import is_lack_of_memory
from klda.learner import Learner
from klda.server.changes import SERVICE, Change, Learn
from klda.server.errors import PREDICTS_ONLY, ServerError
from klda.server.journal import Bookmark, Journal, JournalError, set_aside, unusable
from klda.server.settings import MAX_WAITING, ServiceSettings
from klda.server.snapshot import Snapshot
from klda.server.update import make, replay
from klda.server.workers import lower_priority, settle
from klda.storage import folder as storage

MAX_GROUP_ROWS = 2048  # of learns that are made together
FOREVER = 1e12  # seconds
CHECKPOINT_AGAIN_SECONDS = 30.0  # after a checkpoint that failed

Read = Callable[[Learner, Journal], Any]
Request = tuple[Change | Read, Future]

log = logging.getLogger("klda.server")


class Writer:
    """The thread that changes the model, from its construction to a stop."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.snapshot: Snapshot  # with a learner that is never changed: another takes its place
        self.refused = 0  # changes that a replay could not make
        self.pending = 0  # changes that only the journal has
        self.on_change: Callable[[], None] = lambda: None  # called by the thread
        self._journal: Journal
        self._model_problem = self._folder_problem = ""
        self._folder_has_expired_undo = False  # undo data that is no longer in memory
        self._checkpoint_at = time.monotonic() + settings.checkpoint_interval
        self._requests: deque[Request] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        started: Future = Future()
        self._thread = threading.Thread(target=self._run, args=[started], name="writer")
        self._thread.daemon = True
        self._thread.start()
        started.result()

    # ------------------------------------------------------------------ from other threads

    def stop(self) -> None:
        """Make the waiting changes, save the model, release the folder."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, change: Change) -> Future:
        """Return a future that is done once a change is durable and the snapshot has it."""
        return self._enter(change, self._requests.append)

    def read(self, function: Read) -> Future:
        """Call a function with the learner and the journal, before the changes that wait."""
        return self._enter(function, self._requests.appendleft)

    def get_ready(self) -> Future:
        """Solve a model that was only read: the first change would take seconds longer."""
        return self.read(lambda *_: self._solve())

    def expire_undo(self, before: float | None) -> Future:
        """Return a future that is done once undo data is erased from the disk: whether any was."""
        return self.read(lambda *_: self._erase_undo(before))

    def _enter(self, work: Change | Read, put: Callable[[Request], None]) -> Future:
        future: Future = Future()
        with self._wake:
            if self._stopping:
                raise ServerError("The service is stopping: try again in a moment.", 503)
            if self.waiting >= MAX_WAITING:
                raise ServerError("Too many changes are waiting: try again in a moment.", 503)
            put((work, future))
            self._wake.notify()
        return future

    @property
    def learner(self) -> Learner:
        """The model as it is now; not to be changed."""
        return self.snapshot.learner

    @property
    def waiting(self) -> int:
        """Changes and reads that wait."""
        return len(self._requests)

    @property
    def problems(self) -> dict[str, str]:
        """Why its parts can't work; "" for each that can."""
        ended = "" if self._thread.is_alive() else "the thread that learns has ended"
        return {
            "writer": ended or self._model_problem,
            "journal": self._journal.problem,
            "folder": self._folder_problem,
        }

    # ------------------------------------------------------------------ the thread

    def _run(self, started: Future) -> None:
        lower_priority()
        try:
            with self._opened():
                settle(started, None)
                while self._requests or not self._stopping:
                    self._turn()
                self._finish()
        except BaseException as error:
            if started.done():
                log.exception("writer")
            settle(started, error)
        finally:
            with self._wake:
                self._stopping = True
                for _, future in self._requests:
                    settle(future, ServerError("The thread that learns has ended.", 503))

    def _turn(self) -> None:
        """Do what waits, or wait for a while, and then do what is due."""
        seconds = max(0.05, min(1.0, self.settings.checkpoint_interval))
        with self._wake:
            self._wake.wait_for(lambda: self._requests or self._stopping, seconds)
            taken = self._take()
        try:
            if taken:
                self._do(taken)
            self._journal.probe()
            if self._is_checkpoint_due():
                self._checkpoint()
        except Exception:
            log.exception("writer")

    def _take(self) -> list[Request]:
        """Take the first request; if it is a learn, also the learns right after it."""
        taken: list[Request] = []
        rows = 0
        while self._requests and rows < MAX_GROUP_ROWS:
            work, _ = self._requests[0]
            if taken and not (isinstance(work, Learn) and isinstance(taken[0][0], Learn)):
                break
            taken.append(self._requests.popleft())
            rows += len(work.labels) if isinstance(work, Learn) else 0
        return taken

    def _do(self, requests: list[Request]) -> None:
        """Read, or make the changes that can be made in one transaction; and answer everyone."""
        try:
            work = requests[0][0]
            if isinstance(work, Change):
                changes = [one for one, _ in requests if isinstance(one, Change)]
                outcomes: list[Any] = self._make(changes)
                self._model_problem = ""
            else:
                outcomes = [work(self.learner, self._journal)]
        except Exception as error:
            if len(requests) > 1 and not isinstance(error, (JournalError, OSError)):
                for request in requests:  # one of them failed, and the others must not
                    self._do([request])
                return
            if not isinstance(error, ServerError):
                log.exception("writer")
            if isinstance(error, DamagedModelError):
                self._model_problem = "the model can't be read; see the log"
            outcomes = [error] * len(requests)
        for (_, future), outcome in zip(requests, outcomes, strict=True):
            settle(future, outcome)

    # ------------------------------------------------------------------ loading and replay

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Lock the folder, open its journal, and load the model."""
        model, discard = self.settings.model, self.settings.discard_journal
        with storage.writer_lock(model, timeout=2.0):
            for database in (storage.JOURNAL, storage.INBOX):
                for file in storage.database_files(model / database):
                    storage.check_own(file)
            if not storage.exists(model):
                if (model / storage.JOURNAL).exists() and not discard:
                    raise unusable(
                        model / storage.JOURNAL, "the model that it belongs to is missing"
                    )
                if (new := self.settings.new) is not None:
                    learner = Learner(new, **self.settings.device_options)
                    storage.save(model, *learner.pack(solved=False))
            document = storage.load(model).document
            with storage.folder_damage_named(model):
                bookmark = Bookmark.of(document.get("extras", {}))
                history = document["history"]  # without numbers in folders of version 0.2.0
                last = int(history[-1].get("number", len(history))) if history else 0
            if discard:
                bookmark = Bookmark(bookmark.position)
                set_aside(model)
            with closing(Journal(model, bookmark, last)) as self._journal:
                self._load()
                yield

    def _load(self) -> None:
        """Load the model from disk and replay the changes that it does not have.

        A change that raises a `KldaError` no longer fits the model: it is refused, and all others
        count. Any other error stops the start, and the journal keeps every change for the next one.
        """
        journal, settings = self._journal, self.settings
        learner = Learner.load(settings.model, verify=True, **settings.device_options)
        seconds = learner.undo_seconds
        learner.undo_seconds = FOREVER  # an undo that is replayed was in time
        missing = journal.waiting()
        if missing:
            log.info("replaying", extra={"changes": len(missing)})
        with journal.transaction():
            if missing and missing[0].number < learner.next_number:
                # Changes of the command line came first, and have these numbers.
                missing = journal.renumber(missing, learner.next_number)
            for change, error in replay(learner, missing):
                journal.refuse(change, str(error))
                noted = {"change": change.number, "kind": change.kind, "error": str(error)}
                log.error("change refused: it does not fit the model in the folder", extra=noted)
            self._folder_has_expired_undo = learner.expire_undo(time.time() - seconds)
            learner.undo_seconds = seconds
            self.snapshot = Snapshot.of(learner, journal.last)
        self.pending, self.refused = len(missing), len(journal.refused())

    # ------------------------------------------------------------------ changes

    def _make(self, changes: list[Change]) -> list[Change]:
        journal, learner, snapshot = self._journal, self.learner.copy(), self.snapshot
        if learner.engine.predicts_only:
            raise ServerError(PREDICTS_ONLY, 409)
        if not journal.is_bound:
            self._bind()
        with journal.transaction():
            made = make(learner, journal, changes)
            if journal.last != snapshot.version:
                snapshot = Snapshot.of(learner, journal.last)
        self.snapshot = snapshot
        self.on_change()
        self.pending += sum(not change.repeated for change in made)
        if self.refused:  # one may have been made again
            self.refused = len(journal.refused())
        return made

    def _solve(self) -> None:
        if self.learner.classes and not self.learner.engine.predicts_only:
            self.snapshot = Snapshot.of(self.learner.ready(), self.snapshot.version)

    # ------------------------------------------------------------------ checkpoints

    def _extras(self, bookmark: Bookmark) -> dict[str, Any]:
        return {**self.learner.extras, SERVICE: bookmark._asdict()}

    def _bind(self) -> None:
        """Let the model folder say that its journal has more: it must not be lost from now on."""
        bookmark = self._journal.bookmark(self._journal.position, is_open=True)
        try:
            storage.save_extras(self.settings.model, self._extras(bookmark))
        except Exception as error:
            self._note_folder_problem(error)
            raise
        self._journal.is_bound, self._folder_problem = True, ""

    def _is_checkpoint_due(self) -> bool:
        """Whether there is something to save, or what undoes changes is to be erased."""
        self._expire_undo(time.time() - self.learner.undo_seconds)
        if self._folder_has_expired_undo and not self._folder_problem:
            return True
        is_time = time.monotonic() >= self._checkpoint_at
        return is_time and bool(self.pending or self._folder_problem)

    def _expire_undo(self, before: float | None) -> bool:
        """Drop undo data from memory, all or what is older than a time; whether there was any."""
        learner = self.learner.copy()
        found = learner.expire_undo(before)
        if found:
            self.snapshot = replace(self.snapshot, learner=learner)
            self._folder_has_expired_undo = True
        return found

    def _erase_undo(self, before: float | None) -> bool:
        """Drop it from the model folder too, or raise."""
        found = self._expire_undo(before)
        if self._folder_has_expired_undo or self.pending:
            self._checkpoint()
        if self._folder_has_expired_undo or self.pending:
            said = "Nothing can be undone any more, but undo data is still on the disk:"
            raise ServerError(f"{said} {self._folder_problem}.", 503, "problem")
        return found

    def _checkpoint(self, *, is_open: bool = True) -> None:
        """Save the model; if that fails, its changes stay in the journal."""
        try:
            bookmark = self._journal.bookmark(self.snapshot.version, is_open=is_open)
            arrays, document = self.learner.pack(solved=bool(self.learner.classes))
            document["extras"] = self._extras(bookmark)
            # Overwriting is safe: nobody else can have saved while this process holds the lock.
            storage.save(self.settings.model, arrays, document)
            self._journal.is_bound = is_open
            self._journal.saved(bookmark.position)
            self._folder_problem, self._folder_has_expired_undo, self.pending = "", False, 0
            self._checkpoint_at = time.monotonic() + self.settings.checkpoint_interval
            log.info("checkpoint", extra={"position": bookmark.position})
        except Exception as error:
            log.error("checkpoint failed", exc_info=error)
            self._note_folder_problem(error)

    def _note_folder_problem(self, error: Exception) -> None:
        """Say why the folder could not be written; everyone may read it, so no file is named."""
        said = (getattr(cause, "strerror", None) for cause in (error, error.__cause__))
        reason = next(filter(None, said), type(error).__name__)
        if is_lack_of_memory(error):
            reason = "not enough memory"
        self._folder_problem = f"the model folder could not be written ({reason}); see the log"
        wait = min(self.settings.checkpoint_interval, CHECKPOINT_AGAIN_SECONDS)
        self._checkpoint_at = time.monotonic() + wait

    def _finish(self) -> None:
        """Save what is left, and let the folder say that it has everything."""
        self._expire_undo(time.time() - self.learner.undo_seconds)
        if self._folder_has_expired_undo or self.pending or self._journal.is_bound:
            self._checkpoint(is_open=False)
