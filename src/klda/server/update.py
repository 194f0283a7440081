"""Changes applied to a learner: new ones, or those out of a journal.

A `KldaError` leaves the learner unchanged. After any other error, discard it.

What undoes a change is in the learner, and so in the model folder. A change has the same number in
the journal and in the learner's history, where changes of the command line have numbers, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

from klda.engine.engine import PredictionOnlyError
from klda.engine.model import DamagedModelError
from klda.errors import KldaError, MissingDependencyError
from klda.learner import Learner
from klda.server.changes import Change, Declare, Learn, Retry, Undo, learn
from klda.server.errors import ServerError
from klda.server.journal import Journal, JournalError
from klda.storage.folder import ModelFolderError

# Errors in what is stored.
STORAGE_ERRORS = (JournalError, ModelFolderError, DamagedModelError)
# Errors that say nothing against a change: what is stored is damaged, the model can only predict,
# or a package is missing.
OTHERS_ERRORS = (*STORAGE_ERRORS, PredictionOnlyError, MissingDependencyError)


def make(learner: Learner, journal: Journal, changes: Sequence[Change]) -> list[Change]:
    """Make new changes, several learns or one of another kind, and store them.

    Learns are one update of the model, but have a number each. Return each change as it was made;
    one with a key that was used before as it was made then.
    """
    number = learner.next_number = max(journal.last + 1, learner.next_number)
    known, before = set(learner.classes), learner.samples
    made: list[Change] = []
    learns: list[Learn] = []
    for change in changes:
        if earlier := _made_before(journal, change):  # maybe one of these changes
            made.append(earlier)
            continue
        change, exact = _settled(learner, journal, change), False
        if not isinstance(change, Learn):
            with _conflicts():
                exact = change.apply(learner)
        names = change.classes if isinstance(change, Learn | Declare) else ()
        change = replace(
            change,
            number=number + len(learns),
            when=time.time(),
            samples=len(change.labels) if isinstance(change, Learn) else learner.samples - before,
            new_classes=[label for label in names if label not in known],
            exact=exact,
        )
        known.update(names)
        journal.add(change)
        made.append(change)
        if isinstance(change, Learn):
            learns.append(change)
    if learns:
        with _conflicts():
            learn(learner, learns)
    return made


def replay(learner: Learner, changes: Sequence[Change]) -> Iterator[tuple[Change, KldaError]]:
    """Make stored changes again, which were checked when they came.

    Yield those that don't fit the model any more, and why: they raised a `KldaError`. Any other
    error is one of klda or of the computer, so it ends the replay.
    """
    # Several learns are one update, as far as their numbers are consecutive.
    runs = groupby(enumerate(changes), lambda at: (isinstance(at[1], Learn), at[1].number - at[0]))
    for _, run in runs:
        several = [change for _, change in run]
        learns = [change for change in several if isinstance(change, Learn)]
        try:
            if learns:
                learner.next_number = learns[0].number
                learn(learner, learns)
                continue
        except OTHERS_ERRORS:
            raise
        except KldaError:
            pass  # one of them does not fit
        for change in several:
            try:
                learner.next_number = change.number
                change.apply(learner)
            except OTHERS_ERRORS:
                raise
            except KldaError as error:
                yield change, error


def undoable(learner: Learner, journal: Journal) -> list[Change]:
    """Return the changes that can be undone, oldest first."""
    return journal.numbered([one["number"] for one in learner.history if one["undoable"]])


@contextmanager
def _conflicts() -> Iterator[None]:
    """Let a client know that its change does not fit the model."""
    try:
        yield
    except (ServerError, *OTHERS_ERRORS):
        raise
    except KldaError as error:
        raise ServerError(str(error), 409) from error


def _settled(learner: Learner, journal: Journal, change: Change) -> Change:
    """Return the change that a request means."""
    if isinstance(change, Retry):
        refused = journal.take_refused(change.target)
        if refused is None:
            raise ServerError(
                f"Change {change.target} was not refused; GET /v1/refused lists those.", 404
            )
        return replace(refused, key=change.key, number=0)
    if isinstance(change, Undo):
        possible = undoable(learner, journal)
        if change.target == 0:
            possible = [one for one in possible if not isinstance(one, Undo)][-1:]
        for one in possible:
            if change.target in (0, one.number):
                return replace(change, target=one.number)
        wanted = f"undo={change.target} is not a change" if change.target else "There is no change"
        raise ServerError(
            f"{wanted} that can be undone: it was undone already, or too long ago.", 404
        )
    return change


def _made_before(journal: Journal, change: Change) -> Change | None:
    """Return the change that an earlier request with the same key has made."""
    earlier = journal.made_with(change.key) if change.key else None
    if earlier and journal.is_undone(earlier.number):
        return None  # as if it had never been made
    if earlier and change.key != earlier.key:
        raise ServerError(
            "Idempotency-Key was used for another request: use a new key for each request.", 409
        )
    return earlier and replace(earlier, repeated=True)
