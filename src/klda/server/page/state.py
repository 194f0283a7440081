"""What the page remembers between requests, beside the model."""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Any

from fastapi import Depends, Request

from klda.labels import Label, close_names
from klda.server.journal import Journal
from klda.server.page.teaching import Teaching
from klda.server.page.waiting import Waiting
from klda.server.service import Service
from klda.server.settings import STOP_SECONDS

MOST_COMPARED = 500  # classes whose names are compared
ALIKE = 0.9  # similarity of names that is worth a tag
MOST_TABLES = 8  # that wait to be taught, or were


class PageState:
    """Tables on their way into the model, and figures that are costly to compute."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.waiting = Waiting(service.settings.model, service.snapshot.learner.undo_seconds)
        self.tests: list[Any] = []  # how the model did on the last files
        self.inbox: Any = None  # made when it is first needed
        self.tables: OrderedDict[str, Teaching] = OrderedDict()  # by id, the newest last
        self._similar: tuple[list[Label], dict[Label, Label]] = ([], {})
        self._taught: dict[Label, float] = {}  # when each class was last taught
        self._checked = 0  # answers that were confirmed or corrected, one at a time
        self._read = 0  # number of the last change in both

    async def stop(self) -> None:
        """Wait for the tables that are being taught."""
        if self.inbox is not None:
            self.inbox.stop()
        for table in self.tables.values():
            await table.finish(STOP_SECONDS)

    def add_table(self, table: Teaching) -> None:
        """Remember a table; the oldest that nothing is happening to are dropped."""
        self.tables[table.id] = table
        idle = [one.id for one in self.tables.values() if not one.is_running]
        for old in idle[: max(0, len(self.tables) - MOST_TABLES)]:
            del self.tables[old]

    async def checked(self) -> int:
        """Return how many answers were confirmed or corrected, as far as the history goes back."""
        await self._read_changes()
        return self._checked

    async def last_taught(self) -> dict[Label, float]:
        """Return when each class was last taught, as far as the history goes back."""
        await self._read_changes()
        return self._taught

    def undone(self, number: int) -> None:
        """Note that a change was undone."""
        self.waiting.back(change=number)
        for table in self.tables.values():
            if number in table.changes:
                table.changes.remove(number)
                table.is_undone = not table.changes

    async def similar_names(self) -> dict[Label, Label]:
        """Return for each class another one with almost the same name, where there is one."""
        names = list(self.service.snapshot.counts)
        if names != self._similar[0]:
            found = await self.service.run(similar, names[:MOST_COMPARED])
            self._similar = (names, found)
        return self._similar[1]

    async def _read_changes(self) -> None:
        def read(_: object, journal: Journal) -> int:
            changes = journal.since(self._read) if self._read else journal.history()
            for change in changes:
                if change.kind == "learn":
                    self._taught.update(dict.fromkeys(change.labels, change.when))
                    self._checked += len(change.labels) == 1
                elif change.kind == "rename" and change.labels[0] in self._taught:
                    self._taught[change.labels[1]] = self._taught.pop(change.labels[0])
            return changes[-1].number if changes else self._read

        self._read = await self.service.read(read)


async def state_of(request: Request) -> PageState:
    """Return the state of the page; asynchronous, so that it takes no thread."""
    state: PageState = request.app.state.page
    return state


CurrentState = Annotated[PageState, Depends(state_of)]


def similar(names: list[Label]) -> dict[Label, Label]:
    """Find the names that are almost the same as another."""
    found: dict[Label, Label] = {}
    for i, one in enumerate(names):
        for other in close_names(one, names[:i], cutoff=ALIKE):
            found |= {one: other, other: one}
    return found
