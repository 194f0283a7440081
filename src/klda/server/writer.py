"""One thread that changes the model: apply, write to the journal, swap the snapshot, acknowledge.

Changes that wait are taken together: one update, one solve and one commit, however many there are.
Nobody sees the learner while it changes: answers come from the last snapshot. If anything fails
before the commit, the journal's transaction is rolled back and the learner is loaded again from
disk. A checkpoint saves the model to its folder in the background; learning continues meanwhile.
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
from klda.server.changes import SERVICE, UNBOUND, Binding, Change
from klda.server.errors import ServerError
from klda.server.journal import Journal
from klda.server.journal_file import JournalError
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
    """The thread that changes the model.

    It locks the folder, loads the model and replays the journal; a stop saves the model.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings  # with the foundation model of a new model
        self._thread = ThreadPoolExecutor(1, "writer", initializer=lower_priority)
        # The lock of a model folder belongs to a thread: this one locks it and saves to it.
        self._disk = ThreadPoolExecutor(1, "folder", initializer=lower_priority)
        self._held = ExitStack()  # the lock and the journal
        self._waiting: deque[Request] = deque()
        # A checkpoint under way, and what the folder says once it is done.
        self._saving: tuple[Future, Binding] | None = None
        self._checkpointed = 0  # number of the last change in the model folder
        self._problem = self._folder_problem = ""
        self._retry_at = 0.0
        self._entrance = threading.Lock()
        self._stopped = threading.Event()
        self._encoder: Encoder | None = None
        self.learner: Learner  # for the writer's thread only, once it has changes to make
        self.snapshot: Snapshot
        self.refused = 0  # changes that a replay could not make
        if settings.new is None and not (settings.model / storage.JOURNAL).exists():
            storage.load(settings.model)  # raises the error that says how to make a model
        try:
            lock = storage.writer_lock(settings.model, timeout=2.0)
            self._disk.submit(self._held.enter_context, lock).result()
            self._open_journal()
            self._load()
        except BaseException:
            self._release()
            raise
        self._next_checkpoint = time.monotonic() + settings.checkpoint_interval
        threading.Thread(target=self._tick, name="tick", daemon=True).start()

    # ------------------------------------------------------------------ from other threads

    def stop(self) -> None:
        """Make the waiting changes, save the model, release the folder."""
        with self._entrance:
            self._stopped.set()
        self._thread.submit(self._finish)
        self._thread.shutdown()
        self._release()

    def _release(self) -> None:
        self._disk.submit(self._held.close).result()
        self._disk.shutdown()

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
        return self.snapshot.version - self._checkpointed

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

    def _open_journal(self) -> None:
        """Open the journal of the model folder; one of a new model says how that begins."""
        model, saved = self.settings.model, storage.exists(self.settings.model)
        binding = UNBOUND
        if saved:
            with storage.damage_named(model):
                binding = Binding.of(storage.load(model).document.get("extras", {}))
        self._journal = Journal(model, binding)
        self._held.callback(self._journal.close)
        if not saved:
            new = self.settings.new or self._journal.foundation
            if new is None:
                storage.load(model)  # raises the error that says how to make a model
            else:
                self._journal.begin(new)
            self.settings = replace(self.settings, new=new)

    def _load(self) -> None:
        """Load the model from disk and replay the changes that it does not have.

        They are replayed together; if that fails, one by one, to find the one that no longer fits
        the model: it is refused, and all others count.
        """
        if self._saving is not None:
            self._saving[0].exception()  # waits
            self._saving = None
        missing = self._open()
        if missing:
            log.info("replaying", extra={"changes": len(missing)})
        size = max(1, len(missing))
        while failed := self._replay(missing, size):
            change, error = failed
            if size == 1:
                self._journal.refuse(change, str(error))
                log.error(
                    "change refused: it does not fit the model in the folder",
                    extra={"change": change.sequence, "kind": change.kind, "error": str(error)},
                )
            size = 1
            missing = self._open()
        self.snapshot = Snapshot.of(self.learner, self._journal.last)
        self.refused = len(self._journal.refused())

    def _open(self) -> list[Change]:
        """Load the model; return the changes that it does not have."""
        # The encoder is opened once: loading the model again must not load the network again.
        self.learner = open_learner(self.settings, self._encoder, verify=True)
        self._encoder = self.learner.encoder
        binding = Binding.of(self.learner.extras)
        if not storage.exists(self.settings.model):
            binding = Binding(position=0)
        self._checkpointed = self._journal.start_at(binding)
        return self._journal.missing(self._checkpointed)

    def _replay(self, missing: list[Change], size: int) -> tuple[Change, Exception] | None:
        """Apply changes in groups; return the first of a group that fails, and the error."""
        for start in range(0, len(missing), size):
            group = missing[start : start + size]
            try:
                with self._journal.transaction():
                    update = Update(self.learner, self._journal, verify=False)
                    for change in group:
                        update.make(change)
                    update.finish()
                    if len(group) > 1 or group[0].kind == "remove":
                        Snapshot.of(self.learner, 0)  # solves, which may fail as well
            except OTHERS_ERRORS:
                raise
            except CHANGE_ERRORS as error:
                log.exception("replay")
                return group[0], error
        return None

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        """Make the changes that wait together, and do what is due."""
        group = self._next_group()
        try:
            if self._problem and time.monotonic() >= self._retry_at:
                self._load()
                self._problem = ""
            if not self._problem:
                self._purge()
                if group:
                    self._commit(group)
                self._journal.probe()
                self._checkpoint_if_due()
        except Exception as error:
            log.exception("writer")
            reason = _reason(error)
            self._problem = f"a change could not be made or rolled back ({reason}); see the log"
            self._retry_at = time.monotonic() + RETRY_SECONDS
        for _, future in group:
            settle(future, _unavailable())  # unless it has an outcome

    def _next_group(self) -> list[Request]:
        group: list[Request] = []
        rows = 0
        while self._waiting and len(group) < MAX_GROUP and rows < MAX_GROUP_ROWS:
            group.append(self._waiting.popleft())
            rows += len(group[-1][0].labels)
        return group

    def _commit(self, requests: list[Request]) -> None:
        """Make the changes that can be made, in one transaction, and answer everyone."""
        update = Update(self.learner, self._journal)
        try:
            outcomes, snapshot = self._make(update, [change for change, _ in requests])
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
        if not self._journal.is_bound:
            self._bind()
        for (_, future), outcome in zip(requests, outcomes, strict=True):
            settle(future, outcome)

    def _make(self, update: Update, group: list[Change]) -> tuple[list[Any], Snapshot]:
        """Return an acknowledgement, or the error of a refused change, for each; and the result."""
        with self._journal.transaction():
            outcomes = [update.answer(change) for change in group]
            update.finish()
            last = self._journal.last
            if last == self.snapshot.version:
                return outcomes, self.snapshot
            return outcomes, Snapshot.of(self.learner, last)

    # ------------------------------------------------------------------ checkpoints

    def _purge(self) -> None:
        """Delete the forgotten classes that can no longer be undone, from the model folder too."""
        if self._journal.purge(time.time() - self.settings.undo_seconds):
            self._next_checkpoint = 0.0

    def _bind(self) -> None:
        """Let the model folder name its journal; a new model is saved, for others to load."""
        self._end_checkpoint()  # which does the same
        if self._journal.is_bound or self._folder_problem:
            return
        if not storage.exists(self.settings.model):
            self._checkpoint()
            return
        try:
            self._disk.submit(
                storage.save_extras, self.settings.model, self._extras(self._checkpointed)
            ).result()
            self._journal.mark_bound()
        except Exception as error:
            self._report_checkpoint(error)

    def _extras(self, position: int) -> dict[str, Any]:
        """Return what the model folder keeps for services once it has the changes so far."""
        return {**self.learner.extras, SERVICE: self._journal.binding(position)._asdict()}

    def _checkpoint_if_due(self) -> None:
        if self._saving is not None and self._saving[0].done():
            self._end_checkpoint()
        if self._saving is None and self.pending and time.monotonic() >= self._next_checkpoint:
            self._begin_checkpoint()

    def _checkpoint(self) -> None:
        """Save the model, and wait for it; if that fails, its changes stay in the journal."""
        self._begin_checkpoint()
        self._end_checkpoint()

    def _begin_checkpoint(self) -> None:
        """Start saving the model as it is now."""
        self._next_checkpoint = time.monotonic() + self.settings.checkpoint_interval
        has_classes = bool(self.learner.classes)
        if not has_classes and not storage.exists(self.settings.model):
            return  # it never had any
        try:
            extras = self._extras(self._journal.last)
            arrays, document = self.learner.pack(solved=has_classes)
        except Exception as error:
            self._report_checkpoint(error)
            return
        document = {**document, "extras": extras}
        # Overwriting is safe: nobody else can have saved while this process holds the lock.
        saved = self._disk.submit(storage.save, self.settings.model, arrays, document)
        self._saving = saved, Binding.of(extras)

    def _end_checkpoint(self) -> None:
        """Wait until the model is saved, and remove the changes in it from the journal."""
        if self._saving is None:
            return
        (saved, binding), self._saving = self._saving, None
        try:
            saved.result()
            self._journal.mark_checkpointed(binding)
        except Exception as error:
            self._report_checkpoint(error)
            return
        self._folder_problem = ""
        self._checkpointed = binding.position or 0
        log.info("checkpoint", extra={"position": self._checkpointed})

    def _report_checkpoint(self, error: Exception) -> None:
        """Say that a checkpoint failed, until one succeeds."""
        log.error("checkpoint failed", exc_info=error)
        reason, wait = _reason(error), self.settings.checkpoint_interval
        self._folder_problem = f"the model folder could not be written ({reason}); see the log"
        self._next_checkpoint = time.monotonic() + min(wait, CHECKPOINT_AGAIN_SECONDS)

    def _finish(self) -> None:
        """Save what is left."""
        try:
            self._end_checkpoint()
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
