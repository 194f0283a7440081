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
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from klda.errors import KldaError
from klda.labels import Label
from klda.learner import Detached
from klda.learner.folder import JOURNAL

MAX_ROWS = 10_000  # of folded changes
MAX_TALLIES = 2_000
VERSION = 2
OLD_FILES = "journal-*.klda"  # where klda 0.1.0 kept its journal

_STORED = ("kind", "labels", "target", "descriptions", "when")  # of a change, as JSON
_SCHEMA = f"""
CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY,
    header TEXT, features BLOB,  -- NULL once the model folder has the change
    refused TEXT,  -- why it could not be replayed; such a change is kept, but no longer applied
    key TEXT UNIQUE, digest TEXT, answer TEXT,
    at REAL, correct INTEGER, wrong INTEGER, new INTEGER  -- the tally of a learn
);
CREATE TABLE forgotten (
    sequence INTEGER, label TEXT, count INTEGER NOT NULL, at REAL NOT NULL,
    arrays BLOB NOT NULL, meta TEXT NOT NULL,
    name_reused INTEGER NOT NULL,
    restored INTEGER,  -- number of the change that undid the forget
    PRIMARY KEY (sequence, label)
);
PRAGMA user_version = {VERSION};
"""


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
    ``labels[1]``; ``declare`` has a description, or None, for each class in `labels`.
    """

    kind: Literal["learn", "remove", "forget", "restore", "rename", "declare"]
    labels: Sequence[Label] = ()
    rows: np.ndarray | None = None  # float32
    target: int = 0
    descriptions: Sequence[str | None] = ()
    key: Key | None = None
    tally: tuple[int | None, ...] = (None, None, None)  # right, wrong, new samples before a learn
    sequence: int = 0  # assigned by the writer
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


def digest(content: bytes) -> str:
    """Return a short fingerprint: 32 hex digits."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


class JournalError(KldaError):
    """A journal that can't be read or written."""


class Journal:
    """Changes that are durable but may not be in the model folder yet.

    Only the process that holds the folder's lock may open its journal.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.trouble = ""  # why it could not be read or written, until a write succeeds
        old = [file for file in self.path.parent.glob(OLD_FILES) if file.stat().st_size]
        if old:
            raise JournalError(
                f"{old[0]} holds changes that the service of klda 0.1.0 has not folded into the "
                "model. Start and stop klda serve of that version once, which folds them, or move "
                "the file away to continue without them."
            )
        with self._reporting():
            # Transactions are explicit; one thread at a time uses the connection, but not always
            # the same.
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            ((version,),) = self._run("PRAGMA user_version")
            if version not in (0, VERSION):
                self._db.close()
                raise JournalError(
                    f"{self.path} has version {version} of the journal; this version of klda uses "
                    f"{VERSION}. Upgrade klda if a newer one wrote it; otherwise start and stop "
                    "the service once with the version that wrote it, then delete the file."
                )
            self._run("PRAGMA journal_mode = WAL")
            self._run("PRAGMA synchronous = FULL")
            self._run("PRAGMA secure_delete = ON")
            if not version:
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")

    def close(self) -> None:
        """Close the file; one that no change was ever stored in is removed."""
        is_empty = False
        with suppress(JournalError):
            is_empty = not self.last
        self._db.close()
        if is_empty:
            self.path.unlink()

    # ------------------------------------------------------------------ transactions

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make all changes of a block durable, or none if it raises."""
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite itself has rolled back after some errors
                with suppress(JournalError):
                    self._run("ROLLBACK")
            raise
        self.trouble = ""

    def probe(self) -> None:
        """Find out whether writing works again after it failed."""
        if self.trouble:
            with suppress(JournalError), self.transaction():  # `trouble` says why
                self._run(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.trouble = f"could not read or write the journal: {error}"
            raise JournalError(f"Could not read or write {self.path}: {error}.") from error

    def _run(self, statement: str, *values: Any) -> list[Any]:
        with self._reporting():
            return self._db.execute(statement, values).fetchall()

    # ------------------------------------------------------------------ changes

    @property
    def last(self) -> int:
        """Number of the last change ever made."""
        ((number,),) = self._run("SELECT ifnull(max(sequence), 0) FROM changes")
        return int(number)

    def add(self, change: Change, answer: Acknowledgement) -> None:
        """Store a change that has a number, and the answer to it."""
        header = json.dumps({name: getattr(change, name) for name in _STORED})
        rows = b"" if change.rows is None else np.ascontiguousarray(change.rows, "<f4").tobytes()
        keyed = (*change.key, json.dumps(asdict(answer))) if change.key else (None,) * 3
        values = (change.sequence, header, rows, *keyed, change.when, *change.tally)
        self._run("INSERT INTO changes VALUES (?, ?, ?, NULL, ?, ?, ?, ?, ?, ?, ?)", *values)

    def answered(self, key: Key) -> tuple[Key, Acknowledgement] | None:
        """Return the key of an earlier change as it was used then, and the answer to it."""
        for *used, answer in self._run(
            "SELECT key, digest, answer FROM changes WHERE key = ?", key.name
        ):
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

    def start_at(self, position: int | None) -> int:
        """Remove the changes that the model folder has; return the last of them.

        The model has the changes up to `position`. None if it does not say, because another program
        replaced it; then the changes still in the journal are taken as missing from it.
        """
        ((folded,),) = self._run(
            "SELECT ifnull(max(sequence), 0) FROM changes WHERE header IS NULL"
        )
        if position is None:
            position = folded
        if position < folded:
            raise JournalError(
                f"The model in {self.path.parent} has the changes up to {position}, but those up "
                f"to {folded} are no longer in its journal: the model is older than the journal. "
                f"Restore both from the same copy, or delete {JOURNAL} to continue without the "
                "changes in it."
            )
        if position > folded:  # by a kill between a save and the removal
            self.mark_folded(position)
        return position

    def missing(self, position: int) -> list[Change]:
        """Return the changes after a position, oldest first."""
        changes = []
        for sequence, header, content in self._run(
            "SELECT sequence, header, features FROM changes "
            "WHERE sequence > ? AND header NOTNULL AND refused IS NULL ORDER BY sequence",
            position,
        ):
            change = Change(**json.loads(header), sequence=sequence)
            if content:
                rows = np.frombuffer(content, "<f4").reshape(len(change.labels), -1)
                change = replace(change, rows=rows)
            changes.append(change)
        return changes

    def refuse(self, change: Change, reason: str) -> None:
        """Keep a change that can't be replayed, but don't apply it again."""
        with self.transaction():
            self._run("UPDATE changes SET refused = ? WHERE sequence = ?", reason, change.sequence)

    def mark_folded(self, position: int) -> None:
        """Erase the changes that the model folder has; their keys, answers and tallies stay."""
        with self.transaction():
            self._run(
                "UPDATE changes SET header = NULL, features = NULL "
                "WHERE sequence <= ? AND header NOTNULL AND refused IS NULL",
                position,
            )
            self._run("INSERT OR IGNORE INTO changes (sequence) VALUES (?)", position)
            self._run(
                "DELETE FROM changes WHERE sequence <= ? AND header IS NULL", position - MAX_ROWS
            )
            self._run("DELETE FROM forgotten WHERE restored <= ?", position)
        self._truncate()

    def _truncate(self) -> None:
        """Empty the write-ahead log, which still has what was deleted."""
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    # ------------------------------------------------------------------ forgotten classes

    def keep(self, sequence: int, when: float, classes: Iterable[Detached]) -> None:
        """Keep the classes that a forget dropped, for an undo."""
        for one in classes:
            content = save({name: np.ascontiguousarray(a) for name, a in one.arrays.items()})
            label, meta = json.dumps(one.label), json.dumps(one.meta)
            values = (sequence, label, one.count, when, content, meta)
            self._run("REPLACE INTO forgotten VALUES (?, ?, ?, ?, ?, ?, 0, NULL)", *values)

    def forgotten(self) -> dict[int, dict[Label, int]]:
        """Return the classes and counts that each forget dropped, where it can be undone."""
        found: dict[int, dict[Label, int]] = {}
        for number, label, count in self._run(
            "SELECT sequence, label, count FROM forgotten WHERE restored IS NULL ORDER BY sequence"
        ):
            found.setdefault(number, {})[json.loads(label)] = count
        return found

    def kept(self, number: int, by: int) -> list[tuple[Detached, bool]]:
        """Return the classes of a forget, unless a change other than `by` has restored them.

        With each, whether another class was given its name since.
        """
        found = self._run(
            "SELECT label, count, arrays, meta, name_reused FROM forgotten "
            "WHERE sequence = ? AND (restored IS NULL OR restored = ?)",
            number,
            by,
        )
        return [
            (Detached(json.loads(label), count, load(arrays), json.loads(meta)), bool(reused))
            for label, count, arrays, meta, reused in found
        ]

    def reuse_name(self, label: Label) -> None:
        """Note that a class was given a name that forgotten classes had."""
        self._run("UPDATE forgotten SET name_reused = 1 WHERE label = ?", json.dumps(label))

    def mark_restored(self, number: int, by: int) -> None:
        """Note that a change undid a forget; its classes stay until that change is folded."""
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
