"""Changes to a model: what the journal stores and the writer applies."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from klda.labels import Label
from klda.server.errors import ServiceError


@dataclass(frozen=True)
class Change:
    """One change.

    ``learn`` and ``remove`` have `rows` and one label per row; ``forget`` drops the classes in
    `labels`; ``restore`` undoes the forget number `target`; ``rename`` turns ``labels[0]`` into
    ``labels[1]``; ``declare`` has a description, or None, for each class in `labels`.
    """

    kind: Literal["learn", "remove", "forget", "restore", "rename", "declare"]
    labels: tuple[Label, ...] = ()
    rows: np.ndarray | None = None  # float32
    key: str = ""  # idempotency key
    digest: str = ""  # fingerprint of the request that used the key
    target: int = 0
    descriptions: tuple[str | None, ...] = ()
    right: int = 0  # how the model answered on the rows before it learned them
    wrong: int = 0
    new: int = 0  # rows of classes that it did not know
    sequence: int = 0  # assigned by the writer
    when: float = 0.0  # seconds since 1970

    def header(self) -> dict[str, Any]:
        """Return all but the rows, for JSON."""
        values = {name: value for name, value in asdict(replace(self, rows=None)).items() if value}
        values["labels"] = list(self.labels)
        if self.rows is not None:
            values["shape"] = list(self.rows.shape)
        return values

    @classmethod
    def of(cls, header: dict[str, Any], content: bytes) -> Change:
        """Return the change that a header and the bytes of its rows describe."""
        values = {name: value for name, value in header.items() if name != "shape"}
        rows = None
        if "shape" in header:
            rows = np.frombuffer(content, "<f4").reshape(header["shape"])
        for name in ("labels", "descriptions"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values, rows=rows)


@dataclass(frozen=True)
class Acknowledgement:
    """The answer to a change."""

    sequence: int
    classes: int  # that the model had after it, and samples
    samples: int
    new: tuple[Label, ...] = ()  # classes that it added
    repeated: bool = False  # an earlier request with the same key had made the change already


def digest(kind: str, content: Any) -> str:
    """Return a short fingerprint of a request: 32 hexadecimal digits."""
    text = json.dumps([kind, content], sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


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
    check_kind(back, counts, f"undo={target} would restore", 409)
    for label in back:
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
    labels: Iterable[Label],
    counts: Mapping[Label, int],
    subject: str = "labels has",
    status: int = 422,
) -> None:
    """Refuse a mix of text labels and integer labels."""
    labels = list(labels)
    known = next(iter(counts), labels[0])
    for label in labels:
        if isinstance(label, str) != isinstance(known, str):
            raise ServiceError(
                f"{subject} {label!r} ({type(label).__name__}), but this model uses labels such "
                f"as {known!r} ({type(known).__name__}): use one kind.",
                status,
            )
