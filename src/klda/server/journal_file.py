"""The file of a journal: opened, compared with its model folder, written in transactions.

Before anything is written, a journal is compared with the folder that it is in. It belongs to the
model that names its id. Each change has a checksum of itself and all before it. SQLite drops a
write-ahead log that is missing or damaged without a word, so the number and the checksum of the
last change also stand in a file of their own, ``journal.last``.
"""

from __future__ import annotations

import logging
import re
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from klda.errors import KldaError
from klda.learner.array_files import replace_file
from klda.learner.folder import JOURNAL, LAST_CHANGE, check_own
from klda.server.changes import UNBOUND, Binding

VERSION = 3
SIDE_FILES = ("-wal", "-shm", "-journal")  # that SQLite keeps beside a database

_IDENTITY = """CREATE TABLE journal (
    id TEXT NOT NULL,
    folder TEXT,  -- the id that the model folder names: not this one before the first checkpoint
    foundation TEXT  -- the foundation model of a model that is not saved yet
)"""
_SCHEMA = (
    _IDENTITY,
    """CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY,
    header TEXT, features BLOB,  -- NULL once the model folder has the change
    refused TEXT,  -- why it could not be replayed; such a change is kept, but not applied
    key TEXT UNIQUE, digest TEXT, answer TEXT,
    at REAL, correct INTEGER, wrong INTEGER, new INTEGER,  -- the tally of a learn
    checksum TEXT  -- of this change and all before it
)""",
    """CREATE TABLE forgotten (
    sequence INTEGER, label TEXT, count INTEGER NOT NULL, at REAL NOT NULL,
    arrays BLOB NOT NULL, meta TEXT NOT NULL,
    name_reused INTEGER NOT NULL,
    restored INTEGER,  -- number of the change that undid the forget
    checksum TEXT,
    PRIMARY KEY (sequence, label)
)""",
)
# Journals of klda 0.2.0, version 2, have neither an id nor checksums.
_UPGRADE = (
    _IDENTITY,
    "ALTER TABLE changes ADD COLUMN checksum TEXT",
    "ALTER TABLE forgotten ADD COLUMN checksum TEXT",
)

log = logging.getLogger("klda.server")


class JournalError(KldaError):
    """A journal that can't be read or written, or does not belong to its model folder."""


class LastChange(NamedTuple):
    """The last change of a journal, as its file ``journal.last`` says."""

    journal: str  # the journal's id
    checksum: str | None
    number: int

    @classmethod
    def read(cls, file: Path) -> LastChange | None:
        """Read the file; None if there is none."""
        try:
            content = file.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return None
        found = re.fullmatch(r"([0-9a-f]{32}) ([0-9a-f]{32}|-{32}) (\d{20})\n", content)
        if not found:
            raise JournalError(
                f"{file} is damaged. It says which change was the last; delete it to trust "
                f"{JOURNAL} without that."
            )
        return cls(found[1], found[2].strip("-") or None, int(found[3]))

    def write(self, file: Path) -> None:
        """Write the file, in place, and not synced: after a power failure it may be behind."""
        content = f"{self.journal} {self.checksum or '-' * 32} {self.number:020}\n".encode()
        try:
            with file.open("r+b", buffering=0) as opened:
                opened.write(content)
        except FileNotFoundError:
            replace_file(file, [content])


class JournalFile:
    """The database of a journal, and what tells whether it is whole and in its place.

    Only the process that holds the folder's lock may open it. An error leaves it as it is.
    """

    def __init__(self, folder: Path, binding: Binding = UNBOUND) -> None:
        self.path, self._last_file = folder / JOURNAL, folder / LAST_CHANGE
        self.problem = ""  # why it could not be read or written, until a write succeeds
        for file in (self.path, self._last_file, *map(self._beside, SIDE_FILES)):
            check_own(file)
        self._version, self.id, self._folder = 0, "", binding.journal
        self.foundation: str | None = None
        with self._reporting():
            self._noted = LastChange.read(self._last_file)
        if self.path.exists():
            # Read-only: the last connection that could write would merge a write-ahead log into the
            # database, even a damaged one, when it is closed.
            self._db = self._connect("ro")
            try:
                self._look()
                self.check(binding)
            finally:
                self._db.close()
        else:
            self._check_complete(0, binding)
        self._db = self._connect("rwc")
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def _connect(self, mode: str) -> sqlite3.Connection:
        with self._reporting():
            # Transactions are explicit; one thread at a time uses the connection, but not always
            # the same.
            address = f"{self.path.absolute().as_uri()}?mode={mode}"
            return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)

    def _look(self) -> None:
        """Find out what the file is."""
        ((version,),) = self._run("PRAGMA user_version")
        if version not in (0, 2, VERSION):
            raise JournalError(
                f"{self.path} has version {version} of the journal; this version of klda uses "
                f"{VERSION}. Upgrade klda if a newer one wrote it; otherwise start and stop "
                "the service once with the version that wrote it, then delete the file."
            )
        if not version and self._run("SELECT 1 FROM sqlite_master"):
            raise JournalError(
                f"{self.path} is a database of another program: move it away, then try again."
            )
        self._version = version
        if version == VERSION:
            with self._decoding("its id"):
                ((self.id, self._folder, self.foundation),) = self._run("SELECT * FROM journal")

    def _prepare(self) -> None:
        """Create the tables, or add what klda 0.2.0 did not have."""
        self._run("PRAGMA journal_mode = WAL")
        self._run("PRAGMA synchronous = FULL")
        self._run("PRAGMA secure_delete = ON")
        if self._version == VERSION:
            return
        self.id = secrets.token_hex(16)
        with self.transaction():
            for statement in _UPGRADE if self._version else _SCHEMA:
                self._run(statement)
            self._run("INSERT INTO journal VALUES (?, ?, NULL)", self.id, self._folder)
            self._run(f"PRAGMA user_version = {VERSION}")
            self._version = VERSION

    def close(self) -> None:
        """Close the file; one that no change was ever stored in is removed."""
        is_empty = False
        with suppress(JournalError):
            is_empty = not self.last
        self._db.close()
        if is_empty:
            self.path.unlink()
            self._last_file.unlink(missing_ok=True)

    # ------------------------------------------------------------------ does it fit the folder?

    @property
    def is_bound(self) -> bool:
        """Whether the model folder names this journal."""
        return self._folder == self.id

    def binding(self, position: int) -> Binding:
        """Return what a model folder that has the changes up to a position says."""
        return Binding(self.id, position, self._checksum_at(position))

    def check(self, binding: Binding) -> None:
        """Raise if a model folder has another journal, or this one has lost changes."""
        if not self._version:  # it has no tables yet
            self._check_complete(0, binding)
            return
        if binding.journal not in ((self.id, self._folder) if self.id else (None,)):
            raise JournalError(
                f"{self.path} belongs to another model, or the model in {self.path.parent} was "
                "replaced. Move the right journal there, or move this one away to continue "
                f"without it: it has {self._pending} changes that its model folder does not have."
            )
        saved = self._checkpointed
        position = saved if binding.position is None else binding.position
        if position < saved:
            raise JournalError(
                f"The model in {self.path.parent} has the changes up to {position}, but those up "
                f"to {saved} are no longer in its journal: the model is older than the journal. "
                f"Restore both from the same copy, or delete {JOURNAL} and {LAST_CHANGE} to "
                "continue without the changes in it."
            )
        found = self._checksum_at(position)
        if found and binding.checksum and found != binding.checksum:
            raise self._damaged(f"change {position} is not the one in the model")
        self._check_complete(self.last, binding)

    def _check_complete(self, last: int, binding: Binding) -> None:
        """Raise if there were later changes than the journal and the model folder have."""
        noted = self._noted
        if noted is None:
            if last and self._version == VERSION:
                log.warning(f"{LAST_CHANGE} is missing: lost changes would not be noticed")
            return
        if noted.number > max(last, binding.position or 0):
            raise JournalError(
                f"{self.path} has lost changes that were acknowledged: it ends with change {last}, "
                f"and {LAST_CHANGE} says that change {noted.number} was the last. Restore "
                f"{JOURNAL} and {self._beside('-wal').name} from the same moment, or delete "
                f"{LAST_CHANGE} to continue without the lost changes."
            )
        if not last:
            return
        found = self._checksum_at(noted.number)
        if noted.journal != self.id or (found and noted.checksum and found != noted.checksum):
            raise self._damaged(f"it does not have change {noted.number} as {LAST_CHANGE} says")

    def _damaged(self, reason: object) -> JournalError:
        return JournalError(
            f"{self.path} is damaged, or not the journal of this model: {reason}. Restore "
            f"{JOURNAL}, {self._beside('-wal').name} and {LAST_CHANGE} from a copy, or move all "
            "three away to continue without the changes that only they have."
        )

    @contextmanager
    def _decoding(self, what: str) -> Iterator[None]:
        try:
            yield
        except (KldaError, MemoryError):
            raise
        except Exception as error:  # values that can't be right may raise anything
            raise self._damaged(f"{what} can't be read ({error})") from error

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
        self.problem = ""
        self._note_last()

    def _note_last(self) -> None:
        """Write down which change is the last; that file may be behind, but never ahead."""
        with suppress(JournalError, OSError):
            number = self.last
            last = LastChange(self.id, self._checksum_at(number), number)
            if last != self._noted:
                last.write(self._last_file)
                self._noted = last

    def probe(self) -> None:
        """Find out whether writing works again after it failed."""
        if self.problem:
            with suppress(JournalError), self.transaction():  # `problem` says why
                self._run(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self.problem = f"could not read or write the journal: {error}"
            raise JournalError(f"Could not read or write {self.path}: {error}.") from error

    def _run(self, statement: str, *values: Any) -> list[Any]:
        with self._reporting():
            return self._db.execute(statement, values).fetchall()

    def _truncate(self) -> None:
        """Empty the write-ahead log, which still has what was deleted."""
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")

    # ------------------------------------------------------------------ how far it goes

    @property
    def last(self) -> int:
        """Number of the last change ever made."""
        ((number,),) = self._run("SELECT ifnull(max(sequence), 0) FROM changes")
        return int(number)

    @property
    def _checkpointed(self) -> int:
        """Number of the last change that the model folder has."""
        found = self._run(
            "SELECT max(sequence) FROM changes WHERE header IS NULL AND refused IS NULL"
        )
        return int(found[0][0] or 0)

    @property
    def _pending(self) -> int:
        """How many changes the model folder does not have."""
        return self.last - self._checkpointed

    def _checksum_at(self, number: int) -> str | None:
        """Return the checksum of a change and all before it, if it has one."""
        if self._version != VERSION:
            return None
        found = self._run("SELECT checksum FROM changes WHERE sequence = ?", number)
        return found[0][0] if found else None

    # ------------------------------------------------------------------ the model that it is of

    def mark_bound(self) -> None:
        """Note that the model folder names this journal."""
        with self.transaction():
            self._run("UPDATE journal SET folder = id")
        self._folder = self.id

    def begin(self, foundation: str) -> None:
        """Note the foundation model of a new model, which its folder does not hold yet."""
        if self.foundation and self.foundation != foundation and self.last:
            raise JournalError(
                f"{self.path} has changes to a new model with the foundation model "
                f"{self.foundation!r}, not {foundation!r}. Give --new {self.foundation}, or leave "
                "--new out."
            )
        if self.foundation != foundation:
            with self.transaction():
                self._run("UPDATE journal SET foundation = ?", foundation)
            self.foundation = foundation
