"""The journal: a SQLite database in the model folder with what the model file does not hold yet.

It has a row for each of the latest changes, with the idempotency key, the answer, and how the
model answered before it was taught; what was changed is erased once the model folder has it.
Classes that a forget dropped are kept for an undo. One transaction makes a group of changes
durable, and its commit (synchronous=FULL) is the acknowledgement. The model folder records the
number of the last change in it, so a replay applies every change exactly once.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict
from safetensors.numpy import load, save

from klda.labels import Label
from klda.learner import Detached
from klda.server.changes import Acknowledgement, Binding, Change, Key, Kind, Tally
from klda.server.journal_file import JournalFile

MAX_ROWS = 10_000  # of changes in the model folder
MAX_TALLIES = 2_000
_SEALED = "sequence, header, features, key, digest, answer, at, correct, wrong, new"

log = logging.getLogger("klda.server")


class _Header(BaseModel):
    """A stored change, but for its rows and its number."""

    model_config = ConfigDict(strict=True)

    kind: Kind
    labels: list[Label]
    target: int
    descriptions: list[str | None]
    when: float


class Refusal(NamedTuple):
    """A change that could not be replayed."""

    change: Change
    reason: str


class Journal(JournalFile):
    """Changes that are durable but may not be in the model folder yet."""

    # ------------------------------------------------------------------ changes

    def add(self, change: Change, answer: Acknowledgement) -> None:
        """Store a change that has a number, and the answer to it."""
        stored = {name: getattr(change, name) for name in _Header.model_fields}
        rows = b"" if change.rows is None else np.ascontiguousarray(change.rows, "<f4").tobytes()
        keyed = (*change.key, json.dumps(asdict(answer))) if change.key else (None,) * 3
        values = (
            change.sequence,
            json.dumps(stored),
            rows,
            *keyed,
            float(change.when),
            *change.tally,
        )
        sealed = _seal(self._checksum_at(self.last), values)
        self._run(
            f"INSERT INTO changes ({_SEALED}, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            *values,
            sealed,
        )

    def answered(self, key: Key) -> tuple[Key, Acknowledgement] | None:
        """Return the key of an earlier change as it was used then, and the answer to it."""
        for *used, answer in self._run(
            "SELECT key, digest, answer FROM changes WHERE key = ?", key.name
        ):
            with self._decoding(f"the answer to {key.name!r}"):
                return Key(*used), Acknowledgement(**{**json.loads(answer), "repeated": True})
        return None

    def tallies(self) -> list[Tally]:
        """Return how the model answered just before it was taught lately, oldest first."""
        newest = self._run(
            "SELECT at, correct, wrong, new FROM changes WHERE correct NOTNULL "
            "ORDER BY sequence DESC LIMIT ?",
            MAX_TALLIES,
        )
        return [Tally(*row) for row in newest[::-1]]

    def start_at(self, binding: Binding) -> int:
        """Remove the changes that the model folder has; return the last of them.

        If the folder does not say which it has, those still in the journal are taken as missing
        from it.
        """
        self.check(binding)
        saved = self._checkpointed
        if binding.position is None:
            return saved
        if binding.position > saved:
            self.mark_checkpointed(binding)  # a kill came between a save and the removal
        elif binding.journal != self._folder:
            self.mark_bound()  # or between a save and this
        return binding.position

    def missing(self, position: int) -> list[Change]:
        """Return the changes after a position, oldest first."""
        before, changes = self._checksum_at(position), []
        for *values, sealed, refused in self._run(
            f"SELECT {_SEALED}, checksum, refused FROM changes WHERE sequence > ? "
            "ORDER BY sequence",
            position,
        ):
            if values[1] is not None or refused is None:  # not one that was tried again
                if sealed and sealed != _seal(before, values):
                    raise self._damaged(f"the checksum of change {values[0]} is another one")
                if refused is None:
                    changes.append(self._decoded(*values[:3]))
            before = sealed
        return changes

    def _decoded(self, sequence: int, header: str, content: bytes) -> Change:
        with self._decoding(f"change {sequence}"):
            stored = dict(_Header.model_validate_json(header))
            change = Change(**stored, sequence=sequence)
            if not content:
                return change
            rows = np.frombuffer(content, "<f4").reshape(len(change.labels), -1)
            return replace(change, rows=rows)

    def mark_checkpointed(self, binding: Binding) -> None:
        """Erase the changes that the model folder has; their keys, answers and tallies stay."""
        position = binding.position
        assert position is not None
        with self.transaction():
            self._run(
                "UPDATE changes SET header = NULL, features = NULL "
                "WHERE sequence <= ? AND header NOTNULL AND refused IS NULL",
                position,
            )
            self._run(
                "INSERT OR IGNORE INTO changes (sequence, checksum) VALUES (?, ?)",
                position,
                binding.checksum,
            )
            self._run(
                "DELETE FROM changes WHERE sequence <= ? AND header IS NULL", position - MAX_ROWS
            )
            self._run("DELETE FROM forgotten WHERE restored <= ?", position)
            self._run("UPDATE journal SET folder = ?", binding.journal)
        self._folder = binding.journal
        self._truncate()

    # ------------------------------------------------------------------ refused changes

    def refuse(self, change: Change, reason: str) -> None:
        """Keep a change that can't be replayed, but don't apply it again."""
        with self.transaction():
            self._run("UPDATE changes SET refused = ? WHERE sequence = ?", reason, change.sequence)

    def refused(self) -> list[Refusal]:
        """Return the changes that could not be replayed, and why."""
        return [
            Refusal(self._decoded(*stored), reason)
            for *stored, reason in self._run(
                "SELECT sequence, header, features, refused FROM changes "
                "WHERE refused NOTNULL AND header NOTNULL ORDER BY sequence"
            )
        ]

    def drop_refused(self, number: int, by: int) -> None:
        """Erase a refused change that was made again, as another one."""
        self._run(
            "UPDATE changes SET header = NULL, features = NULL, refused = ? WHERE sequence = ?",
            f"made again as change {by}",
            number,
        )

    # ------------------------------------------------------------------ forgotten classes

    def keep(self, sequence: int, when: float, classes: Iterable[Detached]) -> None:
        """Keep the classes that a forget dropped, for an undo."""
        for one in classes:
            content = save({name: np.ascontiguousarray(a) for name, a in one.arrays.items()})
            stored = (json.dumps(one.label), one.count, content, json.dumps(one.meta))
            label, count, arrays, meta = stored
            values = (sequence, label, count, when, arrays, meta, _seal(None, stored))
            self._run("REPLACE INTO forgotten VALUES (?, ?, ?, ?, ?, ?, 0, NULL, ?)", *values)

    def forgotten(self) -> dict[int, dict[Label, int]]:
        """Return the classes and counts that each forget dropped, where it can be undone."""
        found: dict[int, dict[Label, int]] = {}
        for number, label, count in self._run(
            "SELECT sequence, label, count FROM forgotten WHERE restored IS NULL ORDER BY sequence"
        ):
            with self._decoding(f"a class of forget {number}"):
                found.setdefault(number, {})[json.loads(label)] = count
        return found

    def kept(self, number: int, by: int) -> list[tuple[Detached, bool]]:
        """Return the classes of a forget, unless a change other than `by` has restored them.

        With each, whether another class was given its name since.
        """
        found = []
        for *stored, reused, sealed in self._run(
            "SELECT label, count, arrays, meta, name_reused, checksum FROM forgotten "
            "WHERE sequence = ? AND (restored IS NULL OR restored = ?)",
            number,
            by,
        ):
            label, count, arrays, meta = stored
            with self._decoding(f"a class of forget {number}"):
                if sealed and sealed != _seal(None, stored):
                    raise ValueError("its checksum is another one")
                one = Detached(json.loads(label), count, load(arrays), json.loads(meta))
            found.append((one, bool(reused)))
        return found

    def reuse_name(self, label: Label) -> None:
        """Note that a class was given a name that forgotten classes had."""
        self._run("UPDATE forgotten SET name_reused = 1 WHERE label = ?", json.dumps(label))

    def mark_restored(self, number: int, by: int) -> None:
        """Note that a change undid a forget; its classes stay until the folder has that change."""
        self._run("UPDATE forgotten SET restored = ? WHERE sequence = ?", by, number)

    def purge(self, before: float) -> bool:
        """Delete the classes forgotten before a time; return whether there were any."""
        expired = "FROM forgotten WHERE at < ? AND restored IS NULL"
        if not self._run(f"SELECT 1 {expired} LIMIT 1", before):
            return False
        with self.transaction():
            self._run(f"DELETE {expired}", before)
        self._truncate()
        return True


def _seal(before: str | None, values: Sequence[Any]) -> str:
    """Return the checksum of some values and of all that came before them."""
    seal = hashlib.blake2b((before or "").encode(), digest_size=16)
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        seal.update(b"%d:" % len(content))
        seal.update(content)
    return seal.hexdigest()
