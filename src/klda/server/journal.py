"""The journal: a SQLite database in the model folder with what the model file does not hold yet.

It has a row for each of the latest changes, with the idempotency key, the answer, and how the
model answered before it was taught; what was changed is erased once the model folder has it.
Classes that a forget dropped are kept for an undo. One transaction makes a group of changes
durable, and its commit (synchronous=FULL) is the acknowledgement. The model folder records the
number of the last change in it, so a replay applies every change exactly once.

A start compares the journal with its model folder before it writes anything. A journal belongs to
the model that names its id. Each change has a checksum of itself and all before it. SQLite drops a
write-ahead log that is missing or damaged without a word, so the number and the checksum of the
last change also stand in a file of their own, ``journal.last``.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from klda.errors import KldaError
from klda.labels import Label
from klda.learner import Detached
from klda.learner.array_files import replace_file
from klda.learner.folder import JOURNAL, LAST_CHANGE, check_own
from klda.server.changes import Acknowledgement, Binding, Change, Key, Refusal, Tally

VERSION = 3
MAX_ROWS = 10_000  # of changes in the model folder
MAX_TALLIES = 2_000
WAL = f"{JOURNAL}-wal"
EMPTY_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"  # which still has what was deleted

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
_CHECKPOINT = (
    "UPDATE changes SET header = NULL, features = NULL "
    "WHERE sequence <= :position AND header NOTNULL AND refused IS NULL",
    "INSERT OR IGNORE INTO changes (sequence, checksum) VALUES (:position, :checksum)",
    "DELETE FROM changes WHERE sequence <= :oldest AND header IS NULL",
    "DELETE FROM forgotten WHERE restored <= :position",
    "UPDATE journal SET folder = :journal",
)
_HEADER = ("kind", "labels", "target", "descriptions", "when")
_SEALED = "sequence, header, features, key, digest, answer, at, correct, wrong, new"

log = logging.getLogger("klda.server")


class JournalError(KldaError):
    """A journal that can't be read or written, or does not belong to its model folder."""


class LastChange(NamedTuple):
    """The last change of a journal, as the file ``journal.last`` says."""

    journal: str  # the journal's id
    checksum: str | None
    number: int

    @classmethod
    def read(cls, file: Path) -> LastChange | None:
        """Read the file; None if there is none."""
        if not file.exists():
            return None
        content = file.read_text(encoding="ascii", errors="replace")
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
        if not file.exists():
            replace_file(file, [content])
        else:
            with file.open("r+b", buffering=0) as opened:
                opened.write(content)


class Journal:
    """Changes that are durable but may not be in the model folder yet.

    Only the process that holds the folder's lock may open it, and one thread at a time may use it.
    `binding` is what the model folder says about it. An error leaves all files as they are.
    """

    def __init__(self, folder: Path, binding: Binding) -> None:
        self.path, self._last_file = folder / JOURNAL, folder / LAST_CHANGE
        self.problem = ""  # why it could not be read or written, until a write succeeds
        self._version, self.id, self._folder = 0, "", binding.journal
        self.foundation: str | None = None  # of a model that is not saved yet
        self.position = 0  # number of the last change that the model folder has
        beside = [Path(f"{self.path}{suffix}") for suffix in ("-wal", "-shm", "-journal")]
        for file in (self.path, self._last_file, *beside):
            check_own(file)
        with self._reporting():
            self._noted = LastChange.read(self._last_file)
        if self.path.exists():
            # Read-only: the last connection that could write would merge a write-ahead log into the
            # database, even a damaged one, when it is closed.
            self._connect("ro")
            try:
                self._identify()
                self._check(binding)
            finally:
                self._db.close()
        else:
            self._check(binding)
        self._connect("rwc")
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def _connect(self, mode: str) -> None:
        address = f"{self.path.absolute().as_uri()}?mode={mode}"
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        with self._reporting():
            self._db = sqlite3.connect(address, uri=True, **options)

    def _identify(self) -> None:
        ((version,),) = self._run("PRAGMA user_version")
        if version not in (0, 2, VERSION):
            raise JournalError(
                f"{self.path} has version {version} of the journal; this version of klda uses "
                f"{VERSION}. Upgrade klda if a newer one wrote it; otherwise start and stop "
                "the service once with the version that wrote it, then delete the file."
            )
        if not version and self._run("SELECT 1 FROM sqlite_master"):
            raise JournalError(f"{self.path} is a database of another program: move it away.")
        self._version = version
        if version == VERSION:
            with self._decoding("its id"):
                ((self.id, self._folder, self.foundation),) = self._run("SELECT * FROM journal")

    def _prepare(self) -> None:
        """Create the tables, or add what klda 0.2.0 did not have."""
        for setting in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
            self._run(f"PRAGMA {setting}")
        if self._version == VERSION:
            return
        self.id, before = secrets.token_hex(16), None
        with self.transaction():
            for statement in _UPGRADE if self._version else _SCHEMA:
                self._run(statement)
            for values in self._run(f"SELECT {_SEALED} FROM changes ORDER BY sequence"):
                before = _seal(before, values)
                self._run("UPDATE changes SET checksum = ? WHERE sequence = ?", before, values[0])
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

    def _check(self, binding: Binding) -> None:
        """Raise if a model folder has another journal, or this one has lost changes."""
        owners = (self.id, self._folder) if self.id else (None,)
        last, saved, noted = self.last, self._checkpointed, self._noted
        if self._version and binding.journal not in owners:
            raise JournalError(
                f"{self.path} belongs to another model, or the model in {self.path.parent} was "
                "replaced. Move the right journal there, or move this one away to continue "
                f"without it: it has {last - saved} changes that its model folder does not have."
            )
        position = saved if binding.position is None else binding.position
        if position < saved:
            raise JournalError(
                f"The model in {self.path.parent} has the changes up to {position}, but those up "
                f"to {saved} are no longer in its journal: the model is older than the journal. "
                f"Restore both from the same copy, or delete {JOURNAL} and {LAST_CHANGE} to "
                "continue without the changes in it."
            )
        if _differ(self._checksum(position), binding.checksum):
            raise self._damaged(f"change {position} is not the one in the model")
        if noted is None:
            if last and self._version == VERSION:
                log.warning(f"{LAST_CHANGE} is missing: lost changes would not be noticed")
            return
        if noted.number > max(last, position):
            raise JournalError(
                f"{self.path} has lost changes that were acknowledged: it ends with change {last}, "
                f"and {LAST_CHANGE} says that change {noted.number} was the last. Restore "
                f"{JOURNAL} and {WAL} from the same moment, or delete {LAST_CHANGE} to continue "
                "without the lost changes."
            )
        differ = noted.journal != self.id or _differ(self._checksum(noted.number), noted.checksum)
        if last and differ:
            raise self._damaged(f"it does not have change {noted.number} as {LAST_CHANGE} says")

    def _damaged(self, reason: object) -> JournalError:
        return JournalError(
            f"{self.path} is damaged, or not the journal of this model: {reason}. Restore "
            f"{JOURNAL}, {WAL} and {LAST_CHANGE} from a copy, or move all three away to continue "
            "without the changes that only they have."
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
        with suppress(JournalError, OSError):  # that file may be behind, but never ahead
            last = LastChange(self.id, self._checksum(self.last), self.last)
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

    def _run(self, statement: str, *values: Any, **named: Any) -> list[Any]:
        with self._reporting():
            return self._db.execute(statement, named or values).fetchall()

    # ------------------------------------------------------------------ how far it goes

    @property
    def last(self) -> int:
        """Number of the last change ever made."""
        return self._latest("")

    @property
    def _checkpointed(self) -> int:
        return self._latest("WHERE header IS NULL AND refused IS NULL")

    def _latest(self, condition: str) -> int:
        if not self._version:  # it has no tables yet
            return 0
        return int(self._run(f"SELECT max(sequence) FROM changes {condition}")[0][0] or 0)

    def _checksum(self, number: int) -> str | None:
        """Return the checksum of a change and all before it, if it has one."""
        if self._version != VERSION:
            return None
        found = self._run("SELECT checksum FROM changes WHERE sequence = ?", number)
        return found[0][0] if found else None

    @property
    def is_bound(self) -> bool:
        """Whether the model folder names this journal."""
        return self._folder == self.id

    def binding(self, position: int) -> Binding:
        """Return what a model folder that has the changes up to a position says."""
        return Binding(self.id, position, self._checksum(position))

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

    def start(self, binding: Binding) -> list[Change]:
        """Return the changes that a model folder does not have, oldest first; erase the others.

        If the folder does not say which it has, all that are still here are missing from it.
        """
        self.position = self._checkpointed
        if binding.position is not None and binding.position > self.position:
            self.mark_checkpointed(binding)  # a kill came between a save and the erasure
        before, changes = self._checksum(self.position), []
        later = f"SELECT {_SEALED}, checksum, refused FROM changes WHERE sequence > ?"
        for *values, sealed, refused in self._run(f"{later} ORDER BY sequence", self.position):
            was_made_again = values[1] is None and refused is not None
            if not was_made_again and sealed != _seal(before, values):
                raise self._damaged(f"the checksum of change {values[0]} is another one")
            if refused is None:
                changes.append(self._decoded(*values[:3]))
            before = sealed
        return changes

    def mark_checkpointed(self, binding: Binding) -> None:
        """Erase the changes that the model folder has; their keys, answers and tallies stay."""
        position = binding.position or 0
        with self.transaction():
            for statement in _CHECKPOINT:
                self._run(statement, **binding._asdict(), oldest=position - MAX_ROWS)
        self._folder, self.position = binding.journal, position
        self._run(EMPTY_LOG)

    # ------------------------------------------------------------------ changes

    def add(self, change: Change, answer: Acknowledgement) -> None:
        """Store a change that has a number, and the answer to it."""
        header = json.dumps({name: getattr(change, name) for name in _HEADER})
        rows = b"" if change.rows is None else np.ascontiguousarray(change.rows, "<f4").tobytes()
        keyed = (*change.key, json.dumps(asdict(answer))) if change.key else (None, None, None)
        values = (change.sequence, header, rows, *keyed, float(change.when), *change.tally)
        sealed = _seal(self._checksum(self.last), values)
        marks = ", ".join("?" * 11)
        self._run(f"INSERT INTO changes ({_SEALED}, checksum) VALUES ({marks})", *values, sealed)

    def answered(self, key: Key) -> tuple[Key, Acknowledgement] | None:
        """Return the key of an earlier change as it was used then, and the answer to it."""
        found = self._run("SELECT digest, answer FROM changes WHERE key = ?", key.name)
        if not found:
            return None
        with self._decoding(f"the answer to {key.name!r}"):
            answer = Acknowledgement(**{**json.loads(found[0][1]), "repeated": True})
        return Key(key.name, found[0][0]), answer

    def tallies(self) -> list[Tally]:
        """Return how the model answered just before it was taught lately, oldest first."""
        learns = "SELECT at, correct, wrong, new FROM changes WHERE correct NOTNULL"
        newest = self._run(f"{learns} ORDER BY sequence DESC LIMIT {MAX_TALLIES}")
        return [Tally(*row) for row in newest[::-1]]

    def _decoded(self, sequence: int, header: str, content: bytes) -> Change:
        with self._decoding(f"change {sequence}"):
            stored, rows = json.loads(header), None
            if content:
                rows = np.frombuffer(content, "<f4").reshape(len(stored["labels"]), -1)
            return Change(**stored, rows=rows, sequence=sequence)

    # ------------------------------------------------------------------ refused changes

    def refuse(self, change: Change, reason: str) -> None:
        """Keep a change that can't be replayed, but don't apply it again."""
        with self.transaction():
            self._run("UPDATE changes SET refused = ? WHERE sequence = ?", reason, change.sequence)

    def refused(self) -> list[Refusal]:
        """Return the changes that could not be replayed, and why."""
        found = self._run(
            "SELECT sequence, header, features, refused FROM changes "
            "WHERE refused NOTNULL AND header NOTNULL ORDER BY sequence"
        )
        return [Refusal(self._decoded(*stored), reason) for *stored, reason in found]

    def drop_refused(self, number: int, by: int) -> None:
        """Erase a refused change that was made again, as another one."""
        erased, reason = "header = NULL, features = NULL", f"made again as change {by}"
        self._run(f"UPDATE changes SET {erased}, refused = ? WHERE sequence = ?", reason, number)

    # ------------------------------------------------------------------ forgotten classes

    def keep(self, sequence: int, when: float, classes: Iterable[Detached]) -> None:
        """Keep the classes that a forget dropped, for an undo."""
        for one in classes:
            content = save({name: np.ascontiguousarray(a) for name, a in one.arrays.items()})
            label, meta = json.dumps(one.label), json.dumps(one.meta)
            sealed = _seal(None, (label, one.count, content, meta))
            values = (sequence, label, one.count, when, content, meta, sealed)
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
                if _differ(sealed, _seal(None, stored)):
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
        self._run(EMPTY_LOG)
        return True


def _seal(before: str | None, values: Sequence[Any]) -> str:
    """Return the checksum of some values and of all that came before them."""
    seal = hashlib.blake2b((before or "").encode(), digest_size=16)
    for value in values:
        content = value if isinstance(value, bytes) else repr(value).encode()
        seal.update(b"%d:" % len(content))
        seal.update(content)
    return seal.hexdigest()


def _differ(first: str | None, second: str | None) -> bool:
    """Whether two checksums differ; folders and classes of klda 0.2.0 have none to compare."""
    return bool(first and second and first != second)
