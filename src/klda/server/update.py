"""Changes applied to a learner, new ones or those out of a journal.

A learner that a change was refused by is as it was; one that several were applied to when another
kind of error came is not to be used any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from klda.engine.checks import check_label_kind
from klda.engine.engine import DamagedModelError, PredictionOnlyError
from klda.errors import KldaError, MissingDependencyError
from klda.labels import Label
from klda.learner import Detached, Learner
from klda.server.changes import SERVICE, Change
from klda.server.errors import ServerError
from klda.server.journal import Journal, JournalError
from klda.storage.folder import ModelFolderError

# Errors in what is stored.
STORAGE_ERRORS = (JournalError, ModelFolderError, DamagedModelError)
# Errors that no acknowledged change is to blame for: also a model or a computer that can't do what
# the ones before could.
OTHERS_ERRORS = (*STORAGE_ERRORS, PredictionOnlyError, MissingDependencyError)


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
        added = change.labels if change.kind in ("learn", "declare") else ()
        new = [label for label in dict.fromkeys(added) if label not in known]
        known.update(new)
        gone: list[Detached] = []
        if change.kind == "learn":
            learned.append(change)
            change = replace(change, samples=len(change.labels), new_classes=new)
        else:
            before = learner.samples
            try:
                gone, exact = _apply(learner, journal, change)
            except (ServerError, *OTHERS_ERRORS):
                raise
            except KldaError as error:
                raise ServerError(str(error), 409) from error
            samples = learner.samples - before
            change = replace(change, samples=samples, new_classes=new, exact=exact)
        journal.add(change, gone)
        if is_retry:
            journal.mark_retried(given.target)
        made.append(change)
    if learned:
        _learn(learner, learned)
    return made


def replay(
    learner: Learner, journal: Journal, changes: Sequence[Change]
) -> Iterator[tuple[Change, KldaError]]:
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
                    _apply(learner, journal, change, verify=False)
            except OTHERS_ERRORS:
                raise
            except KldaError as error:
                yield change, error


def _learn(learner: Learner, changes: Sequence[Change]) -> None:
    """Learn the rows of several changes, at the cost of one."""
    rows = np.concatenate([change.rows for change in changes if change.rows is not None])
    labels = [label for change in changes for label in change.labels]
    learner.learn_rows(rows, labels, source=SERVICE)


def _apply(
    learner: Learner, journal: Journal, change: Change, *, verify: bool = True
) -> tuple[list[Detached], bool]:
    """Apply a change other than a learn.

    Return the classes that it forgot, and whether it forgot something without a trace.
    """
    labels = list(change.labels)
    match change.kind:
        case "declare":
            learner.declare(dict(zip(labels, change.descriptions, strict=True)))
        case "remove":
            _check_known(learner, labels)
            assert change.rows is not None
            learner.forget_rows(change.rows, labels, source=SERVICE, verify=verify)
            return [], True
        case "forget":
            _check_known(learner, labels)
            is_exact = not learner.traces_of(labels)
            return [learner.detach(label) for label in dict.fromkeys(labels)], is_exact
        case "rename":
            _check_known(learner, labels[:1])
            learner.rename(*labels, merge=change.merge)
        case "undo":
            _undo(learner, journal, change, verify)
        case kind:
            raise ValueError(f"kind={kind!r} is not a kind of change")
    return [], False


def _undo(learner: Learner, journal: Journal, change: Change, verify: bool) -> None:
    """Bring back the classes that a forget dropped."""
    number = change.target
    if verify and number not in [made.number for made in journal.undoable()]:
        raise ServerError(
            f"undo={number} is not a forget that can be undone: it was undone already, or too "
            "long ago.",
            404,
        )
    back, known = journal.undo_of(number), learner.classes
    between = [made for made in journal.since(number) if made.number < change.number]
    renamed = {made.labels[1] for made in between if made.kind == "rename"}
    for one in back:
        check_label_kind(np.array([*known][:1]), [one.label], f"undo={number}")
        if one.label in known and one.label in renamed:
            raise ServerError(
                f"undo={number} would restore {one.label!r}, but another class has that name now: "
                "rename it first.",
                409,
            )
    for one in back:
        learner.attach(one)


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
