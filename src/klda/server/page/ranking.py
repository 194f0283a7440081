"""The order of what waits in the Inbox: answered, ranked, and in groups that look alike."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.engine.solution import Answer
from klda.inspection.verdict import Verdict
from klda.server.page.waiting import Item, Waiting
from klda.server.service import Service
from klda.server.snapshot import Snapshot

CHUNK = 64  # texts that are encoded between two requests of others
KEYS = 5  # classes with keys: Enter and 1 to 4
SUGGESTED = 50  # texts that are put in the order of what teaches most
ALIKE = 3  # texts of a group, on average, in a small inbox
RANK_AGAIN = 20  # changes after which a large inbox is put in order again
SMALL = 500  # texts that are put in order after every change
GATHERED = 1000  # texts, those most in doubt, that suggestions and groups are made of


@dataclass
class Ranking:
    """The texts that wait, answered and in order, for one state of the model and the inbox."""

    items: list[Item]
    answers: dict[int, tuple[Answer, Verdict]]  # by id
    order: dict[str, list[int]]  # ids, by name of the order
    groups: list[list[int]]  # ids of unknown texts that look alike
    version: int
    revision: int

    @property
    def missing(self) -> int:
        """Number of texts that were not encoded yet."""
        return sum(item.row is None for item in self.items)

    @property
    def is_large(self) -> bool:
        """Whether it is used until another one is made."""
        return len(self.items) > SMALL and self.missing < len(self.items)

    def is_fresh(self, version: int, revision: int) -> bool:
        """Return whether it may still be used."""
        if not self.is_large:
            return (self.version, self.revision) == (version, revision)
        return version - self.version < RANK_AGAIN and revision - self.revision < 2 * RANK_AGAIN


def rank(snapshot: Snapshot, items: list[Item], revision: int) -> Ranking:
    """Answer for the texts and put them in order."""
    known = [item for item in items if item.row is not None]
    answers: dict[int, tuple[Answer, Verdict]] = {}
    first, groups = [], []
    if known:
        rows = np.stack([item.row for item in known if item.row is not None])
        if snapshot.counts:
            found = snapshot.answer(rows, KEYS)
            answers = {
                item.id: (answer, snapshot.verdict(answer))
                for item, answer in zip(known, found, strict=True)
            }
        sure = [answers[item.id][0].top[0][1] if answers else 0.0 for item in known]
        some = np.argsort(sure, kind="stable")[:GATHERED]
        ids = [known[i].id for i in some]
        # Some for each: as many as there are texts would leave no groups.
        few = max(1, min(SUGGESTED, len(some) // ALIKE))
        for one in snapshot.learner.suggest_rows(rows[some], few):
            first.append(ids[one.row])
            if one.alike and not one.known:  # nor if that can't be told
                groups.append([ids[i] for i in (one.row, *one.alike)])
    waiting = {item.id for item in items if item.state == "waiting"}
    skipped = [item.id for item in items if item.state == "skipped"]

    def uncertain(i: int) -> float:
        return answers[i][0].top[0][1] if i in answers else 2.0

    def is_known(i: int) -> bool:
        return i not in answers or answers[i][1] != Verdict.NEW

    def by_class(i: int) -> tuple[str, float]:
        return (str(answers[i][0].top[0][0]), -uncertain(i)) if i in answers else ("\uffff", 0.0)

    most = [i for i in first if i in waiting]
    most += sorted(waiting - {*first}, key=lambda i: (uncertain(i), i))
    order = {
        "most": most + skipped,
        "new": sorted(most, key=is_known) + skipped,
        "class": sorted(most, key=by_class) + skipped,
    }
    groups = sorted((group for group in groups if len(group) > 1), key=len, reverse=True)
    return Ranking(items, answers, order, groups, snapshot.version, revision)


class Inbox:
    """What the screen needs: the texts in order, with answers; and the task that encodes them."""

    def __init__(self, service: Service, waiting: Waiting) -> None:
        self.service, self.waiting = service, waiting
        self._ranking: Ranking | None = None
        self._task: asyncio.Task | None = None
        self._ranks: asyncio.Task | None = None

    async def ranking(self) -> Ranking:
        """Return the texts in order; of many, the last order while a new one is found."""
        version, revision = self.service.snapshot.version, self.waiting.revision
        found = self._ranking
        is_read = self._task is None or self._task.done()
        if found is None or not found.is_fresh(version, revision) or (is_read and found.missing):
            if found is None or not found.is_large:
                return await self._rank()
            if self._ranks is None or self._ranks.done():
                self._ranks = asyncio.create_task(self._rank())
        return found

    async def _rank(self) -> Ranking:
        snapshot, revision = self.service.snapshot, self.waiting.revision
        items = await self.service.run(self.waiting.items)
        self._ranking = await self.service.run(rank, snapshot, items, revision)
        return self._ranking

    def encode_missing(self) -> None:
        """Compute the features of texts that have none, in the background."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._encode())

    async def _encode(self) -> None:
        while unread := await self.service.run(self.waiting.unread, CHUNK):
            numbers = [number for number, _ in unread]
            inputs: list[Any] = [text for _, text in unread]
            if self.service.modality == "image":
                inputs = [await self.service.run(self.waiting.image, i) for i in numbers]
            rows = await self.service.encode(inputs)
            await self.service.run(self.waiting.encoded, dict(zip(numbers, rows, strict=True)))

    def stop(self) -> None:
        """End its tasks."""
        for task in (self._task, self._ranks):
            if task is not None:
                task.cancel()
