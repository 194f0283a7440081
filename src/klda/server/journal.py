"""The journal: a SQLite database in the model folder with what the model files do not have yet.

It has a row for each of the latest changes. One transaction makes a group of changes durable, and
its commit is the acknowledgement. The database file alone has all that was acknowledged: a
write-ahead log would be faster, but SQLite goes on without a word if one is lost or damaged.

The rows of features that were learned or forgotten are erased once the model folder has them. The
rest stays: idempotency keys, and the history.

Each change has a checksum of itself and all before it, and the first is random: no two journals
have one in common. The model folder has a bookmark, the number and the checksum of the last change
in it. A start compares both before it writes anything, and replays every change exactly once.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda.server.changes import MAX_NUMBER, Bookmark, Change, Key, Tally
from klda.storage.folder import JOURNAL, check_own

VERSION = 5
MAX_KEPT = 10_000  # changes that the model folder has
MAX_HISTORY = 2_000  # changes that are listed

SUFFIXES = ("", "-journal", "-wal", "-shm")  # of files that SQLite may keep

_SCHEMA = (
    """CREATE TABLE changes (
    number INTEGER PRIMARY KEY,
    at REAL NOT NULL,
    change TEXT NOT NULL,
    rows BLOB,  -- NULL once the model folder has them
    key TEXT UNIQUE,
    checksum TEXT NOT NULL  -- of this change and all before it
)""",
    # Changes that could not be replayed, and why; NULL once they were made again.
    "CREATE TABLE refused (number INTEGER PRIMARY KEY, reason TEXT)",
    # How far the model folder has the changes; the foundation model of one not saved yet.
    "CREATE TABLE state (position INTEGER NOT NULL, foundation TEXT)",
)
_ERASE = (
    "UPDATE changes SET rows = NULL WHERE number <= :position AND rows NOTNULL "
    "AND number NOT IN (SELECT number FROM refused WHERE reason NOTNULL)",
    "DELETE FROM changes WHERE number <= :oldest "
    "AND number NOT IN (SELECT number FROM refused WHERE reason NOTNULL)",
    "UPDATE state SET position = :position, foundation = NULL",
)


class JournalError(KldaError):
    """A journal that can't be read or written, or does not belong to its model folder."""


class Journal:
    """Changes that are durable but may not be in the model folder yet.

    Only the process that holds the folder's lock may open it, and one thread at a time may use it.
    `bookmark` says where the model in the folder stands; None if there is no model yet. Of the
    changes that the model has, the latest `most` are kept. An error leaves the journal as it is.
    """

    def __init__(
        self, folder: Path, bookmark: Bookmark | None = None, *, most: int = MAX_KEPT
    ) -> None:
        self.path, self._most = folder / JOURNAL, most
        self.problem = ""  # why it could not be read or written, until a write succeeds
        self.position = 0  # number of the last change that the model folder has
        self.foundation: str | None = None  # of a model that is not saved yet
        self.is_bound = bookmark is not None and bookmark.is_open
        for suffix in SUFFIXES:
            check_own(Path(f"{self.path}{suffix}"))
        if self.is_bound and not self.path.exists():
            raise self._unusable("it is missing, and may have changes that the model has not")
        with self._reporting():
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            with self._decoding("its content"):
                self._open(bookmark)
        except BaseException:
            self._db.close()
            raise

    def _open(self, bookmark: Bookmark | None) -> None:
        """Begin anew if it is of no use; raise if it has changes that would be lost then."""
        given = bookmark or Bookmark()
        is_own = self._is_own_version(given.position) and self._is_of_model(bookmark)
        if self.is_bound and not is_own:
            raise self._unusable("it is not the journal of this model")
        for setting in ("journal_mode = DELETE", "synchronous = EXTRA", "secure_delete = ON"):
            self._run(f"PRAGMA {setting}")
        if not is_own:
            self._begin(given.position)
        elif given.position > self.position:
            self.saved(given.position)  # a kill came between save and erasure

    def _is_own_version(self, position: int) -> bool:
        ((version,),) = self._run("PRAGMA user_version")
        tables = self._run("SELECT name FROM sqlite_master")
        if version == VERSION or not tables:
            return bool(tables)
        pending = "SELECT 1 FROM changes WHERE header NOTNULL AND refused IS NULL AND sequence > ?"
        if version != 2 or self._run(pending, position):  # 2 is that of klda 0.2.0
            raise JournalError(
                f"{self.path} was not written by this version of klda, and may have changes that "
                "the model has not. Start and stop the service once with the version that wrote "
                "it; or start with --discard-journal to go on without them."
            )
        return False

    def _is_of_model(self, bookmark: Bookmark | None) -> bool:
        ((self.position, self.foundation),) = self._run("SELECT * FROM state")
        if bookmark is None:
            if self.foundation is None and self.history():
                raise self._unusable("the model that it belongs to is missing")
            return self.foundation is not None
        position, checksum, _ = bookmark
        is_own = checksum is not None and self._checksum(position) == checksum
        if is_own and position < self.position:
            raise self._unusable(
                f"the model has the changes up to {position}, and those up to {self.position} are "
                "no longer here: the model is older"
            )
        if not is_own and self.last > self.position:
            raise self._unusable(
                "it belongs to another model, or the model was replaced; it has "
                f"{self.last - self.position} changes that its own model has not"
            )
        return is_own

    def _begin(self, position: int) -> None:
        """Begin after a position, with a random checksum, whatever was here before."""
        with self.transaction():
            for (table,) in self._run("SELECT name FROM sqlite_master WHERE type = 'table'"):
                self._run(f"DROP TABLE {table}")
            for statement in _SCHEMA:
                self._run(statement)
            first = (position, secrets.token_hex(16))
            self._run("INSERT INTO changes VALUES (?, 0, '', NULL, NULL, ?)", *first)
            self._run("INSERT INTO state VALUES (?, NULL)", position)
            self._run(f"PRAGMA user_version = {VERSION}")
        self.position, self.foundation = position, None

    def begin_model(self, foundation: str) -> None:
        """Note the foundation model of a new model, which its folder does not hold yet."""
        with self.transaction():
            self._run("UPDATE state SET foundation = ?", foundation)
        self.foundation = foundation

    def close(self) -> None:
        """Close the file; one that no change was stored in is removed."""
        is_empty = False
        with suppress(JournalError):
            is_empty = len(self._run("SELECT 1 FROM changes LIMIT 2")) < 2
        self._db.close()
        if is_empty and not self.is_bound:
            self.path.unlink()

    # ------------------------------------------------------------------ errors

    def _unusable(self, reason: object) -> JournalError:
        return JournalError(
            f"{self.path} can't be used: {reason}. Restore it and the model from the same copy, or "
            "start with --discard-journal to go on without the changes that only it has."
        )

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except (KldaError, MemoryError):
            raise
        except Exception as error:  # values that can't be right may raise anything
            raise self._unusable(f"{what} can't be read ({error})") from error

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.problem = f"could not read or write the journal: {error}"
            raise JournalError(f"Could not read or write {self.path}: {error}.") from error

    def _run(self, statement: str, *values: Any, **named: Any) -> list[Any]:
        with self._reporting():
            return self._db.execute(statement, named or values).fetchall()

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
        self.problem = ""

    def probe(self) -> None:
        """Find out whether writing works again after it failed."""
        if self.problem:
            with suppress(JournalError), self.transaction():  # `problem` says why
                self._run(f"PRAGMA user_version = {VERSION}")

    # ------------------------------------------------------------------ beside the model folder

    @property
    def last(self) -> int:
        """Number of the last change ever made."""
        return int(self._run("SELECT max(number) FROM changes")[0][0])

    def _checksum(self, number: int) -> str | None:
        found = self._run("SELECT checksum FROM changes WHERE number = ?", number)
        return found[0][0] if found else None

    def bookmark(self, position: int, *, is_open: bool) -> Bookmark:
        """Return what a model folder that has the changes up to a position says."""
        return Bookmark(position, self._checksum(position), is_open)

    def waiting(self) -> list[Change]:
        """Return the changes that the model folder does not have, oldest first."""
        before, changes = self._checksum(self.position), []
        for number, text, rows, sealed, refused in self._run(
            "SELECT changes.number, change, rows, checksum, refused.number FROM changes "
            "LEFT JOIN refused USING (number) WHERE changes.number > ? ORDER BY changes.number",
            self.position,
        ):
            if refused is None:
                if sealed != _seal(before, number, text, rows):
                    raise self._unusable(f"the checksum of change {number} is another one")
                changes.append(self._decoded(number, text, rows))
            before = sealed
        return changes

    def saved(self, position: int) -> None:
        """Erase what the model folder has."""
        with self.transaction():
            for statement in _ERASE:
                self._run(statement, position=position, oldest=position - self._most)
        self.position, self.foundation = position, None

    # ------------------------------------------------------------------ changes

    def add(self, change: Change) -> None:
        """Store a change that was made."""
        text = json.dumps(asdict(replace(change, rows=None)))
        rows = None if change.rows is None else np.ascontiguousarray(change.rows, "<f4").tobytes()
        sealed = _seal(self._checksum(self.last), change.number, text, rows)
        key = change.key.name if change.key else None
        values = (change.number, change.when, text, rows, key, sealed)
        self._run("INSERT INTO changes VALUES (?, ?, ?, ?, ?, ?)", *values)

    def _found(self, condition: str, *values: Any, rows: str = "NULL") -> list[Change]:
        found = self._run(f"SELECT number, change, {rows} FROM changes WHERE {condition}", *values)
        return [self._decoded(*stored) for stored in found]

    def _decoded(self, number: int, text: str, rows: bytes | None) -> Change:
        with self._decoding(f"change {number}"):
            stored = json.loads(text)
            stored["key"] = stored["key"] and Key(*stored["key"])
            stored["tally"] = stored["tally"] and Tally(*stored["tally"])
            if rows is not None:
                stored["rows"] = np.frombuffer(rows, "<f4").reshape(len(stored["labels"]), -1)
            return Change(**stored)

    def made_with(self, key: Key) -> Change | None:
        """Return the change that an idempotency key was used for."""
        return next(iter(self._found("key = ?", key.name)), None)

    def made_with_keys(self, prefix: str) -> list[Change]:
        """Return the changes with idempotency keys that begin with a text, oldest first."""
        after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        return self._found("key >= ? AND key < ? ORDER BY number", prefix, after)

    def history(self, most: int = MAX_HISTORY, before: int = MAX_NUMBER + 1) -> list[Change]:
        """Return the latest changes before a number, without their rows, oldest first."""
        newest = "change != '' AND number < ? ORDER BY number DESC LIMIT ?"
        return self._found(newest, before, most)[::-1]

    def since(self, number: int) -> list[Change]:
        """Return all changes after one, without their rows, oldest first."""
        return self._found("number > ? ORDER BY number", number)

    def numbered(self, numbers: Sequence[int]) -> list[Change]:
        """Return the changes with some numbers, without their rows, oldest first."""
        wanted = ",".join(str(int(number)) for number in numbers)
        return self._found(f"number IN ({wanted}) ORDER BY number")

    # ------------------------------------------------------------------ refused changes

    def refuse(self, change: Change, reason: str) -> None:
        """Keep a change that can't be replayed, but don't apply it again."""
        self._run("INSERT INTO refused VALUES (?, ?)", change.number, reason)

    def refused(self) -> list[tuple[Change, str]]:
        """Return the changes that could not be replayed, and why."""
        reasons = dict(self._run("SELECT * FROM refused WHERE reason NOTNULL"))
        kept = "number IN (SELECT number FROM refused WHERE reason NOTNULL) ORDER BY number"
        return [(one, reasons[one.number]) for one in self._found(kept, rows="rows")]

    def mark_retried(self, number: int) -> None:
        """Note that a refused change was made again, as another one."""
        self._run("UPDATE refused SET reason = NULL WHERE number = ?", number)
        self._run("UPDATE changes SET rows = NULL WHERE number = ?", number)


def set_aside(folder: Path) -> None:
    """Give the journal of a folder, if it has one, a name that nobody looks for."""
    moment = time.strftime("%Y%m%d-%H%M%S")
    for suffix in SUFFIXES:
        path = folder / f"{JOURNAL}{suffix}"
        if path.exists():
            path.rename(folder / f"{JOURNAL}.{moment}{suffix}")


def _seal(before: str | None, *values: Any) -> str:
    """Return the checksum of some values and of all that came before them."""
    seal = hashlib.blake2b((before or "").encode(), digest_size=16)
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        seal.update(b"%d:" % len(content))
        seal.update(content)
    return seal.hexdigest()
