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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from klda.errors import KldaError, is_lack_of_memory
from klda.server.changes import MAX_NUMBER, SERVICE, Change, Key, Samples, Undo
from klda.storage.folder import JOURNAL, database_files

VERSION = 7
MAX_KEPT = 10_000  # changes that the model folder has
MAX_HISTORY = 2_000  # changes that are listed

# What SQLite says of a damaged file, and of statements that tables other than ours do not fit.
DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)

_SCHEMA = (
    """CREATE TABLE changes (
    number INTEGER PRIMARY KEY,
    change TEXT NOT NULL,
    rows BLOB,  -- NULL once the model folder has them
    key TEXT UNIQUE,
    checksum TEXT NOT NULL,  -- of this change and all before it
    refused TEXT  -- why it could not be replayed; empty once it was made again
)""",
    "CREATE TABLE state (position INTEGER NOT NULL)",  # the last change in the model folder
)
_ERASE = (
    "UPDATE changes SET rows = NULL WHERE number <= :position AND rows NOTNULL "
    "AND coalesce(refused, '') = ''",
    "DELETE FROM changes WHERE number <= :oldest AND coalesce(refused, '') = ''",
    "UPDATE state SET position = :position",
)


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


class JournalError(KldaError):
    """A journal that can't be read or written, or does not belong to its model folder."""


def unusable(path: Path, reason: object) -> JournalError:
    """Return the error that says what to do about a journal."""
    return JournalError(
        f"{path} can't be used: {reason}. Restore it and the model from the same copy, or start "
        "with --discard-journal to go on without the changes that only it has."
    )


class Journal:
    """Changes that are durable but may not be in the model folder yet.

    Only the process that holds the folder's lock may open it, and one thread at a time may use it.
    `bookmark` says where the model in the folder stands. A new journal goes on after the number
    `last`. An error leaves the journal as it is.
    """

    def __init__(self, folder: Path, bookmark: Bookmark, last: int = 0) -> None:
        self.path = folder / JOURNAL
        self.problem = ""  # why it could not be read or written, until a write succeeds
        self.position = 0  # number of the last change that the model folder has
        self.is_bound = bookmark.is_open  # the folder says that the journal may have more
        if self.is_bound and not self.path.exists():
            raise unusable(self.path, "it is missing, and may have changes that the model has not")
        with self._reporting():
            self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        try:
            with self._decoding("its content"):
                self._open(bookmark, last)
        except BaseException:
            self._db.close()
            raise

    def _open(self, bookmark: Bookmark, last: int) -> None:
        """Start again if it is of no use; raise if it has changes that would be lost then."""
        is_own = self._is_own_version(bookmark.position) and self._is_of_model(bookmark)
        if self.is_bound and not is_own:
            raise unusable(self.path, "it is not the journal of this model")
        for setting in ("journal_mode = DELETE", "synchronous = EXTRA", "secure_delete = ON"):
            self._run(f"PRAGMA {setting}")
        if not is_own:
            self._begin(max(bookmark.position, last))
        elif bookmark.position > self.position:
            self.saved(bookmark.position)  # a kill came between save and erasure

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
                "it, which saves them to the model. If this version still refuses it then, or to "
                "go on without the changes, start with --discard-journal."
            )
        return False

    def _is_of_model(self, bookmark: Bookmark) -> bool:
        ((self.position,),) = self._run("SELECT position FROM state")
        position, checksum, _ = bookmark
        is_own = checksum is not None and self._checksum(position) == checksum
        if is_own and position < self.position:
            raise unusable(
                self.path,
                f"the model has the changes up to {position}, and those up to {self.position} are "
                "no longer here: the model is older",
            )
        if not is_own and self.last > self.position:
            raise unusable(
                self.path,
                "it belongs to another model, or the model was replaced; it has "
                f"{self.last - self.position} changes that its own model has not",
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
            self._run("INSERT INTO changes VALUES (?, '', NULL, NULL, ?, NULL)", *first)
            self._run("INSERT INTO state VALUES (?)", position)
            self._run(f"PRAGMA user_version = {VERSION}")
        self.position = position

    def close(self) -> None:
        """Close the file; one that no change was stored in is removed."""
        is_empty = False
        with suppress(JournalError):
            is_empty = len(self._run("SELECT 1 FROM changes LIMIT 2")) < 2
        self._db.close()
        if is_empty and not self.is_bound:
            self.path.unlink()

    # ------------------------------------------------------------------ errors

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # values that can't be right may raise anything
            if isinstance(error, KldaError) or is_lack_of_memory(error):
                raise
            raise unusable(self.path, f"{what} can't be read ({error})") from error

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self.problem = f"could not read or write the journal: {error}"
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in DAMAGED:
                raise unusable(self.path, error) from error
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
            "SELECT number, change, rows, checksum, refused FROM changes WHERE number > ? "
            "ORDER BY number",
            self.position,
        ):
            if refused is None:
                if sealed != _seal(before, number, text, rows):
                    raise unusable(self.path, f"the checksum of change {number} is another one")
                changes.append(self._decoded(number, text, rows))
            before = sealed
        return changes

    def saved(self, position: int) -> None:
        """Erase what the model folder has."""
        with self.transaction():
            for statement in _ERASE:
                self._run(statement, position=position, oldest=position - MAX_KEPT)
        self.position = position

    # ------------------------------------------------------------------ changes

    def add(self, change: Change) -> None:
        """Store a change that was made."""
        text = json.dumps(change.pack())
        rows = None
        if isinstance(change, Samples) and change.rows is not None:
            rows = np.ascontiguousarray(change.rows, "<f4").tobytes()
        sealed = _seal(self._checksum(self.last), change.number, text, rows)
        key = change.key.name if change.key else None
        values = (change.number, text, rows, key, sealed)
        # A key that was used for a change that is undone is that of this change from now on.
        self._run("UPDATE changes SET key = NULL WHERE key = ?", key)
        self._run("INSERT INTO changes VALUES (?, ?, ?, ?, ?, NULL)", *values)

    def renumber(self, changes: Sequence[Change], first: int) -> list[Change]:
        """Give changes that the model folder does not have numbers that nobody was told."""
        first = max(first, self.last + 1)
        new = {change.number: first + i for i, change in enumerate(changes)}
        self._run("DELETE FROM changes WHERE number > ? AND refused ISNULL", self.position)
        renumbered: list[Change] = []
        for change in changes:
            if isinstance(change, Undo):
                change = replace(change, target=new.get(change.target, change.target))
            renumbered.append(replace(change, number=new[change.number]))
            self.add(renumbered[-1])
        return renumbered

    def _found(self, condition: str, *values: Any) -> list[Change]:
        found = self._run(f"SELECT number, change FROM changes WHERE {condition}", *values)
        return [self._decoded(*stored) for stored in found]

    def _decoded(self, number: int, text: str, rows: bytes | None = None) -> Change:
        with self._decoding(f"change {number}"):
            values, found = json.loads(text), None
            if rows is not None:
                found = np.frombuffer(rows, "<f4").reshape(len(values["labels"]), -1)
            return Change.unpack(values, found)

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
        return self._found(f"change != '' AND number IN ({wanted}) ORDER BY number")

    def is_undone(self, number: int) -> bool:
        """Whether there is an undo of a change that was not undone itself."""
        undos = "json_extract(change, '$.kind') = 'undo' AND json_extract(change, '$.target') = ?"
        found = self._found(f"number > ? AND change != '' AND {undos}", number, number)
        return any(not self.is_undone(one.number) for one in found)

    # ------------------------------------------------------------------ refused changes

    def refuse(self, change: Change, reason: str) -> None:
        """Keep a change that can't be replayed, but don't apply it again."""
        self._run("UPDATE changes SET refused = ? WHERE number = ?", reason, change.number)

    def refused(self) -> list[tuple[Change, str]]:
        """Return the changes that could not be replayed, and why."""
        kept = (
            "SELECT number, change, rows, refused FROM changes WHERE refused > '' ORDER BY number"
        )
        return [(self._decoded(*stored), reason) for *stored, reason in self._run(kept)]

    def take_refused(self, number: int) -> Change | None:
        """Return a refused change, which is to be made as another one; None if it is none."""
        found = next((change for change, _ in self.refused() if change.number == number), None)
        if found:
            self._run("UPDATE changes SET refused = '', rows = NULL WHERE number = ?", number)
        return found


def set_aside(folder: Path) -> None:
    """Give the journal of a folder, if it has one, a name that nobody looks for."""
    moment = time.strftime("%Y%m%d-%H%M%S")
    for path in database_files(folder / JOURNAL):
        if path.exists():
            path.rename(folder / path.name.replace(JOURNAL, f"{JOURNAL}.{moment}"))


def _seal(before: str | None, *values: Any) -> str:
    """Return the checksum of some values and of all that came before them."""
    seal = hashlib.blake2b((before or "").encode(), digest_size=16)
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        seal.update(b"%d:" % len(content))
        seal.update(content)
    return seal.hexdigest()
