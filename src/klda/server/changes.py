"""Changes to a model: what the journal stores and the writer applies."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np

from klda.labels import Label

_STORED = {"correct": "right", "new_rows": "new"}  # other names in the journal


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
    correct: int = 0  # how the model answered on the rows before it learned them
    wrong: int = 0
    new_rows: int = 0  # of classes that it did not know
    sequence: int = 0  # assigned by the writer
    when: float = 0.0  # seconds since 1970

    def header(self) -> dict[str, Any]:
        """Return all but the rows, for JSON."""
        fields = asdict(replace(self, rows=None))
        values = {_STORED.get(name, name): value for name, value in fields.items() if value}
        values["labels"] = list(self.labels)
        if self.rows is not None:
            values["shape"] = list(self.rows.shape)
        return values

    @classmethod
    def of(cls, header: dict[str, Any], content: bytes) -> Change:
        """Return the change that a header and the bytes of its rows describe."""
        named = {stored: name for name, stored in _STORED.items()}
        values = {named.get(name, name): value for name, value in header.items() if name != "shape"}
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
    new_classes: tuple[Label, ...] = ()
    exact: bool = False  # it forgot, and left no trace
    repeated: bool = False  # an earlier request with the same key had made the change already


def digest(kind: str, content: Any) -> str:
    """Return a short fingerprint of a request, its body or what JSON can hold: 32 hex digits."""
    text = json.dumps(
        [kind, content], sort_keys=True, default=lambda body: body.model_dump(exclude_none=True)
    )
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
