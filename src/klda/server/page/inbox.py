"""Inbox: many texts without labels, sorted one key at a time, or many at once."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import File, Form, Request, UploadFile
from fastapi.responses import Response

from klda.data import open_bytes
from klda.engine.solution import Answer
from klda.inspection.verdict import Verdict
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.changes import Change
from klda.server.errors import ServerError
from klda.server.page.ask import named_class
from klda.server.page.render import render, screen
from klda.server.page.routes import PAGE, Field, router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.waiting import Item
from klda.server.page.wording import counted, named
from klda.server.settings import MAX_TEXT_LENGTH
from klda.server.snapshot import Snapshot

CHUNK = 64  # texts that are encoded between two requests of others
KEYS = 5  # classes with keys: Enter and 1 to 4
SURE = 0.95  # texts above it can be accepted together
SUGGESTED = 50  # texts that are put in the order of what teaches most
SHOWN_ALIKE = 8  # texts of a group
RANK_AGAIN = 20  # changes after which a large inbox is put in order again
SMALL = 500  # texts that are put in order after every change

Order = Literal["most", "new", "class"]


@dataclass
class Ranking:
    """The texts that wait, answered and in order, for one state of the model and the inbox."""

    items: list[Item]
    answers: dict[int, tuple[Answer, Verdict]]  # by id
    order: dict[str, list[int]]  # ids, by name of the order
    groups: list[list[int]]  # ids of unknown texts that look alike
    version: int
    revision: int

    def is_fresh(self, version: int, revision: int) -> bool:
        """Return whether it may still be used."""
        if len(self.items) <= SMALL:
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
        for one in snapshot.learner.suggest_rows(rows, min(SUGGESTED, len(rows))):
            first.append(known[one.row].id)
            if one.alike and (one.known is False or not snapshot.counts):
                groups.append([known[i].id for i in (one.row, *one.alike)])
    waiting = [item.id for item in items if item.state == "waiting"]
    skipped = [item.id for item in items if item.state == "skipped"]
    is_new = {i for i, (_, verdict) in answers.items() if verdict == Verdict.NEW}

    def uncertain(i: int) -> float:
        return answers[i][0].top[0][1] if i in answers else 2.0

    def by_class(i: int) -> tuple[str, float]:
        return (str(answers[i][0].top[0][0]), -uncertain(i)) if i in answers else ("\uffff", 0.0)

    rest = sorted(set(waiting) - set(first), key=lambda i: (uncertain(i), i))
    most = [i for i in first if i in set(waiting)] + rest
    order = {
        "most": most + skipped,
        "new": sorted(most, key=lambda i: i not in is_new) + skipped,
        "class": sorted(waiting, key=by_class) + skipped,
    }
    groups = sorted((group for group in groups if len(group) > 1), key=len, reverse=True)
    return Ranking(items, answers, order, groups, snapshot.version, revision)


class Inbox:
    """What the screen needs: the texts in order, with answers; and the task that encodes them."""

    def __init__(self, state: PageState) -> None:
        self.state, self.service, self.waiting = state, state.service, state.waiting
        self._ranking: Ranking | None = None
        self._task: asyncio.Task | None = None

    async def ranking(self) -> Ranking:
        """Return the texts in order."""
        snapshot, revision = self.service.snapshot, self.waiting.revision
        found = self._ranking
        if found is None or not found.is_fresh(snapshot.version, revision):
            items = await self.service.run(self.waiting.items)
            found = await self.service.run(rank, snapshot, items, revision)
            self._ranking = found
        return found

    def encode_missing(self) -> None:
        """Compute the features of texts that have none, in the background."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._encode())

    async def _encode(self) -> None:
        while True:
            items = await self.service.run(self.waiting.items)
            missing = [item for item in items if item.row is None][:CHUNK]
            if not missing:
                return
            rows = await self.service.encode([item.text for item in missing])
            numbered = {item.id: row for item, row in zip(missing, rows, strict=True)}
            await self.service.run(self.waiting.encoded, numbered)

    def stop(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.cancel()


def inbox_of(state: PageState) -> Inbox:
    """Return the inbox of a page."""
    if state.inbox is None:
        state.inbox = Inbox(state)
    found: Inbox = state.inbox
    return found


async def _card(state: PageState, order: str, said: str = "") -> dict[str, Any]:
    """Return what the screen shows: a text, its answer, and what can be done with many."""
    inbox = inbox_of(state)
    ranking = await inbox.ranking()
    sorted_, waits = await state.service.run(state.waiting.progress)
    gone = {item.id for item in ranking.items} - {
        item.id for item in await state.service.run(state.waiting.items)
    }
    order = order if order in ranking.order else "most"
    left = [i for i in ranking.order[order] if i not in gone]
    items = {item.id: item for item in ranking.items}
    item = items[left[0]] if left else None
    answer = verdict = None
    if item is not None and item.row is not None and state.service.snapshot.counts:
        snapshot = state.service.snapshot
        (answer,) = await state.service.run(snapshot.answer, item.row[None], KEYS)
        verdict = snapshot.verdict(answer)
    sure = _sure(ranking, set(left))
    groups = [[items[i] for i in group if i not in gone] for group in ranking.groups]
    missing = sum(one.row is None for one in ranking.items)
    if missing:
        inbox.encode_missing()
    return {
        "item": item,
        "answer": answer,
        "verdict": verdict,
        "counts": state.service.snapshot.counts,
        "n_sorted": sorted_,
        "n_waiting": waits,
        "n_missing": missing,
        "sure": len(sure),
        "groups": [group for group in groups if len(group) > 1][:3],
        "order": order,
        "said": said,
        "most_alike": SHOWN_ALIKE,
        "can_undo": (await state.service.run(state.waiting.last)) is not None,
    }


def _sure(ranking: Ranking, left: set[int]) -> list[tuple[int, Any]]:
    return [
        (i, answer.top[0][0])
        for i, (answer, verdict) in ranking.answers.items()
        if i in left and verdict == Verdict.SURE and answer.top[0][1] >= SURE
    ]


async def _next(
    request: Request, state: PageState, order: str, said: str, *, changed: bool = True
) -> Response:
    events: dict[str, Any] = {"model-changed": {}} if changed else {}
    return render(request, "card.html", events=events, **await _card(state, order, said))


@router.get("/inbox")
async def show_inbox(request: Request, state: CurrentState, order: str = "most") -> Response:
    """Show the next text to sort."""
    return await screen(request, "inbox", **await _card(state, order))


@router.get("/page/inbox")
async def show_card(request: Request, state: CurrentState, order: str = "most") -> Response:
    """Show the next text in another order."""
    return await _next(request, state, order, "", changed=False)


@router.post("/page/inbox/add")
async def add_texts(
    request: Request,
    state: CurrentState,
    texts: Annotated[str, Form(max_length=5_000_000)] = "",
    file: Annotated[UploadFile | None, File()] = None,
) -> Response:
    """Add texts: pasted, one per line, or those of a file."""
    if state.service.modality != "text":
        raise ServerError("The inbox is for models of texts.")
    lines = [line.strip() for line in texts.splitlines()]
    if file is not None and file.filename:
        content, name = await file.read(), file.filename
        lines += await asyncio.to_thread(_texts, content, name)
    lines = [line[:MAX_TEXT_LENGTH] for line in lines if line.strip()]
    if not lines:
        raise ServerError("Paste texts, one per line, or choose a file.")
    await state.service.run(state.waiting.add, lines)
    inbox_of(state).encode_missing()
    return Response(headers={"HX-Redirect": "/inbox"})


def _texts(content: bytes, name: str) -> list[str]:
    batches = open_bytes(content, name=name).batches(labels=False, bad=lambda row: None)
    return [text for batch in batches for text in batch.inputs]


async def _found(state: PageState, numbers: list[int]) -> list[Item]:
    items = {item.id: item for item in await state.service.run(state.waiting.items)}
    found = [items[number] for number in numbers if number in items]
    if not found or any(item.row is None for item in found):
        raise ServerError("This text is no longer in the inbox.", 404)
    return found


@router.post("/page/inbox/teach")
async def teach_items(
    request: Request,
    service: CurrentService,
    state: CurrentState,
    number: Annotated[list[int], Form()],
    chosen: Field = "",
    label: Field = "",
    order: Field = "most",
) -> Response:
    """Teach one text, or a group of them, the class that was chosen or typed."""
    items = await _found(state, number)
    known = service.snapshot.counts
    name = inputs.chosen_class(chosen, known) if chosen else named_class(label, known)
    rows = np.stack([item.row for item in items if item.row is not None])
    done = await service.learn_rows(rows, [name] * len(items), by=PAGE)
    await service.run(state.waiting.done, [item.id for item in items], done.number)
    count = "" if len(items) == 1 else f"{counted(len(items), 'text')} as "
    return await _next(request, state, order, f"Taught {count}{named([name])}.")


@router.post("/page/inbox/accept")
async def accept_sure(
    request: Request, service: CurrentService, state: CurrentState, order: Field = "most"
) -> Response:
    """Teach all texts that klda is sure of."""
    ranking = await inbox_of(state).ranking()
    waiting = {item.id: item for item in await service.run(state.waiting.items)}
    sure = _sure(ranking, set(waiting))
    if not sure:
        raise ServerError("There is no such text any more.", 404)
    rows = np.stack([row for i, _ in sure if (row := waiting[i].row) is not None])
    done = await service.learn_rows(rows, [label for _, label in sure], by=PAGE)
    await service.run(state.waiting.done, [i for i, _ in sure], done.number)
    return await _next(request, state, order, f"Accepted {counted(len(sure), 'text')}.")


@router.post("/page/inbox/skip")
async def skip_item(
    request: Request, state: CurrentState, number: Annotated[int, Form()], order: Field = "most"
) -> Response:
    """Put a text behind the others."""
    await state.service.run(state.waiting.skip, number)
    return await _next(request, state, order, "Skipped.", changed=False)


@router.post("/page/inbox/remove")
async def remove_items(
    request: Request,
    state: CurrentState,
    number: Annotated[int | None, Form()] = None,
    order: Field = "most",
) -> Response:
    """Delete a text, or all that wait, without teaching anything."""
    await state.service.run(state.waiting.remove, number)
    return await _next(request, state, order, "Deleted.", changed=False)


@router.post("/page/inbox/undo")
async def undo_last(
    request: Request, service: CurrentService, state: CurrentState, order: Field = "most"
) -> Response:
    """Take back what was last done in the inbox."""
    last = await service.run(state.waiting.last)
    if last is None:
        raise ServerError("There is nothing to undo here.", 404)
    kind, number, change = last
    if kind == "skipped":
        state.waiting.back(number=number)
        return await _next(request, state, order, "Brought back.", changed=False)
    await service.change(Change("undo", target=change, by=PAGE))
    state.undone(change)
    return await _next(request, state, order, "Undone.")
