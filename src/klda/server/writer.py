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

from klda.engine.engine import DamagedModelError
from klda.errors import is_lack_of_memory
from klda.learner import Learner
from klda.server.changes import SERVICE, Bookmark, Change
from klda.server.errors import ServerError
from klda.server.journal import Journal, JournalError, set_aside
from klda.server.settings import MAX_WAITING, ServiceSettings
from klda.server.snapshot import Snapshot
from klda.server.update import make, replay
from klda.server.workers import lower_priority, open_learner, outcome_of, settle
from klda.storage import folder as storage

MAX_GROUP_ROWS = 2048  # of learns that are made together
FOREVER = 1e12  # seconds
CHECKPOINT_AGAIN_SECONDS = 30.0  # after a checkpoint that failed

Request = tuple[Change, Future]
Read = Callable[[Learner, Journal], Any]

log = logging.getLogger("klda.server")


class Writer:
    """The thread that changes the model, from its construction to a stop."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings  # with the foundation model of a new model
        self.snapshot: Snapshot  # with a learner that is never changed: another takes its place
        self.refused = 0  # changes that a replay could not make
        self.on_change: Callable[[], None] = lambda: None  # called by the thread
        self._journal: Journal
        self._model_problem = self._folder_problem = ""
        self._is_stale = False  # the folder has what undoes changes that can't be undone any more
        self._checkpoint_at = time.monotonic() + settings.checkpoint_interval
        self._waiting: deque[Request] = deque()
        self._reads: deque[tuple[Read, Future]] = deque()
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
        return self._enter(self._waiting, change)

    def read(self, function: Read) -> Future:
        """Call a function with the learner and the journal, between changes."""
        return self._enter(self._reads, function)

    def _enter(self, queue: deque, work: Any) -> Future:
        future: Future = Future()
        with self._wake:
            if self._stopping:
                raise ServerError("The service is stopping: try again in a moment.", 503)
            if len(queue) >= MAX_WAITING:
                raise ServerError("Too many changes are waiting: try again in a moment.", 503)
            queue.append((work, future))
            self._wake.notify()
        return future

    @property
    def learner(self) -> Learner:
        """The model as it is now; not to be changed."""
        return self.snapshot.learner

    @property
    def waiting(self) -> int:
        """Changes that wait."""
        return len(self._waiting)

    @property
    def pending(self) -> int:
        """Changes that only the journal has."""
        return self.snapshot.version - self._journal.position

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
                while self._waiting or self._reads or not self._stopping:
                    self._turn()
                self._finish()
        except BaseException as error:
            if started.done():
                log.exception("writer")
            settle(started, error)
        finally:
            with self._wake:
                self._stopping = True
                for _, future in (*self._waiting, *self._reads):
                    settle(future, ServerError("The thread that learns has ended.", 503))

    def _turn(self) -> None:
        """Do what waits, or wait for a while, and then do what is due."""
        seconds = max(0.05, min(1.0, self.settings.checkpoint_interval))
        with self._wake:
            self._wake.wait_for(lambda: self._waiting or self._reads or self._stopping, seconds)
            changes = self._take()
        try:
            while self._reads:
                function, future = self._reads.popleft()
                settle(future, outcome_of(function, self.learner, self._journal))
            if changes:
                self._commit(changes)
            self._journal.probe()
            if self._is_checkpoint_due():
                self._checkpoint()
        except Exception:
            log.exception("writer")

    def _take(self) -> list[Request]:
        """Take the change that waits longest; if it is a learn, also the learns right after it."""
        taken: list[Request] = []
        rows = 0
        while self._waiting and rows < MAX_GROUP_ROWS:
            kinds = {change.kind for change, _ in (*taken[:1], self._waiting[0])}
            if taken and kinds != {"learn"}:
                break
            taken.append(self._waiting.popleft())
            rows += len(taken[-1][0].labels)
        return taken

    # ------------------------------------------------------------------ loading and replay

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Lock the folder, open its journal, and load the model."""
        model, new, bookmark = self.settings.model, self.settings.new, None
        if new is None and not (model / storage.JOURNAL).exists():
            storage.load(model)  # raises the error that says how to make a model
        with storage.writer_lock(model, timeout=2.0):
            if storage.exists(model):
                with storage.damage_named(model):
                    bookmark = Bookmark.of(storage.load(model).document.get("extras", {}))
            if self.settings.discard_journal:
                bookmark = bookmark and Bookmark(bookmark.position)
                set_aside(model)
            with closing(Journal(model, bookmark)) as self._journal:
                if bookmark is None:
                    new = self._journal.foundation or new
                    if new is None:
                        storage.load(model)  # raises, as above
                    self._journal.begin_model(str(new))
                    self.settings = replace(self.settings, new=new)
                self._load()
                yield

    def _load(self) -> None:
        """Load the model from disk and replay the changes that it does not have.

        One that no longer fits the model is refused, and all others count.
        """
        journal, learner = self._journal, open_learner(self.settings, verify=True)
        seconds = self.settings.undo_seconds
        seconds = learner.undo_seconds if seconds is None else seconds
        learner.undo_seconds = FOREVER  # an undo that is replayed was in time
        missing = journal.waiting()
        if missing:
            log.info("replaying", extra={"changes": len(missing)})
        with journal.transaction():
            for change, error in replay(learner, missing):
                journal.refuse(change, str(error))
                noted = {"change": change.number, "kind": change.kind, "error": str(error)}
                log.error("change refused: it does not fit the model in the folder", extra=noted)
            self._is_stale = learner.expire_undo(time.time() - seconds)
            learner.undo_seconds = seconds
            self.snapshot = Snapshot.of(learner, journal.last)
        self.refused = len(journal.refused())

    # ------------------------------------------------------------------ changes

    def _commit(self, requests: list[Request]) -> None:
        """Make the changes that can be made, in one transaction, and answer everyone."""
        try:
            outcomes: list[Any] = self._make([change for change, _ in requests])
            self._model_problem = ""
        except Exception as error:
            if len(requests) > 1 and not isinstance(error, (JournalError, OSError)):
                for request in requests:  # one of them failed, and the others must not
                    self._commit([request])
                return
            if not isinstance(error, ServerError):
                log.exception("changes failed")
            if isinstance(error, DamagedModelError):
                self._model_problem = "the model can't be read; see the log"
            outcomes = [error] * len(requests)
        for (_, future), outcome in zip(requests, outcomes, strict=True):
            settle(future, outcome)

    def _make(self, changes: list[Change]) -> list[Change]:
        journal, learner, snapshot = self._journal, self.learner.copy(), self.snapshot
        is_saved = storage.exists(self.settings.model)
        if is_saved and not journal.is_bound:
            self._bind()
        with journal.transaction():
            made = make(learner, journal, changes)
            if journal.last != snapshot.version:
                snapshot = Snapshot.of(learner, journal.last)
        self.snapshot = snapshot
        self.on_change()
        if any(change.kind == "retry" for change in changes):
            self.refused = len(journal.refused())
        if not is_saved and not self._folder_problem:
            self._checkpoint()
        return made

    # ------------------------------------------------------------------ checkpoints

    def _extras(self, bookmark: Bookmark) -> dict[str, Any]:
        return {**self.learner.extras, SERVICE: bookmark._asdict()}

    def _bind(self) -> None:
        """Let the model folder say that its journal has more: it must not be lost from now on."""
        bookmark = self._journal.bookmark(self._journal.position, is_open=True)
        storage.save_extras(self.settings.model, self._extras(bookmark))
        self._journal.is_bound = True

    def _is_checkpoint_due(self) -> bool:
        """Whether there is something to save, or what undoes changes is to be erased."""
        self._expire_undo()
        if self._is_stale and not self._folder_problem:
            return True
        is_time = time.monotonic() >= self._checkpoint_at
        return is_time and bool(self.pending or self._folder_problem)

    def _expire_undo(self) -> None:
        """Forget what undoes changes that are too old."""
        learner = self.learner.copy()
        if learner.expire_undo(time.time() - learner.undo_seconds):
            self.snapshot, self._is_stale = replace(self.snapshot, learner=learner), True

    def _checkpoint(self, *, is_open: bool = True) -> None:
        """Save the model; if that fails, its changes stay in the journal."""
        model, has_classes = self.settings.model, bool(self.learner.classes)
        wait = self.settings.checkpoint_interval
        if not has_classes and not storage.exists(model):
            return  # it never had any
        try:
            bookmark = self._journal.bookmark(self.snapshot.version, is_open=is_open)
            arrays, document = self.learner.pack(solved=has_classes)
            # Overwriting is safe: nobody else can have saved while this process holds the lock.
            storage.save(model, arrays, {**document, "extras": self._extras(bookmark)})
            self._journal.is_bound = is_open
            self._journal.saved(bookmark.position)
            self._folder_problem, self._is_stale = "", False
            log.info("checkpoint", extra={"position": bookmark.position})
        except Exception as error:
            log.error("checkpoint failed", exc_info=error)
            reason = _reason(error)
            self._folder_problem = f"the model folder could not be written ({reason}); see the log"
            wait = min(wait, CHECKPOINT_AGAIN_SECONDS)
        self._checkpoint_at = time.monotonic() + wait

    def _finish(self) -> None:
        """Save what is left, and let the folder say that it has everything."""
        self._expire_undo()
        if self._is_stale or self.pending or self._journal.is_bound:
            self._checkpoint(is_open=False)


def _reason(error: Exception) -> str:
    """Say in a few words what went wrong, without names of files: it is for everyone."""
    if is_lack_of_memory(error):
        return "not enough memory"
    causes = (error, error.__cause__)
    said = (getattr(cause, "strerror", None) for cause in causes)
    return next((reason for reason in said if reason), type(error).__name__)
