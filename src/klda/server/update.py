"""Changes applied to a learner and stored in the journal: checks first, then all or nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from klda.engine.checks import check_label_kind
from klda.engine.engine import DamagedModelError, PredictionOnlyError
from klda.errors import KldaError, MissingDependencyError
from klda.labels import Label, check_labels
from klda.learner import Learner
from klda.learner.folder import ModelFolderError
from klda.server.changes import SERVICE, Acknowledgement, Change, Key
from klda.server.errors import ServerError
from klda.server.journal import Journal
from klda.server.journal_file import JournalError

# Errors in what is stored.
STORAGE_ERRORS = (JournalError, ModelFolderError, DamagedModelError)
# Errors that no acknowledged change is to blame for: also a model or a computer that can't do what
# the ones before could.
OTHERS_ERRORS = (*STORAGE_ERRORS, PredictionOnlyError, MissingDependencyError)
ONE_STEP = ("remove", "rename", "declare")  # changes that one verb of the learner makes, or refuses


class Update:
    """Applies changes to a learner and stores them in a journal, inside its transaction.

    Neighbouring learns are applied together, when another kind of change arrives or at the end. A
    replay does not verify again that the samples to remove were learned.
    """

    def __init__(self, learner: Learner, journal: Journal, *, verify: bool = True) -> None:
        self._learner, self._journal, self._verify = learner, journal, verify
        self._pending: list[Change] = []
        self.touched = False  # whether the learner may have changed
        self._counts = Counter(learner.classes)  # with the pending learns

    @property
    def _changing(self) -> Learner:
        """The learner, about to be changed."""
        self.touched = True
        return self._learner

    def answer(self, change: Change) -> Acknowledgement | ServerError:
        """Make a new change; return the answer to it, or why it is refused."""
        if change.kind != "learn":
            self.finish()  # not within: what is wrong with those is not wrong with this one
        try:
            if change.key and (earlier := self._journal.answered(change.key)):
                return _repeated(change, *earlier)
            retried = change.target if change.kind == "retry" else None
            if retried is not None:
                change = replace(self._refused(retried), key=change.key)
            change = replace(change, sequence=self._journal.last + 1, when=time.time())
            acknowledgement = self.make(change)
        except ServerError as error:  # raised by checks: nothing was changed
            return error
        except STORAGE_ERRORS:
            raise
        except KldaError as error:
            if change.kind not in ONE_STEP:
                raise
            return ServerError(str(error), 409)  # the learner has not changed
        self._journal.add(change, acknowledgement)
        if retried is not None:
            self._journal.drop_refused(retried, by=change.sequence)
        return acknowledgement

    def _refused(self, number: int) -> Change:
        """Return a change that a replay refused."""
        for change, _ in self._journal.refused():
            if change.sequence == number:
                return change
        raise ServerError(f"Change {number} was not refused; GET /v1/refused lists those.", 404)

    def make(self, change: Change) -> Acknowledgement:
        """Apply a change, and return the answer to it; a learn waits for the next ones."""
        added = change.labels if change.kind in ("learn", "declare") else ()
        new = tuple(label for label in dict.fromkeys(added) if label not in self._counts)
        if change.kind != "learn":
            self.finish()
        apply: dict[str, Callable[[Change], bool | None]] = {
            "learn": self._learn,
            "remove": self._remove,
            "forget": self._forget,
            "restore": self._restore,
            "rename": self._rename,
            "declare": self._declare,
        }
        exact = bool(apply[change.kind](change))
        if change.kind != "learn":
            self._counts = Counter(self._learner.classes)
        return Acknowledgement(change.sequence, len(self._counts), self._counts.total(), new, exact)

    def finish(self) -> None:
        """Apply the learns that wait."""
        if self._pending:
            rows = np.concatenate([c.rows for c in self._pending if c.rows is not None])
            labels = [label for change in self._pending for label in change.labels]
            self._changing.learn_rows(rows, labels, source=SERVICE)
            self._pending = []

    def _learn(self, change: Change) -> None:
        self._check_kind(change.labels)
        self._counts.update(change.labels)
        self._pending.append(change)

    def _remove(self, change: Change) -> bool:
        self._check_known(change.labels)
        assert change.rows is not None
        labels = list(change.labels)
        self._changing.forget_rows(change.rows, labels, source=SERVICE, verify=self._verify)
        return True

    def _rename(self, change: Change) -> None:
        old, new = change.labels
        self._check_known([old])
        self._check_kind([new], "new")
        self._changing.rename(old, new)
        self._journal.reuse_name(new)

    def _declare(self, change: Change) -> None:
        self._check_kind(change.labels)
        self._changing.declare(dict(zip(change.labels, change.descriptions, strict=True)))

    def _forget(self, change: Change) -> bool:
        """Forget classes; return whether that leaves no trace."""
        self._check_known(change.labels)
        traces = self._learner.traces_of(change.labels)
        gone = [self._changing.detach(label) for label in dict.fromkeys(change.labels)]
        self._journal.keep(change.sequence, change.when, gone)
        return not traces

    def _restore(self, change: Change) -> None:
        number = change.target
        back = self._journal.kept(number, by=change.sequence)
        if not back:
            raise ServerError(
                f"undo={number} is not a forget that can be undone: it was undone already, or too "
                "long ago.",
                404,
            )
        known = next(iter(self._counts), back[0][0].label)
        for label, reused in ((one.label, reused) for one, reused in back):
            if type(label) is not type(known):
                raise ServerError(
                    f"undo={number} would restore {label!r}, but this model now has classes such "
                    f"as {known!r}, and labels are all texts or all integers. Forget those first.",
                    409,
                )
            if label in self._counts and reused:
                raise ServerError(
                    f"undo={number} would restore {label!r}, but another class has that name now: "
                    "rename it first.",
                    409,
                )
        for one, _ in back:
            self._changing.attach(one)
        self._journal.mark_restored(number, change.sequence)

    def _check_known(self, labels: Iterable[Label]) -> None:
        """Refuse classes that do not exist."""
        for label in labels:
            if label not in self._counts:
                raise ServerError(f"There is no class {label!r}; GET /v1/classes lists them.", 404)

    def _check_kind(self, labels: Sequence[Label], parameter: str = "labels") -> None:
        """Refuse a mix of text labels and integer labels."""
        try:
            check_labels(labels, parameter)
            check_label_kind(np.array([*self._counts][:1]), labels, parameter)
        except KldaError as error:
            raise ServerError(str(error)) from error


def _repeated(change: Change, used: Key, earlier: Acknowledgement) -> Acknowledgement:
    if change.key != used:
        raise ServerError(
            "Idempotency-Key was used for another request: use a new key for each request.", 409
        )
    return earlier
