"""A table that is taught in the background, in parts, while the page shows the progress."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from dataclasses import dataclass, field

from klda.errors import KldaError
from klda.labels import Label
from klda.server.changes import Key, digest
from klda.server.errors import INTERNAL, ServerError
from klda.server.inputs import PastedRows
from klda.server.service import Service

CHUNK = 64

log = logging.getLogger("klda.server")


@dataclass
class Upload:
    """Rows that are being taught."""

    texts: list[str]
    labels: list[Label]
    service: Service
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0
    new: set[Label] = field(default_factory=set)
    error: str = ""
    task: asyncio.Task | None = None

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self.texts)

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return bool(self.error) or self.done >= self.total

    @classmethod
    def begin(cls, service: Service, table: PastedRows, before: Upload | None) -> Upload:
        """Start teaching a table; one is taught at a time."""
        if before is not None and before.task is not None and not before.task.done():
            raise ServerError("Another table is being taught: wait until it is done.")
        upload = cls(table.texts, table.labels, service)
        upload.task = asyncio.create_task(upload.teach())
        return upload

    async def finish(self, seconds: float) -> None:
        """Wait until the table is taught; after some seconds, cancel what is left of it."""
        assert self.task is not None
        try:
            await asyncio.wait_for(self.task, seconds)
        except TimeoutError:
            log.warning("a table was interrupted: send it again, rows already taught count once")

    async def teach(self) -> None:
        """Teach the rows, chunk by chunk, each once if a table is sent again; an error ends it."""
        service = self.service
        absent = set(self.labels) - set(service.snapshot.counts)
        try:
            for start in range(0, self.total, CHUNK):
                texts, labels = (x[start : start + CHUNK] for x in (self.texts, self.labels))
                key = digest(json.dumps([start, texts, labels]).encode())
                done = await service.learn(texts, labels, Key(key, key))
                # What was taught before, of classes that are absent now, was forgotten.
                again = [i for i, x in enumerate(labels) if x in absent] if done.repeated else []
                if again:
                    some, theirs = [texts[i] for i in again], [labels[i] for i in again]
                    done = await service.learn(some, theirs, Key(f"{key}-{self.id}", key))
                self.new.update(done.new_classes)
                self.done += len(labels)
        except KldaError as error:
            self.error = str(error)
        except Exception:
            log.exception("upload")
            self.error = INTERNAL
