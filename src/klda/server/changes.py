"""What changes a model, from the request to the journal, and where a model folder stands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from klda.labels import Label

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
    """How the model answered just before it was taught; `new` are samples of unknown classes."""

    right: int
    wrong: int
    new: int


@dataclass(frozen=True)
class Change:
    """One change to a model; once it is made, also what came of it.

    ``learn`` and ``remove`` have `rows` and one label per row; ``forget`` drops the classes in
    `labels`; ``rename`` turns ``labels[0]`` into ``labels[1]``, which may be another
    class if it is to `merge` them; ``declare`` has a description, or
    None, for each class in `labels`. ``undo`` undoes the change number `target`; ``retry`` stands
    for the refused change number `target`, made again.
    """

    kind: Literal["learn", "remove", "forget", "rename", "declare", "undo", "retry"]
    labels: Sequence[Label] = ()
    rows: np.ndarray | None = None  # float32
    target: int = 0
    descriptions: Sequence[str | None] = ()
    merge: bool = False
    key: Key | None = None
    tally: Tally | None = None
    by: str = API  # what made it: a program, the page, or an application that teaches
    # Once it is made:
    number: int = 0
    when: float = 0.0  # seconds since 1970
    new_classes: Sequence[Label] = ()
    samples: int = 0  # that the model has more than before
    exact: bool = False  # it forgot, and left no trace
    repeated: bool = False  # an earlier request with the same key had made the change already


class Bookmark(NamedTuple):
    """Where a model folder stands in its journal; folders of klda 0.2.0 have a position alone."""

    position: int = 0  # number of the last change in the model
    checksum: str | None = None  # of that change and all before it
    is_open: bool = False  # the journal may have more changes

    @classmethod
    def of(cls, extras: Mapping[str, Any]) -> Self:
        """Read it from what services keep in a model folder; what can't be one raises."""
        noted = dict(extras.get(SERVICE, {}))
        position, checksum = int(noted.get("position", 0)), noted.get("checksum")
        if not 0 <= position <= MAX_NUMBER:
            raise ValueError(f"its position in the journal is {position}")
        return cls(position, checksum and str(checksum), bool(noted.get("is_open")))
