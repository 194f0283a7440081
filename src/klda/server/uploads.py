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
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    done: int = 0
    new: set[Label] = field(default_factory=set)
    error: str = ""

    @property
    def total(self) -> int:
        """Number of rows."""
        return len(self.texts)

    @property
    def finished(self) -> bool:
        """Whether nothing more will happen."""
        return bool(self.error) or self.done >= self.total

    async def teach(self, service: Service) -> None:
        """Teach the rows, chunk by chunk, each once if a table is sent again; an error ends it."""
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


class Uploads:
    """The latest upload of an application; one is taught at a time."""

    def __init__(self) -> None:
        self._latest: Upload | None = None
        self._task: asyncio.Task | None = None

    def get(self, upload_id: str) -> Upload:
        """Return an upload."""
        if self._latest is None or self._latest.id != upload_id:
            raise ServerError("There is no such upload.", 404)
        return self._latest

    def begin(self, service: Service, table: PastedRows) -> Upload:
        """Start teaching a table."""
        if self._task is not None and not self._task.done():
            raise ServerError("Another table is being taught: wait until it is done.")
        self._latest = upload = Upload(table.texts, table.labels)
        self._task = asyncio.create_task(upload.teach(service))
        return upload

    async def finish(self, seconds: float) -> None:
        """Wait until a table is taught; after some seconds, cancel what is left of it."""
        if self._task is None:
            return
        try:
            await asyncio.wait_for(self._task, seconds)
        except TimeoutError:
            log.warning("a table was interrupted: send it again, rows already taught count once")
