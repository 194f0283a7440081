"""Changes applied to a learner, new ones or those out of a journal.

A learner that a change was refused by is as it was; one that several were applied to when another
kind of error came is not to be used any more.

What undoes a change is in the learner, and so in the model folder. The learner numbers its changes
itself, and has more of them than the journal: its extras say which is which.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from klda.engine.engine import DamagedModelError, PredictionOnlyError
from klda.errors import KldaError, MissingDependencyError
from klda.labels import Label
from klda.learner import ForgetTraceWarning, Learner, UndoError
from klda.server.changes import SERVICE, Change
from klda.server.errors import ServerError
from klda.server.journal import Journal, JournalError
from klda.storage.folder import ModelFolderError

# Errors in what is stored.
STORAGE_ERRORS = (JournalError, ModelFolderError, DamagedModelError)
# Errors that no acknowledged change is to blame for: also a model or a computer that can't do what
# the ones before could.
OTHERS_ERRORS = (*STORAGE_ERRORS, PredictionOnlyError, MissingDependencyError)
UNDO = "undo"  # an entry in the extras: numbers of changes, each with that in the learner's history


def make(learner: Learner, journal: Journal, changes: Sequence[Change]) -> list[Change]:
    """Make new changes, several learns or one of another kind, and store them.

    Return each as it was made; one with a key that was used before as it was made then.
    """
    known = set(learner.classes)
    made: list[Change] = []
    learned: list[Change] = []
    for given in changes:
        if given.key and (earlier := journal.made_with(given.key)):
            made.append(_repeated(given, earlier))
            continue
        is_retry = given.kind == "retry"
        change = replace(_refused(journal, given.target), key=given.key) if is_retry else given
        change = replace(change, number=journal.last + 1, when=time.time())
        if change.kind == "undo":
            change = replace(change, target=_to_undo(learner, change.target))
        added = change.labels if change.kind in ("learn", "declare") else ()
        new = [label for label in dict.fromkeys(added) if label not in known]
        known.update(new)
        if change.kind == "learn":
            learned.append(change)
            change = replace(change, samples=len(change.labels), new_classes=new)
        else:
            before = learner.samples
            try:
                exact = _apply(learner, change)
            except (ServerError, *OTHERS_ERRORS):
                raise
            except KldaError as error:
                raise ServerError(str(error), 409) from error
            samples = learner.samples - before
            change = replace(change, samples=samples, new_classes=new, exact=exact)
        journal.add(change)
        if is_retry:
            journal.mark_retried(given.target)
        made.append(change)
    if learned:
        _learn(learner, learned)
    return made


def replay(learner: Learner, changes: Sequence[Change]) -> Iterator[tuple[Change, KldaError]]:
    """Make stored changes again, which were checked when they came.

    Yield those that don't fit the model any more, and why.
    """
    for is_learn, group in groupby(changes, lambda change: change.kind == "learn"):
        several = list(group)
        try:
            if is_learn:
                _learn(learner, several)
                continue
        except OTHERS_ERRORS:
            raise
        except KldaError:
            pass  # one of them does not fit
        for change in several:
            try:
                if is_learn:
                    _learn(learner, [change])
                else:
                    _apply(learner, change, verify=False)
            except OTHERS_ERRORS:
                raise
            except KldaError as error:
                yield change, error


def _learn(learner: Learner, changes: Sequence[Change]) -> None:
    """Learn the rows of several changes, at the cost of one."""
    rows = np.concatenate([change.rows for change in changes if change.rows is not None])
    labels = [label for change in changes for label in change.labels]
    parts = [len(change.labels) for change in changes]
    learner.learn_rows(rows, labels, source=SERVICE, parts=parts)
    _note(learner, changes)


def _apply(learner: Learner, change: Change, *, verify: bool = True) -> bool:
    """Apply a change other than a learn; return whether it forgot something without a trace."""
    labels, is_exact = list(change.labels), False
    match change.kind:
        case "declare":
            learner.declare(dict(zip(labels, change.descriptions, strict=True)))
        case "remove":
            _check_known(learner, labels)
            assert change.rows is not None
            learner.forget_rows(change.rows, labels, source=SERVICE, verify=verify)
            is_exact = True
        case "forget":
            _check_known(learner, labels)
            is_exact = not learner.traces_of(labels)
            with warnings.catch_warnings(action="ignore", category=ForgetTraceWarning):
                learner.forget(labels, source=SERVICE)
        case "rename":
            _check_known(learner, labels[:1])
            learner.rename(*labels, merge=change.merge)
        case "undo":
            _undo(learner, change.target)
        case kind:
            raise ValueError(f"kind={kind!r} is not a kind of change")
    _note(learner, [change])
    return is_exact


# ------------------------------------------------------------------ undo


def undoable(learner: Learner) -> list[int]:
    """Return the numbers of the changes that can be undone, oldest first."""
    numbers = {entry["number"] for entry in learner.history if entry["undoable"]}
    return [int(number) for number, own in _noted(learner).items() if own in numbers]


def _noted(learner: Learner) -> dict[str, int]:
    return dict(learner.extras.get(UNDO, {}))


def _note(learner: Learner, changes: Sequence[Change]) -> None:
    """Note the numbers that the latest changes have in the learner's history.

    Of more changes than the history holds, the latest.
    """
    history = learner.history
    own = [entry["number"] for entry in history[-len(changes) :]]
    changes = changes[len(changes) - len(own) :]
    kept = {entry["number"] for entry in history if entry["undoable"]}
    noted = {number: entry for number, entry in _noted(learner).items() if entry in kept}
    new = zip((str(change.number) for change in changes), own, strict=True)
    learner.extras = {**learner.extras, UNDO: noted | dict(new)}


def _to_undo(learner: Learner, number: int) -> int:
    """Return the change to be undone; 0 is the latest that is neither an undo nor undone."""
    possible = undoable(learner)
    if number == 0:
        undos = {entry["number"] for entry in learner.history if entry["action"] == "undo"}
        noted = _noted(learner)
        possible = [one for one in possible if noted[str(one)] not in undos]
        number = possible[-1] if possible else 0
    if number not in possible:
        wanted = f"undo={number} is not a change" if number else "There is no change"
        raise ServerError(
            f"{wanted} that can be undone: it was undone already, or too long ago.", 404
        )
    return number


def _undo(learner: Learner, number: int) -> None:
    noted = _noted(learner)
    if str(number) not in noted:
        raise UndoError(f"Change {number} can't be undone any more.")
    ours = {str(own): change for change, own in noted.items()}
    try:
        learner.undo(noted[str(number)])
    except UndoError as error:
        # The learner has numbers of its own.
        told = re.sub(r"(?<=[Cc]hange )\d+", lambda found: ours.get(found[0], "?"), str(error))
        raise UndoError(told) from error


def _check_known(learner: Learner, labels: Iterable[Label]) -> None:
    known = learner.classes
    for label in labels:
        if label not in known:
            raise ServerError(f"There is no class {label!r}; GET /v1/classes lists them.", 404)


def _refused(journal: Journal, number: int) -> Change:
    for change, _ in journal.refused():
        if change.number == number:
            return change
    raise ServerError(f"Change {number} was not refused; GET /v1/refused lists those.", 404)


def _repeated(change: Change, earlier: Change) -> Change:
    if change.key != earlier.key:
        raise ServerError(
            "Idempotency-Key was used for another request: use a new key for each request.", 409
        )
    return replace(earlier, repeated=True)
