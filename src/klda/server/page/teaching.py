"""A table that is taught in the background, in parts, while the page shows the progress."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from dataclasses import dataclass, field

import numpy as np

from klda.errors import KldaError
from klda.labels import Label
from klda.server.changes import Change, Key, digest
from klda.server.errors import INTERNAL, ServerError
from klda.server.page.routes import PAGE
from klda.server.service import Service

CHUNK = 64  # rows that are encoded between two looks at the progress
PART = 4096  # rows that are taught as one change

log = logging.getLogger("klda.server")


@dataclass
class Teaching:
    """Rows that are being taught."""

    service: Service
    name: str
    texts: list[str] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0  # rows encoded
    taught: int = 0  # rows that the model has
    began: float = 0.0
    seconds: float = 0.0  # that it took
    changes: list[int] = field(default_factory=list)  # their numbers
    new: set[Label] = field(default_factory=set)
    error: str = ""
    is_cancelled: bool = False
    is_undone: bool = False
    task: asyncio.Task | None = None

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self.texts)

    @property
    def is_running(self) -> bool:
        """Whether rows are being taught."""
        return self.task is not None and not self.task.done()

    @property
    def speed(self) -> float:
        """Rows per second."""
        seconds = self.seconds or time.monotonic() - self.began
        return self.done / max(seconds, 1e-3)

    def begin(self) -> None:
        """Start teaching."""
        if self.task is not None:
            raise ServerError("This table is being taught already, or was.", 409)
        self.began = time.monotonic()
        self.task = asyncio.create_task(self.teach())

    def cancel(self) -> None:
        """Stop after the rows that are being encoded; those not taught yet are left out."""
        self.is_cancelled = True

    async def finish(self, seconds: float) -> None:
        """Wait until the table is taught; after some seconds, cancel what is left of it."""
        if self.task is None:
            return
        try:
            await asyncio.wait_for(self.task, seconds)
        except TimeoutError:
            log.warning("a table was interrupted: send it again, rows already taught count once")

    async def undo(self) -> None:
        """Take back all that was taught of the table, or nothing if a part is too old or large."""
        possible = {change.number for change in await self.service.undoable()}
        if not possible.issuperset(self.changes):
            raise ServerError(
                "This import can't be undone any more: it was too long ago, or too large to keep "
                "for undo. Remove its classes instead.",
                409,
            )
        while self.changes:
            await self.service.change(Change("undo", target=self.changes[-1], by=PAGE))
            self.changes.pop()
        self.is_undone = True

    async def teach(self) -> None:
        """Teach the rows, part by part, each once if a table is sent again; an error ends it."""
        try:
            absent = set(self.labels) - set(self.service.snapshot.counts)
            for start in range(0, self.total, PART):
                part = slice(start, start + PART)
                encoded = await self._encode(self.texts[part])
                if self.is_cancelled:
                    break
                rows = np.concatenate(encoded)
                await self._learn(rows, self.texts[part], self.labels[part], start, absent)
                self.taught += len(rows)
        except KldaError as error:
            self.error = str(error)
        except Exception:
            log.exception("a table failed")
            self.error = INTERNAL
        finally:
            self.seconds = time.monotonic() - self.began

    async def _encode(self, texts: list[str]) -> list[np.ndarray]:
        rows: list[np.ndarray] = []
        for start in range(0, len(texts), CHUNK):
            if self.is_cancelled:
                break
            rows.append(await self.service.encode(texts[start : start + CHUNK]))
            self.done += len(rows[-1])
        return rows

    async def _learn(
        self, rows: np.ndarray, texts: list[str], labels: list[Label], start: int, absent: set
    ) -> None:
        key = digest(json.dumps([start, texts, labels]).encode())
        done = await self.service.learn_rows(rows, labels, Key(key, key), PAGE)
        # What was taught before, of classes that are absent now, was forgotten.
        again = [i for i, x in enumerate(labels) if x in absent] if done.repeated else []
        if again:
            some, again_key = [labels[i] for i in again], Key(f"{key}-{self.id}", key)
            done = await self.service.learn_rows(rows[again], some, again_key, PAGE)
        if not done.repeated:
            self.changes.append(done.number)
        self.new.update(done.new_classes)
