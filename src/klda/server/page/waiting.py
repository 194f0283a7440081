"""What waits in the Inbox, in a file of the model's folder until it is sorted.

Most of it was brought there. Texts that were asked are kept only if that was chosen, and for so
many days; see `Waiting.keep_asked`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from klda.labels import Label
from klda.server.changes import digest
from klda.server.errors import ServerError
from klda.storage.folder import INBOX

MOST = 10_000  # texts that may wait
MOST_IMAGES = 2000
MOST_ASKED = 1000  # of the texts that were asked, the latest
DAY = 86400.0  # seconds
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS items (
      id INTEGER PRIMARY KEY, text TEXT UNIQUE, row BLOB,  -- the text is an image's digest
      state TEXT NOT NULL DEFAULT 'waiting',  -- or skipped, taught
      change INTEGER, at REAL NOT NULL DEFAULT 0  -- number and time of what was last done to it
    )""",
    "CREATE TABLE IF NOT EXISTS images (id INTEGER PRIMARY KEY, file BLOB)",
    "CREATE TABLE IF NOT EXISTS asked (id INTEGER PRIMARY KEY, at REAL)",
    "CREATE TABLE IF NOT EXISTS chosen (days INTEGER)",  # how long texts that were asked are kept
    "CREATE TABLE IF NOT EXISTS sorted (id INTEGER PRIMARY KEY, class TEXT)",
    """CREATE TRIGGER IF NOT EXISTS gone AFTER DELETE ON items BEGIN
      DELETE FROM images WHERE id = OLD.id; DELETE FROM asked WHERE id = OLD.id;
    END""",
    """CREATE TRIGGER IF NOT EXISTS unsorted AFTER DELETE ON items BEGIN
      DELETE FROM sorted WHERE id = OLD.id;
    END""",
)


class Item(NamedTuple):
    """A text or image that waits; `row` are its features, once they are computed."""

    id: int
    text: str
    row: np.ndarray | None
    state: str


class Waiting:
    """The texts of the Inbox. Taught ones are kept, to be undone, for `keep` seconds."""

    def __init__(self, folder: Path, keep: float) -> None:
        self.path, self._keep = folder / INBOX, keep
        self._lock = threading.Lock()
        self.revision = 0  # grows with every change
        chosen = self._read("SELECT days FROM chosen")
        self.days_kept: int = chosen[0][0] if chosen else 0  # texts that were asked; 0: they aren't

    def _run(self, *statements: tuple, changes: bool = True) -> list[tuple]:
        """Run statements in one transaction; return what the last one finds."""
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, isolation_level=None)
            try:
                db.execute("PRAGMA secure_delete = ON")
                db.execute("BEGIN IMMEDIATE")
                found: list[tuple] = []
                for statement in _SCHEMA:
                    db.execute(statement)
                for statement, *values in statements:
                    found = db.execute(statement, values).fetchall()
                db.execute("COMMIT")
                return found
            finally:
                db.close()
                self.revision += changes

    def _read(self, statement: str, *values: object) -> list[tuple]:
        if not self.path.exists():
            return []
        return self._run((statement, *values), changes=False)

    def add(self, texts: Sequence[str]) -> None:
        """Add texts that are not there yet; raise if there is no room for all of them."""
        new = [text for text in dict.fromkeys(texts) if text.strip()]
        self._check_room(new, MOST)
        # One that was kept because it was asked stays from now on.
        brought = "DELETE FROM asked WHERE id = (SELECT id FROM items WHERE text = ?)"
        insert = "INSERT OR IGNORE INTO items (text) VALUES (?)"
        self._run(*((each, text) for text in new for each in (brought, insert)))

    def add_images(self, files: Sequence[bytes]) -> None:
        """Add image files that are not there yet; raise if there is no room for all of them."""
        insert = "INSERT OR IGNORE INTO items (text) VALUES (?)"
        store = "INSERT OR IGNORE INTO images SELECT id, ? FROM items WHERE text = ?"
        new = [(file, digest(file)) for file in files]
        self._check_room([name for _, name in new], MOST_IMAGES)
        each = [one for file, name in new for one in ((insert, name), (store, file, name))]
        self._run(*each)

    def _check_room(self, texts: Sequence[str], most: int) -> None:
        there = {text for (text,) in self._read("SELECT text FROM items WHERE state != 'taught'")}
        new, room = set(texts) - there, max(0, most - len(there))
        if len(new) > room:
            raise ServerError(
                f"The inbox has room for {room:,} more of these {len(new):,}: it holds {most:,} at "
                "most. Sort or delete some first.",
                413,
            )

    def image(self, number: int) -> bytes | None:
        """Return the file of an image."""
        found = self._read("SELECT file FROM images WHERE id = ?", number)
        return bytes(found[0][0]) if found else None

    # ------------------------------------------------------------------ what was asked

    def keep_asked(self, days: int) -> None:
        """Choose for how many days texts that are asked are kept; 0 deletes those that were."""
        self._run(("DELETE FROM chosen",), ("INSERT INTO chosen VALUES (?)", days))
        self.days_kept = days
        self.expire()

    def asked(self, texts: Sequence[str]) -> None:
        """Keep texts that were asked; the latest take the place of the oldest."""
        insert = "INSERT OR IGNORE INTO items (text) VALUES (?)"
        note = "INSERT INTO asked SELECT id, ? FROM items WHERE text = ? AND changes()"
        new = [text for text in dict.fromkeys(texts) if text.strip()]
        each = [one for text in new for one in ((insert, text), (note, time.time(), text))]
        surplus = "SELECT id FROM asked ORDER BY at DESC, id DESC LIMIT -1 OFFSET ?"
        self._run(*each, (f"DELETE FROM items WHERE id IN ({surplus})", MOST_ASKED))

    def expire(self) -> None:
        """Delete what was asked longer ago than texts are kept."""
        old = "SELECT id FROM asked WHERE at <= ?", time.time() - self.days_kept * DAY
        if self._read(*old):
            self._run((f"DELETE FROM items WHERE id IN ({old[0]})", old[1]))

    # ------------------------------------------------------------------ sorting

    def items(self, numbers: Sequence[int] | None = None) -> list[Item]:
        """Return what waits, or those of some numbers; last, what was skipped."""
        some = "" if numbers is None else f" AND id IN ({', '.join('?' * len(numbers))})"
        found = self._read(
            f"SELECT id, text, row, state FROM items WHERE state != 'taught'{some} "
            "ORDER BY state = 'skipped', at, id",
            *(numbers or ()),
        )
        return [
            Item(number, text, None if row is None else np.frombuffer(row, "<f4"), state)
            for number, text, row, state in found
        ]

    def all(self) -> list[tuple[int, str, str]]:
        """Return the id and text of all, and the class of those that were taught of late."""
        return self._read(
            "SELECT id, text, CASE state WHEN 'taught' THEN class ELSE '' END "
            "FROM items LEFT JOIN sorted USING (id) ORDER BY id"
        )

    def numbers(self) -> set[int]:
        """Return the ids of what waits."""
        return {i for (i,) in self._read("SELECT id FROM items WHERE state != 'taught'")}

    def progress(self) -> tuple[int, int, int]:
        """Return how many were taught of late, how many wait, and how many of these have no row."""
        found = self._read(
            "SELECT total(state = 'taught'), total(state != 'taught'), "
            "total(state != 'taught' AND row IS NULL) FROM items"
        )
        taught, waiting, unread = map(int, found[0] if found else (0, 0, 0))
        return taught, waiting, unread

    def unread(self, most: int) -> list[tuple[int, str]]:
        """Return the ids and texts of some that have no row."""
        where = "state != 'taught' AND row IS NULL"
        return self._read(f"SELECT id, text FROM items WHERE {where} ORDER BY id LIMIT ?", most)

    def encoded(self, rows: dict[int, np.ndarray]) -> None:
        """Keep the features of texts."""
        update = "UPDATE items SET row = ? WHERE id = ?"
        self._run(*((update, row.astype("<f4").tobytes(), i) for i, row in rows.items()))

    def done(self, numbers: Sequence[int], labels: Sequence[Label], change: int) -> None:
        """Note that a change taught texts, each as an example of a class."""
        now = time.time()
        update = "UPDATE items SET state = 'taught', change = ?, at = ? WHERE id = ?"
        note = "INSERT OR REPLACE INTO sorted VALUES (?, ?)"
        classes = zip(numbers, map(str, labels), strict=True)
        old = ("DELETE FROM items WHERE state = 'taught' AND at < ?", now - self._keep)
        taught = ((update, change, now, number) for number in numbers)
        self._run(*taught, *((note, *one) for one in classes), old)

    def skip(self, *numbers: int) -> None:
        """Put texts behind all others."""
        update = "UPDATE items SET state = 'skipped', at = ? WHERE id = ?"
        self._run(*((update, time.time(), number) for number in numbers))

    def last(self) -> tuple[str, int, int] | None:
        """Return the state, the id and the change of what was last done."""
        found = self._read(
            "SELECT state, id, change FROM items WHERE at > 0 ORDER BY at DESC LIMIT 1"
        )
        return found[0] if found else None

    def back(self, *, change: int | None = None, number: int | None = None) -> None:
        """Let texts wait again: those that a change taught, or one that was skipped."""
        update = "UPDATE items SET state = 'waiting', change = NULL, at = 0 WHERE"
        if change is not None and self.path.exists():
            self._run((f"{update} change = ?", change))
        if number is not None:
            self._run((f"{update} id = ?", number))

    def settle(self, change: int) -> None:
        """Delete the texts that a change taught: it can't be undone any more."""
        self._run(("DELETE FROM items WHERE change = ?", change))

    def remove(self, number: int | None = None) -> None:
        """Delete a text, or all."""
        where = "" if number is None else " WHERE id = ?"
        self._run((f"DELETE FROM items{where}", *(() if number is None else (number,))))
