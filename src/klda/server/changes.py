"""What changes a model, what a service answers to it, and where a model folder stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from klda.labels import Label

SERVICE = "service"  # the source of what it learned, and its entry in the extras of a model
MAX_NUMBER = 2**53  # of a change


def digest(content: bytes) -> str:
    """Return a short fingerprint: 32 hex digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class Key(NamedTuple):
    """An idempotency key, and the digest of the request that uses it."""

    name: str
    digest: str


@dataclass(frozen=True)
class Tally:
    """How the model answered just before it was taught; `new` are samples of unknown classes."""

    when: float
    right: int
    wrong: int
    new: int


@dataclass(frozen=True)
class Change:
    """One change to a model.

    ``learn`` and ``remove`` have `rows` and one label per row; ``forget`` drops the classes in
    `labels`; ``restore`` undoes the forget number `target`; ``rename`` turns ``labels[0]`` into
    ``labels[1]``; ``declare`` has a description, or None, for each class in `labels`. ``retry``
    stands for the refused change number `target`, made again.
    """

    kind: Literal["learn", "remove", "forget", "restore", "rename", "declare", "retry"]
    labels: Sequence[Label] = ()
    rows: np.ndarray | None = None  # float32
    target: int = 0
    descriptions: Sequence[str | None] = ()
    key: Key | None = None
    tally: tuple[int | None, ...] = (None, None, None)  # right, wrong, new samples before a learn
    sequence: int = 0  # its number
    when: float = 0.0  # seconds since 1970


@dataclass(frozen=True)
class Acknowledgement:
    """The answer to a change."""

    version: int  # number of the change
    classes: int  # that the model had after it, and samples
    samples: int
    new_classes: Sequence[Label] = ()
    exact: bool = False  # it forgot, and left no trace
    repeated: bool = False  # an earlier request with the same key had made the change already


class Refusal(NamedTuple):
    """A change that could not be replayed."""

    change: Change
    reason: str


class Binding(NamedTuple):
    """What a model folder says about its journal; folders of klda 0.2.0 have a position alone."""

    journal: str | None = None  # the journal's id
    position: int | None = None  # number of the last change in the model; None: it does not say
    checksum: str | None = None  # of that change and all before it

    @classmethod
    def of(cls, extras: Mapping[str, Any]) -> Self:
        """Read it from what services keep in a model folder; values that can't be right raise."""
        noted = extras.get(SERVICE, {})
        found = cls(*(noted.get(name) for name in cls._fields))
        texts = isinstance(found.journal, str | None) and isinstance(found.checksum, str | None)
        position = 0 if found.position is None else found.position
        if not texts or type(position) is not int or not 0 <= position <= MAX_NUMBER:
            raise ValueError(f"its note on the service is {noted!r}")
        return found
