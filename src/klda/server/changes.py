"""Changes of a model: what the journal keeps, what the writer applies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from klda.server.errors import ConflictError, NotFoundError, ServiceError

Label = str | int
Kind = Literal["learn", "remove", "forget", "restore", "rename", "cancel"]


@dataclass(frozen=True)
class Change:
    """One change.

    Attributes
    ----------
    kind : str
        ``learn`` and ``remove`` have `rows`, and a label for each in `labels`; ``forget`` drops the
        classes in `labels`; ``restore`` brings back what the forget number `target` dropped;
        ``rename`` turns ``labels[0]`` into ``labels[1]``; ``cancel`` takes back the change number
        `target`, which could not be applied.
    labels : tuple of label
        See above.
    rows : ndarray or None
        Features, float32.
    sequence : int
        Number of the change; given when it is written.
    key : str
        Idempotency key, or "".
    digest : str
        Tells a retried request from another one with the same key.
    target : int
        See above.
    when : float
        Seconds since 1970.
    right, wrong, new : int
        How the model had answered on the rows before it learned them; `new` counts rows of classes
        that it did not know.
    """

    kind: Kind
    labels: tuple[Label, ...] = ()
    rows: np.ndarray | None = None
    sequence: int = 0
    key: str = ""
    digest: str = ""
    target: int = 0
    when: float = 0.0
    right: int = 0
    wrong: int = 0
    new: int = 0

    def numbered(self, sequence: int, when: float) -> Change:
        """Return the change with its number and time."""
        return replace(self, sequence=sequence, when=when)

    def header(self) -> dict[str, Any]:
        """Return all but the rows, for JSON."""
        values = {name: value for name, value in asdict(replace(self, rows=None)).items() if value}
        values["labels"] = list(self.labels)
        if self.rows is not None:
            values["shape"] = list(self.rows.shape)
        return values

    @classmethod
    def of(cls, header: dict[str, Any], rows: np.ndarray | None) -> Change:
        """Return the change that a header and rows describe."""
        values = {name: value for name, value in header.items() if name != "shape"}
        return cls(**{**values, "labels": tuple(values["labels"])}, rows=rows)


def digest(kind: str, content: Any) -> str:
    """Return a short fingerprint of a request.

    Parameters
    ----------
    kind : str
        What it asks for.
    content : object
        JSON-able.

    Returns
    -------
    str
        32 hexadecimal digits.
    """
    text = json.dumps([kind, content], sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Projection:
    """Classes and counts as they will be once the changes accepted so far are applied.

    Changes are checked against it before they are written, so that what is in the journal can be
    applied.

    Parameters
    ----------
    counts : dict
        Classes and counts now.
    forgotten : dict of int to dict
        For each forget that can be undone, the classes it dropped.
    taken : set of (int, label)
        Forgets and classes that they dropped, whose names other classes were given since.
    width : int
        Length of a feature row; 0 while it is not known.
    """

    def __init__(
        self,
        counts: dict[Label, int],
        forgotten: dict[int, dict[Label, int]],
        taken: Set[tuple[int, Label]] = frozenset(),
        width: int = 0,
    ) -> None:
        self.counts = dict(counts)
        self.forgotten = dict(forgotten)
        self.taken = set(taken)
        self.width = width

    def accept(self, change: Change) -> None:
        """Check a change and take its effect into account; raises without effect."""
        getattr(self, f"_{change.kind}")(change)

    def _learn(self, change: Change) -> None:
        self._check_kind(change.labels)
        self._check_width(change)
        for label, count in _tally(change.labels).items():
            self.counts[label] = self.counts.get(label, 0) + count

    def _remove(self, change: Change) -> None:
        tally = _tally(change.labels)
        self._check_known(tally)
        for label, count in tally.items():
            if count > self.counts[label]:
                raise ConflictError(
                    f"labels names {count} samples of class {label!r} to forget, which has "
                    f"{self.counts[label]}: give at most as many as were learned."
                )
        for label, count in tally.items():
            self.counts[label] -= count
            if not self.counts[label]:
                del self.counts[label]

    def _forget(self, change: Change) -> None:
        self._check_known(change.labels)
        dropped = {label: self.counts.pop(label) for label in dict.fromkeys(change.labels)}
        self.forgotten[change.sequence] = dropped

    def _restore(self, change: Change) -> None:
        if change.target not in self.forgotten:
            raise NotFoundError(
                f"undo={change.target} is not a forget that can be undone: it was undone already, "
                "or is too long ago."
            )
        back = self.forgotten[change.target]
        self._check_free(change.target, back)
        for label, count in back.items():
            self.counts[label] = self.counts.get(label, 0) + count
        del self.forgotten[change.target]

    def _rename(self, change: Change) -> None:
        old, new = change.labels
        self._check_known([old])
        self._check_kind([new])
        if new in self.counts:
            raise ConflictError(f"new={new!r} is a class already: choose another name.")
        self.counts[new] = self.counts.pop(old)
        self.taken |= names_taken(new, self.forgotten)

    def _check_free(self, target: int, back: Iterable[Label]) -> None:
        """Refuse to bring back classes among which they would be strangers."""
        known = next(iter(self.counts), None)
        for label in back:
            if known is not None and isinstance(label, str) != isinstance(known, str):
                raise ConflictError(
                    f"undo={target} would bring back {label!r} ({type(label).__name__}), where "
                    f"labels such as {known!r} ({type(known).__name__}) are in use by now."
                )
            if label in self.counts and (target, label) in self.taken:
                raise ConflictError(
                    f"undo={target} would bring back {label!r}, but another class was given that "
                    "name: rename it first."
                )

    def _check_width(self, change: Change) -> None:
        if change.rows is None:
            return
        width = change.rows.shape[1]
        if self.width and width != self.width:
            raise ServiceError(
                f"features has rows of {width} numbers, but this model's have {self.width}."
            )
        self.width = width

    def _check_known(self, labels: Any) -> None:
        for label in labels:
            if label not in self.counts:
                raise NotFoundError(f"There is no class {label!r}; GET /v1/classes lists them.")

    def _check_kind(self, labels: Any) -> None:
        known = next(iter(self.counts), next(iter(labels)))
        for label in labels:
            if isinstance(label, str) != isinstance(known, str):
                raise ServiceError(
                    f"labels has {label!r} ({type(label).__name__}), where labels such as "
                    f"{known!r} ({type(known).__name__}) are in use: use one kind."
                )


def names_taken(new: Label, forgotten: Mapping[int, Iterable[Label]]) -> set[tuple[int, Label]]:
    """Return the forgotten classes whose name a class is given.

    Parameters
    ----------
    new : label
        The name.
    forgotten : mapping of int to iterable of label
        For each forget that can be undone, the classes it dropped.

    Returns
    -------
    set of (int, label)
        The number of the forget, and the name.
    """
    return {(number, new) for number, labels in forgotten.items() if new in labels}


def _tally(labels: tuple[Label, ...]) -> dict[Label, int]:
    tally: dict[Label, int] = {}
    for label in labels:
        tally[label] = tally.get(label, 0) + 1
    return tally
