"""What changes a model: a class for each kind, from the request to the journal."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np

from klda.inspection.refusal import Refusal
from klda.labels import Label, SimilarClassWarning, closest
from klda.learner import ForgetTraceWarning, Learner
from klda.learner.class_names import readable
from klda.server.errors import ServerError

API = "api"  # made a change, unless it says otherwise
SERVICE = "service"  # the source of what it learned, and its entry in the extras of a model
MAX_NUMBER = 2**53  # of a change


def digest(content: bytes) -> str:
    """Return a short fingerprint: 32 hex digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Key(NamedTuple):
    """An idempotency key, and the digest of the request that uses it."""

    name: str
    digest: str


class Tally(NamedTuple):
    """How the model answered just before it learned; `new` are samples of unknown classes."""

    right: int
    wrong: int
    new: int


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change to a model; once it is made, also what came of it."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Change]]] = {}

    key: Key | None = None
    by: str = API  # what made it: a program, the page, or an application that teaches
    # Once it is made:
    number: int = 0  # also in the learner's history
    when: float = 0.0  # seconds since 1970
    new_classes: Sequence[Label] = ()
    samples: int = 0  # that the model has more than before
    exact: bool = False  # it forgot something, without a trace
    repeated: bool = False  # an earlier request with the same key had made the change already

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.lower()
        cls.kinds[cls.kind] = cls

    @property
    def classes(self) -> Sequence[Label]:
        """The classes that it is about."""
        return ()

    def apply(self, learner: Learner) -> bool:
        """Change a learner; return whether that forgot something without a trace."""
        raise NotImplementedError

    def pack(self) -> dict[str, Any]:
        """Return what JSON can hold: all but the rows."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "rows"}
        return {"kind": self.kind, **values}

    @staticmethod
    def unpack(values: Mapping[str, Any], rows: np.ndarray | None) -> Change:
        """Return the change that `pack` described; what can't be one raises."""
        values = dict(values)
        kind = Change.kinds[values.pop("kind")]
        values["key"] = values["key"] and Key(*values["key"])
        if issubclass(kind, Samples):
            values["rows"] = rows
        if issubclass(kind, Learn):
            values["tally"] = values["tally"] and Tally(*values["tally"])
        return kind(**values)


@dataclass(frozen=True)
class Labelled(Change):
    """A change of classes, or of samples with one label each."""

    labels: Sequence[Label]

    @property
    def classes(self) -> Sequence[Label]:
        """The classes that it is about."""
        return list(dict.fromkeys(self.labels))


@dataclass(frozen=True)
class Samples(Labelled):
    """A change of samples."""

    rows: np.ndarray | None  # float32; None once the model folder has them


@dataclass(frozen=True)
class Learn(Samples):
    """Learn samples."""

    tally: Tally | None = None

    def apply(self, learner: Learner) -> bool:
        """Learn them, as one of several changes with consecutive numbers."""
        learn(learner, [self])
        return False


@dataclass(frozen=True)
class Remove(Samples):
    """Forget exactly these samples."""

    def apply(self, learner: Learner) -> bool:
        """Forget them."""
        _check_known(self.labels, learner.classes)
        assert self.rows is not None
        # One with a number was made before: they were compared with what was learned then.
        verify = not self.number
        learner.forget_rows(self.rows, list(self.labels), source=SERVICE, verify=verify)
        return True


@dataclass(frozen=True)
class Forget(Labelled):
    """Forget classes."""

    def apply(self, learner: Learner) -> bool:
        """Forget them."""
        _check_known(self.labels, learner.classes)
        is_exact = not learner.traces_of(self.labels)
        with warnings.catch_warnings(action="ignore", category=ForgetTraceWarning):
            learner.forget(list(self.labels), source=SERVICE)
        return is_exact


@dataclass(frozen=True)
class Rename(Change):
    """Give a class another name; or `merge` it into the class of that name."""

    old: Label
    new: Label
    merge: bool = False

    @property
    def classes(self) -> Sequence[Label]:
        """The classes that it is about."""
        return [self.old, self.new]

    def apply(self, learner: Learner) -> bool:
        """Rename it."""
        _check_known([self.old], known := learner.classes)
        if self.new in known and not self.merge:
            raise ServerError(
                f"There is a class {self.new!r} already: choose another name, or send "
                '"merge": true to make one class of the two.',
                409,
            )
        if self.new not in known and not (known[self.old] or learner.declared.get(self.old)):
            _check_readable(self.new)
        learner.rename(self.old, self.new, merge=self.merge)
        return False


@dataclass(frozen=True)
class Declare(Change):
    """Make classes known by their names, each with a description, or None."""

    described: Sequence[tuple[Label, str | None]]

    @property
    def classes(self) -> Sequence[Label]:
        """The classes that it is about."""
        return [label for label, _ in self.described]

    def apply(self, learner: Learner) -> bool:
        """Declare them; the response, not the log, tells which names look like others."""
        for label, description in self.described:
            if description is None:
                _check_readable(label)
        with warnings.catch_warnings(action="ignore", category=SimilarClassWarning):
            learner.declare(dict(self.described))
        return False


@dataclass(frozen=True)
class Tune(Change):
    """Set the threshold of unknown inputs."""

    refusal: Mapping[str, Any] | None  # packed; None is the usual one
    costs: Mapping[str, Any] = field(default_factory=dict)  # of each choice, for the response

    def apply(self, learner: Learner) -> bool:
        """Set it."""
        learner.set_refusal(None if self.refusal is None else Refusal.unpack(dict(self.refusal)))
        return False


@dataclass(frozen=True)
class Undo(Change):
    """Undo a change; that with the number 0 is the latest that is neither an undo nor undone."""

    target: int = 0

    def apply(self, learner: Learner) -> bool:
        """Undo it."""
        learner.undo(self.target)
        return False


@dataclass(frozen=True)
class Retry(Change):
    """Make a refused change again, as a new one; the journal has that one only."""

    target: int


def learn(learner: Learner, changes: Sequence[Learn]) -> None:
    """Learn the samples of changes with consecutive numbers, at the cost of one."""
    rows = np.concatenate([change.rows for change in changes if change.rows is not None])
    labels = [label for change in changes for label in change.labels]
    parts = [len(change.labels) for change in changes]
    learner.learn_rows(rows, labels, source=SERVICE, parts=parts)


def _check_readable(name: Label) -> None:
    if not readable(name):
        raise ServerError(
            f"The name {name!r} has no word in it: declare the class with a description.", 409
        )


def _check_known(labels: Sequence[Label], known: Collection[Label]) -> None:
    for label in labels:
        if label not in known:
            close = closest(label, known)
            meant = "" if close is None else f" Did you mean {close!r}?"
            raise ServerError(
                f"There is no class {label!r}.{meant} GET /v1/classes lists the classes.", 404
            )
