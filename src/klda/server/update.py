"""Changes applied to a learner and stored in the journal: checks first, then all or nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from klda.engine.checks import check_label_kind
from klda.engine.engine import DamagedModelError, PredictionOnlyError
from klda.errors import KldaError, MissingDependencyError
from klda.labels import Label, check_labels
from klda.learner import Learner
from klda.learner.folder import ModelFolderError
from klda.server.changes import SERVICE, Acknowledgement, Change, Key
from klda.server.errors import ServerError
from klda.server.journal import Journal, JournalError

# Errors in what is stored.
STORAGE_ERRORS = (JournalError, ModelFolderError, DamagedModelError)
# Errors that no acknowledged change is to blame for: also a model or a computer that can't do what
# the ones before could.
OTHERS_ERRORS = (*STORAGE_ERRORS, PredictionOnlyError, MissingDependencyError)
ONE_STEP = ("remove", "rename", "declare")  # changes that one verb of the learner makes, or refuses


class Update:
    """Applies changes to a learner, inside a transaction of the journal.

    Neighbouring learns are one learn of all their rows.
    """

    def __init__(self, learner: Learner, journal: Journal) -> None:
        self._learner, self._journal = learner, journal
        self._pending: list[Change] = []  # learns that wait for their neighbours
        self._counts = Counter(learner.classes)  # with those
        self.touched = False  # whether the learner may have changed

    def answer(self, changes: Sequence[Change]) -> list[Acknowledgement | ServerError]:
        """Make and store new changes; return the answer to each, or why it is refused."""
        return self._each(changes, self._answer)

    def replay(self, changes: Sequence[Change]) -> None:
        """Make stored changes again, which were checked when they came."""
        self._each(changes, lambda change: self._make(change, verify=False))

    def _each(self, changes: Sequence[Change], make: Callable[[Change], Any]) -> list[Any]:
        outcomes = []
        for change, following in zip_longest(changes, changes[1:]):
            outcomes.append(make(change))
            if self._pending and (following is None or following.kind != "learn"):
                rows = np.concatenate([one.rows for one in self._pending if one.rows is not None])
                labels = [label for one in self._pending for label in one.labels]
                self._changing.learn_rows(rows, labels, source=SERVICE)
                self._pending = []
        return outcomes

    def _answer(self, change: Change) -> Acknowledgement | ServerError:
        try:
            if change.key and (earlier := self._journal.answered(change.key)):
                return _repeated(change, *earlier)
            retried = change.target if change.kind == "retry" else None
            if retried is not None:
                change = replace(self._refused(retried), key=change.key)
            change = replace(change, sequence=self._journal.last + 1, when=time.time())
            acknowledgement = self._make(change)
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
        for change, _ in self._journal.refused():
            if change.sequence == number:
                return change
        raise ServerError(f"Change {number} was not refused; GET /v1/refused lists those.", 404)

    def _make(self, change: Change, *, verify: bool = True) -> Acknowledgement:
        """Apply a change, and return the answer to it."""
        added = change.labels if change.kind in ("learn", "declare") else ()
        new = [label for label in dict.fromkeys(added) if label not in self._counts]
        exact = self._apply(change, verify)
        if change.kind != "learn":
            self._counts = Counter(self._learner.classes)
        return Acknowledgement(change.sequence, len(self._counts), self._counts.total(), new, exact)

    def _apply(self, change: Change, verify: bool) -> bool:
        """Apply a change; return whether it forgot something and left no trace of it."""
        labels = list(change.labels)
        match change.kind:
            case "learn":
                self._check_kind(labels)
                self._counts.update(labels)
                self._pending.append(change)
            case "declare":
                self._check_kind(labels)
                self._changing.declare(dict(zip(labels, change.descriptions, strict=True)))
            case "remove":
                self._check_known(labels)
                assert change.rows is not None
                self._changing.forget_rows(change.rows, labels, source=SERVICE, verify=verify)
                return True
            case "forget":
                self._check_known(labels)
                traces = self._learner.traces_of(labels)
                gone = [self._changing.detach(label) for label in dict.fromkeys(labels)]
                self._journal.keep(change.sequence, change.when, gone)
                return not traces
            case "rename":
                old, new = labels
                self._check_known([old])
                self._check_kind([new], "new")
                self._changing.rename(old, new)
                self._journal.reuse_name(new)
            case "restore":
                self._restore(change)
            case kind:
                raise ValueError(f"kind={kind!r} is not a kind of change")
        return False

    @property
    def _changing(self) -> Learner:
        """The learner, about to be changed."""
        self.touched = True
        return self._learner

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
        for one, reused in back:
            label = one.label
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
