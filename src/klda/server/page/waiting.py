"""Texts that wait in the Inbox, in a file of the model's folder until they are sorted."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from klda.storage.folder import INBOX

MOST = 10_000  # texts that may wait
_SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
  id INTEGER PRIMARY KEY, text TEXT UNIQUE, row BLOB,
  state TEXT NOT NULL DEFAULT 'waiting',  -- or skipped, taught
  change INTEGER, at REAL NOT NULL DEFAULT 0  -- number and time of what was last done to it
)"""


class Item(NamedTuple):
    """A text that waits; `row` are its features, once they are computed."""

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

    def _run(self, *statements: tuple, changes: bool = True) -> list[tuple]:
        """Run statements in one transaction; return what the last one finds."""
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, isolation_level=None)
            try:
                db.execute("PRAGMA secure_delete = ON")
                db.execute("BEGIN IMMEDIATE")
                db.execute(_SCHEMA)
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

    def add(self, texts: Sequence[str]) -> int:
        """Add texts that are not there yet, as far as there is room; return how many."""
        room = MOST - len(self._read("SELECT id FROM items WHERE state != 'taught'"))
        new = [text for text in dict.fromkeys(texts) if text.strip()][: max(0, room)]
        before = len(self._read("SELECT id FROM items"))
        insert = "INSERT OR IGNORE INTO items (text) VALUES (?)"
        found = self._run(*((insert, text) for text in new), ("SELECT id FROM items",))
        return len(found) - before

    def items(self) -> list[Item]:
        """Return all that wait, those that were skipped last."""
        found = self._read(
            "SELECT id, text, row, state FROM items WHERE state != 'taught' "
            "ORDER BY state = 'skipped', at, id"
        )
        return [
            Item(number, text, None if row is None else np.frombuffer(row, "<f4"), state)
            for number, text, row, state in found
        ]

    def progress(self) -> tuple[int, int]:
        """Return how many were taught of late, and how many wait."""
        found = dict(
            self._read("SELECT state = 'taught', count(*) FROM items GROUP BY state = 'taught'")
        )
        return found.get(1, 0), found.get(0, 0)

    def encoded(self, rows: dict[int, np.ndarray]) -> None:
        """Keep the features of texts."""
        update = "UPDATE items SET row = ? WHERE id = ?"
        self._run(*((update, row.astype("<f4").tobytes(), i) for i, row in rows.items()))

    def done(self, numbers: Sequence[int], change: int) -> None:
        """Note that texts were taught by a change."""
        now = time.time()
        update = "UPDATE items SET state = 'taught', change = ?, at = ? WHERE id = ?"
        old = ("DELETE FROM items WHERE state = 'taught' AND at < ?", now - self._keep)
        self._run(*((update, change, now, number) for number in numbers), old)

    def skip(self, number: int) -> None:
        """Put a text behind all others."""
        self._run(("UPDATE items SET state = 'skipped', at = ? WHERE id = ?", time.time(), number))

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

    def remove(self, number: int | None = None) -> None:
        """Delete a text, or all."""
        where = "" if number is None else " WHERE id = ?"
        self._run((f"DELETE FROM items{where}", *(() if number is None else (number,))))
