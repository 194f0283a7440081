"""What the page remembers between requests, beside the model."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine
from functools import partial
from typing import Annotated

import numpy as np
from fastapi import Depends, Request

from klda.engine.solution import Answer
from klda.inspection.verdict import Verdict
from klda.labels import Label, similar_names
from klda.server.changes import Learn, Rename
from klda.server.errors import ServerError
from klda.server.journal import Journal
from klda.server.page.ranking import Inbox
from klda.server.page.teaching import Import
from klda.server.page.tested import Tested
from klda.server.page.waiting import Waiting
from klda.server.service import Service
from klda.server.settings import STOP_SECONDS
from klda.server.snapshot import Snapshot

EXPIRE_SECONDS = 600.0
MOST_TABLES = 4  # that wait to be taught, or were

log = logging.getLogger("klda.server")


class PageState:
    """Tables on their way into the model, and figures that are costly to compute."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.waiting = Waiting(service.settings.model, service.snapshot.learner.undo_seconds)
        self._tasks: set[asyncio.Task] = set()
        if service.modality == "text":
            service.on_asked = self._asked
        self.inbox = Inbox(service, self.waiting)
        self.tests: list[Tested] = []  # how the model did on the last files
        self.foreign: np.ndarray | None = None  # features of texts that fit no class
        self.tables: OrderedDict[str, Import] = OrderedDict()  # by id, the newest last
        self._similar: tuple[list[Label], dict[Label, Label]] = ([], {})
        self._taught: dict[Label, float] = {}  # when each class was last taught
        self._checked = 0  # answers that were confirmed or corrected, one at a time
        self._read = 0  # number of the last change in both
        self._is_ready = False

    def start(self) -> None:
        """Begin to delete texts that were asked once their time is over.

        What the first visitor would wait for is computed now.
        """
        self._begin(self._expire())
        self._begin(self.service.quality())

    def get_ready(self) -> None:
        """Prepare the model for a change; someone who may teach has a screen open."""
        if not self._is_ready:
            self._is_ready = True
            self.service.writer.get_ready()

    async def _expire(self) -> None:
        while True:
            await self.service.run(self.waiting.expire)
            await asyncio.sleep(EXPIRE_SECONDS)

    def _asked(self, texts: list[str], snapshot: Snapshot, answers: list[Answer]) -> None:
        """Keep texts that were asked for the Inbox, if that was chosen and klda was not sure."""
        if not self.waiting.days_kept:
            return
        unsure = (Verdict.NOT_SURE, Verdict.NEW)
        pairs = zip(texts, answers, strict=True)
        if kept := [text for text, answer in pairs if snapshot.verdict(answer) in unsure]:
            self._begin(self.service.run(self.waiting.asked, kept))

    def _begin(self, work: Coroutine) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a task of the page failed", exc_info=error)

    async def stop(self) -> None:
        """Wait for the tables that are being taught."""
        for task in self._tasks:
            task.cancel()
        self.inbox.stop()
        for table in self.tables.values():
            await table.finish(STOP_SECONDS)

    def add_table(self, table: Import) -> None:
        """Remember a table; the oldest that nothing is happening to are dropped."""
        idle = [one.id for one in self.tables.values() if not one.is_running]
        for old in idle[: max(0, len(self.tables) - MOST_TABLES + 1)]:
            self.tables.pop(old).drop()
        self.tables[table.id] = table

    async def checked(self) -> int:
        """Return how many answers were confirmed or corrected, as far as the history goes back."""
        await self._read_changes()
        return self._checked

    async def last_taught(self) -> dict[Label, float]:
        """Return when each class was last taught, as far as the history goes back."""
        await self._read_changes()
        return self._taught

    async def undone(self, number: int) -> None:
        """Note that a change was undone."""
        await self.service.run(partial(self.waiting.back, change=number))
        for table in self.tables.values():
            table.note_undone(number)

    async def similar_names(self) -> dict[Label, Label]:
        """Return for each class another one with almost the same name, where there is one."""
        names = list(self.service.snapshot.counts)
        if names != self._similar[0]:
            found = await self.service.run(similar_names, names, ())
            self._similar = (names, {other: one for one, other in found.items()} | found)
        return self._similar[1]

    async def _read_changes(self) -> None:
        def read(_: object, journal: Journal) -> None:  # in one thread: no change counts twice
            changes = journal.since(self._read) if self._read else journal.history()
            for change in changes:
                if isinstance(change, Learn):
                    self._taught.update(dict.fromkeys(change.labels, change.when))
                    self._checked += len(change.labels) == 1
                elif isinstance(change, Rename) and change.old in self._taught:
                    self._taught[change.new] = self._taught.pop(change.old)
                self._read = change.number

        await self.service.read(read)


async def state_of(request: Request) -> PageState:
    """Return the state of the page; asynchronous, so that it takes no thread."""
    state: PageState = request.app.state.page
    return state


CurrentState = Annotated[PageState, Depends(state_of)]


async def import_of(state: CurrentState, number: str) -> Import:
    """Return the import that an address names."""
    if number not in state.tables:
        raise ServerError("This import is no longer here: choose the file again.", 404)
    return state.tables[number]


CurrentImport = Annotated[Import, Depends(import_of)]
