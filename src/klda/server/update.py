"""Changes applied to a learner and stored in the journal: checks first, then all or nothing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from klda.classifiers.validation import check_label_kind
from klda.errors import KldaError
from klda.labels import Label, check_labels
from klda.learner import Learner
from klda.server.changes import Acknowledgement, Change
from klda.server.errors import ServiceError
from klda.server.journal import Journal

SERVICE = "service"  # the source of what it learned, and its entry in the extras of a model


class Update:
    """Applies changes to a learner and stores them in a journal, inside of its transaction.

    Neighbouring learns are applied together, when another change comes or at the end. A replay does
    not verify again that the samples to remove were learned.
    """

    def __init__(self, learner: Learner, journal: Journal, *, verify: bool = True) -> None:
        self._learner, self._journal, self._verify = learner, journal, verify
        self._pending: list[Change] = []
        self._counts = Counter(learner.classes)  # with the pending learns
        self._width = int(getattr(learner.classifier, "n_features_in_", 0))
        self.rows = 0  # labels in the changes made; 0 if none was

    def answer(self, change: Change) -> Acknowledgement | ServiceError:
        """Make a new change; return the answer to it, or why it is refused."""
        if change.kind != "learn":
            self.finish()
        try:
            if change.key and (earlier := self._journal.answered(change.key)):
                return _repeated(change, *earlier)
            change = replace(change, sequence=self._journal.last + 1, when=time.time())
            acknowledgement = self.make(change)
        except ServiceError as error:  # raised by checks: nothing was changed
            return error
        self._journal.add(change)
        self.remember(change, acknowledgement)
        self.rows += max(1, len(change.labels))
        return acknowledgement

    def remember(self, change: Change, acknowledgement: Acknowledgement) -> None:
        """Remember the answer to a change that has a key."""
        if change.key:
            self._journal.add_key(change.key, change.digest, acknowledgement)

    def make(self, change: Change) -> Acknowledgement:
        """Apply a change; a learn is applied together with the next ones."""
        new: tuple[Label, ...] = ()
        if change.kind in ("learn", "declare"):
            new = tuple(x for x in dict.fromkeys(change.labels) if x not in self._counts)
        if change.kind == "learn":
            check_learn(change, self._counts, self._width)
            assert change.rows is not None
            self._width = change.rows.shape[1]
            self._counts.update(change.labels)
            self._pending.append(change)
        else:
            self.finish()
            getattr(self, f"_{change.kind}")(change)
            self._counts = Counter(self._learner.classes)
        return Acknowledgement(change.sequence, len(self._counts), self._counts.total(), new)

    def finish(self) -> None:
        """Apply the learns that wait."""
        if self._pending:
            rows = np.concatenate([c.rows for c in self._pending if c.rows is not None])
            labels = [label for change in self._pending for label in change.labels]
            self._learner.learn_rows(rows, labels, source=SERVICE)
            self._pending = []

    def _remove(self, change: Change) -> None:
        check_known(change.labels, self._counts)
        assert change.rows is not None
        with _refusing():
            self._learner.forget_rows(
                change.rows, list(change.labels), source=SERVICE, verify=self._verify
            )

    def _rename(self, change: Change) -> None:
        old, new = change.labels
        check_known([old], self._counts)
        check_kind([new], self._counts, "new")
        with _refusing():
            self._learner.rename(old, new)
        self._journal.reuse_name(new)

    def _declare(self, change: Change) -> None:
        check_kind(change.labels, self._counts)
        with _refusing():
            self._learner.declare(dict(zip(change.labels, change.descriptions, strict=True)))

    def _forget(self, change: Change) -> None:
        labels: dict[Label, None] = dict.fromkeys(change.labels)
        check_known(labels, self._counts)
        gone = [self._learner.detach(label) for label in labels]
        self._journal.keep(change.sequence, change.when, gone)

    def _restore(self, change: Change) -> None:
        number = change.target
        back = self._journal.kept(number, by=change.sequence)
        reused = self._journal.reused_names(number)
        check_restore(number, [one.label for one in back], reused, self._counts)
        for one in back:
            self._learner.attach(one)
        self._journal.mark_restored(number, change.sequence)


@contextmanager
def _refusing(status: int = 409) -> Iterator[None]:
    """Give the errors of the learner, which has not changed then, a status of their own."""
    try:
        yield
    except KldaError as error:
        raise ServiceError(str(error), status) from error


def _repeated(change: Change, digest: str, earlier: Acknowledgement) -> Acknowledgement:
    if change.digest != digest:
        raise ServiceError(
            "Idempotency-Key was used for another request: use a new key for each request.", 409
        )
    return replace(earlier, repeated=True)


# ------------------------------------------------------------------ checks before a change


def check_learn(change: Change, counts: Mapping[Label, int], width: int) -> None:
    """Refuse labels of another kind and rows of another length than the model's."""
    check_kind(change.labels, counts)
    assert change.rows is not None
    if width and change.rows.shape[1] != width:
        raise wrong_width(change.rows.shape[1], width)


def wrong_width(given: int, expected: int) -> ServiceError:
    """Return the error for feature rows of the wrong length."""
    return ServiceError(f"features has rows of {given} numbers; this model expects {expected}.")


def check_restore(
    target: int, back: Sequence[Label], reused: set[Label], counts: Mapping[Label, int]
) -> None:
    """Refuse to restore what forget number `target` dropped if it no longer fits the model.

    `back` are its classes, none if it can't be undone; the names of those in `reused` were given to
    other classes since.
    """
    if not back:
        raise ServiceError(
            f"undo={target} is not a forget that can be undone: it was undone already, or too "
            "long ago.",
            404,
        )
    known = next(iter(counts), back[0])
    for label in back:
        if type(label) is not type(known):
            raise ServiceError(
                f"undo={target} would restore {label!r}, but this model now has classes such as "
                f"{known!r}, and labels are all texts or all integers. Forget those first.",
                409,
            )
        if label in counts and label in reused:
            raise ServiceError(
                f"undo={target} would restore {label!r}, but another class has that name now: "
                "rename it first.",
                409,
            )


def check_known(labels: Iterable[Label], counts: Mapping[Label, int]) -> None:
    """Refuse classes that do not exist."""
    for label in labels:
        if label not in counts:
            raise ServiceError(f"There is no class {label!r}; GET /v1/classes lists them.", 404)


def check_kind(
    labels: Sequence[Label], counts: Mapping[Label, int], parameter: str = "labels"
) -> None:
    """Refuse a mix of text labels and integer labels."""
    with _refusing(422):
        check_labels(labels, parameter)
        check_label_kind(np.array([*counts][:1]), labels, parameter)
