"""One thread that owns the model: it locks the folder, loads, changes and saves the model.

Changes that wait are taken together: one update, one solve and one commit, however many there are.
Nobody sees the learner while it changes: answers come from the last snapshot. If anything fails
before the commit, the journal's transaction is rolled back and the learner is loaded again from
disk. A checkpoint saves the model to its folder.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from klda.encoders import Encoder
from klda.errors import KldaError, is_lack_of_memory
from klda.learner import Learner
from klda.learner import folder as storage
from klda.server.changes import SERVICE, Binding, Change
from klda.server.errors import ServerError
from klda.server.journal import Journal, JournalError
from klda.server.settings import MAX_WAITING, ServiceSettings
from klda.server.snapshot import Snapshot
from klda.server.update import OTHERS_ERRORS, Update
from klda.server.workers import lower_priority, open_learner, settle

MAX_GROUP = 256
MAX_GROUP_ROWS = 2048
RETRY_SECONDS = 5.0
CHECKPOINT_AGAIN_SECONDS = 30.0  # after a checkpoint that failed
# Errors that a change causes wherever it is applied, unless they are in OTHERS_ERRORS. All others
# (no memory, a disk or a GPU that fails) are the machine's.
CHANGE_ERRORS = (KldaError, ValueError, TypeError, LookupError, ArithmeticError)

Request = tuple[Change, Future]

log = logging.getLogger("klda.server")


class Writer:
    """The thread that changes the model, from its construction to a stop."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings  # with the foundation model of a new model
        self.learner: Learner  # for the writer's thread only, once it has changes to make
        self.snapshot: Snapshot
        self.refused = 0  # changes that a replay could not make
        self._thread = ThreadPoolExecutor(1, "writer", initializer=lower_priority)
        self._held = ExitStack()  # the lock and the journal
        self._journal: Journal
        self._encoder: Encoder | None = None
        self._waiting: deque[Request] = deque()
        self._problem = self._folder_problem = ""
        self._retry_at = 0.0
        self._next_checkpoint = time.monotonic() + settings.checkpoint_interval
        self._entrance = threading.Lock()
        self._stopped = threading.Event()
        try:
            self._thread.submit(self._start).result()
        except BaseException:
            self._thread.submit(self._held.close).result()
            self._thread.shutdown()
            raise
        threading.Thread(target=self._tick, name="tick", daemon=True).start()

    # ------------------------------------------------------------------ from other threads

    def stop(self) -> None:
        """Make the waiting changes, save the model, release the folder."""
        with self._entrance:
            self._stopped.set()
        self._thread.submit(self._finish)
        self._thread.submit(self._held.close)
        self._thread.shutdown()

    def submit(self, change: Change) -> Future:
        """Return a future that is done once a change is durable and the snapshot has it."""
        future: Future = Future()
        with self._entrance:
            self._check_open()
            if len(self._waiting) >= MAX_WAITING:
                raise ServerError("Too many changes are waiting: try again in a moment.", 503)
            self._waiting.append((change, future))
            self._thread.submit(self._serve)
        return future

    def inspect(self, function: Callable[[Learner, Journal], Any]) -> Future:
        """Run a function that reads the learner or the journal, between changes."""
        with self._entrance:
            self._check_open()
            return self._thread.submit(lambda: function(self.learner, self._journal))

    def _check_open(self) -> None:
        if self._stopped.is_set():
            raise ServerError("The service is stopping: try again in a moment.", 503)

    def _tick(self) -> None:
        """Let the thread do what is due, even if no changes arrive."""
        while not self._stopped.wait(max(0.05, min(1.0, self.settings.checkpoint_interval))):
            with self._entrance:
                if not self._stopped.is_set():
                    self._thread.submit(self._serve)

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
        ended = "the thread that learns has ended" if self._stopped.is_set() else ""
        return {
            "writer": ended or self._problem,
            "journal": self._journal.problem,
            "folder": self._folder_problem,
        }

    # ------------------------------------------------------------------ loading and replay

    def _start(self) -> None:
        """Lock the folder, open its journal, and load the model."""
        model, new, binding = self.settings.model, self.settings.new, Binding()
        if new is None and not (model / storage.JOURNAL).exists():
            storage.load(model)  # raises the error that says how to make a model
        self._held.enter_context(storage.writer_lock(model, timeout=2.0))
        is_new = not storage.exists(model)
        if not is_new:
            with storage.damage_named(model):
                binding = Binding.of(storage.load(model).document.get("extras", {}))
        self._journal = Journal(model, binding)
        self._held.callback(self._journal.close)
        if is_new:
            new = new or self._journal.foundation
            if new is None:
                storage.load(model)  # raises the error that says how to make a model
            else:
                self._journal.begin(new)
            self.settings = replace(self.settings, new=new)
        self._load()

    def _load(self) -> None:
        """Load the model from disk and replay the changes that it does not have.

        They are replayed together; if that fails, one by one, to find the one that no longer fits
        the model: it is refused, and all others count.
        """
        together = True
        while failed := self._replay(self._open(), together):
            change, error = failed
            if not together:
                self._journal.refuse(change, str(error))
                log.error(
                    "change refused: it does not fit the model in the folder",
                    extra={"change": change.sequence, "kind": change.kind, "error": str(error)},
                )
            together = False
        self.snapshot = Snapshot.of(self.learner, self._journal.last)
        self.refused = len(self._journal.refused())

    def _open(self) -> list[Change]:
        """Load the model; return the changes that it does not have."""
        # The encoder is opened once: loading the model again must not load the network again.
        self.learner = open_learner(self.settings, self._encoder, verify=True)
        self._encoder = self.learner.encoder
        is_saved = storage.exists(self.settings.model)
        return self._journal.start(Binding.of(self.learner.extras) if is_saved else Binding())

    def _replay(self, missing: list[Change], together: bool) -> tuple[Change, Exception] | None:
        """Apply changes, together or one by one; return the first that fails, and the error."""
        if not missing:
            return None
        log.info("replaying", extra={"changes": len(missing)})
        for group in [missing] if together else [[change] for change in missing]:
            try:
                with self._journal.transaction():
                    Update(self.learner, self._journal).replay(group)
                    if len(group) > 1 or group[0].kind == "remove":
                        Snapshot.of(self.learner, 0)  # solves, which may fail as well
            except OTHERS_ERRORS:
                raise
            except CHANGE_ERRORS as error:
                log.exception("replay")
                return group[0], error
        return None

    # ------------------------------------------------------------------ changes

    def _serve(self) -> None:
        """Make the changes that wait together, and do what is due."""
        group: list[Request] = []
        rows = 0
        while self._waiting and len(group) < MAX_GROUP and rows < MAX_GROUP_ROWS:
            group.append(self._waiting.popleft())
            rows += len(group[-1][0].labels)
        try:
            if self._problem and time.monotonic() >= self._retry_at:
                self._load()
                self._problem = ""
            if not self._problem:
                self._purge()
                if group:
                    self._commit(group)
                self._journal.probe()
                if self.pending and time.monotonic() >= self._next_checkpoint:
                    self._checkpoint()
        except Exception as error:
            log.exception("writer")
            reason = _reason(error)
            self._problem = f"a change could not be made or rolled back ({reason}); see the log"
            self._retry_at = time.monotonic() + RETRY_SECONDS
        for _, future in group:
            settle(future, _unavailable())  # unless it has an outcome

    def _commit(self, requests: list[Request]) -> None:
        """Make the changes that can be made, in one transaction, and answer everyone."""
        update = Update(self.learner, self._journal)
        try:
            with self._journal.transaction():
                outcomes = update.answer([change for change, _ in requests])
                last, snapshot = self._journal.last, self.snapshot
                if last != snapshot.version:
                    snapshot = Snapshot.of(self.learner, last)
        except Exception as error:
            log.exception("changes failed")
            if update.touched:
                self._load()
            if isinstance(error, (JournalError, OSError)) or len(requests) == 1:
                for _, future in requests:
                    settle(future, error)
            else:  # one of them failed, and the others must not fail with it
                for request in requests:
                    self._commit([request])
            return
        self.snapshot = snapshot
        if any(change.kind == "retry" for change, _ in requests):
            self.refused = len(self._journal.refused())
        if self.pending and not self._journal.is_bound and not self._folder_problem:
            self._checkpoint()  # the folder names its journal from the first change on
        for (_, future), outcome in zip(requests, outcomes, strict=True):
            settle(future, outcome)

    # ------------------------------------------------------------------ checkpoints

    def _purge(self) -> None:
        """Delete the forgotten classes that can no longer be undone, from the model folder too."""
        if self._journal.purge(time.time() - self.settings.undo_seconds):
            self._next_checkpoint = 0.0

    def _checkpoint(self) -> None:
        """Save the model; if that fails, its changes stay in the journal."""
        model, has_classes = self.settings.model, bool(self.learner.classes)
        wait = self.settings.checkpoint_interval
        if not has_classes and not storage.exists(model):
            return  # it never had any
        try:
            binding = self._journal.binding(self.snapshot.version)
            extras = {**self.learner.extras, SERVICE: binding._asdict()}
            arrays, document = self.learner.pack(solved=has_classes)
            # Overwriting is safe: nobody else can have saved while this process holds the lock.
            storage.save(model, arrays, {**document, "extras": extras})
            self._journal.mark_checkpointed(binding)
            self._folder_problem = ""
            log.info("checkpoint", extra={"position": binding.position})
        except Exception as error:
            log.error("checkpoint failed", exc_info=error)
            reason = _reason(error)
            self._folder_problem = f"the model folder could not be written ({reason}); see the log"
            wait = min(wait, CHECKPOINT_AGAIN_SECONDS)
        self._next_checkpoint = time.monotonic() + wait

    def _finish(self) -> None:
        """Save what is left."""
        try:
            if not self._problem:
                self._purge()
                if self.pending:
                    self._checkpoint()
        except Exception:
            log.exception("stop")


def _reason(error: Exception) -> str:
    """Say in a few words what went wrong, without names of files: it is for everyone."""
    if is_lack_of_memory(error):
        return "not enough memory"
    causes = (error, error.__cause__)
    said = (getattr(cause, "strerror", None) for cause in causes)
    return next((reason for reason in said if reason), type(error).__name__)


def _unavailable() -> ServerError:
    return ServerError(
        "The model can't be changed at the moment; see GET /v1/health.", 503, "problem"
    )
