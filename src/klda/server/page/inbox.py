"""Inbox: many texts or images without labels, sorted one key at a time, or many at once."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import PurePath
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import File, Form, Request, UploadFile
from fastapi.responses import Response

from klda.data import Layout
from klda.engine.solution import Answer
from klda.inspection.verdict import Verdict
from klda.labels import Label
from klda.messages import counted
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.changes import Undo
from klda.server.errors import ServerError
from klda.server.page.ask import named_class
from klda.server.page.ranking import KEYS, Ranking
from klda.server.page.render import as_csv, render, screen
from klda.server.page.routes import PAGE, Field, router
from klda.server.page.state import CurrentImport, CurrentState, PageState
from klda.server.page.teaching import MOST_ROWS, Import
from klda.server.page.waiting import MOST_ASKED, Item
from klda.server.page.wording import named
from klda.server.schemas import ItemNumber
from klda.server.settings import MAX_TEXT_LENGTH

SURE = 0.95  # texts above it can be accepted together
MOST_ACCEPTED = 1000  # at once
SHOWN_ALIKE, SHOWN_GROUPS = 10, 3  # texts of a group, and groups
SHOWN_CLASSES = 12  # of those that can be accepted together
SHOWN_PIXELS = 640  # the longer side of an image
MOST_DAYS = 30  # that texts that were asked are kept
NOT_KEPT = "Questions are no longer kept; those that were, and were not sorted, are deleted."
CELLS = ("class", "state", "probability")  # columns that a file gets

Order = Literal["most", "new", "class"]
Numbers = Annotated[str, Form(pattern="^[0-9 ]*$")]


async def _card(
    state: PageState, order: str, said: str = "", number: int | None = None
) -> dict[str, Any]:
    """Return what the screen shows: a text, its answer, and what can be done with many.

    With the `number` of a text, that one if it still waits: who looks at it is about to sort it.
    """
    # First: what is read in the meantime is asked for again.
    sorted_, waits, unread = await state.service.run(state.waiting.progress)
    ranking = await state.inbox.ranking()
    there = await state.service.run(state.waiting.numbers)
    order = order if order in ranking.order else "most"
    left = [i for i in ranking.order[order] if i in there]
    items = {item.id: item for item in ranking.items}
    item = items[number if number in left else left[0]] if left else None
    answer = verdict = None
    if item is not None and item.row is not None and state.service.snapshot.counts:
        snapshot = state.service.snapshot
        (answer,) = await state.service.run(snapshot.answer, item.row[None], KEYS)
        verdict = snapshot.verdict(answer)
    sure: dict[Label, list[Item]] = {}
    for i, label in _sure(ranking, there)[:MOST_ACCEPTED]:
        sure.setdefault(label, []).append(items[i])
    groups = [[items[i] for i in group if i in there] for group in ranking.groups]
    # What is taught together is shown; of a large group, the rest is proposed afterwards.
    if unread:
        state.inbox.encode_missing()
    return {
        "item": item,
        "answer": answer,
        "verdict": verdict,
        "counts": state.service.snapshot.counts,
        "n_sorted": sorted_,
        "n_waiting": waits,
        "n_missing": unread,
        "sure": sorted(sure.items(), key=lambda one: -len(one[1])),
        "groups": [group[:SHOWN_ALIKE] for group in groups if len(group) > 1][:SHOWN_GROUPS],
        "files": [job for job in state.tables.values() if job.waits],
        "order": order,
        "said": said,
        "most_alike": SHOWN_ALIKE,
        "most_groups": SHOWN_CLASSES,
        "days_kept": state.waiting.days_kept,
        "most_asked": MOST_ASKED,
        "can_undo": (await state.service.run(state.waiting.last)) is not None,
    }


def _sure(ranking: Ranking, left: set[int]) -> list[tuple[int, Label]]:
    """Return the ids of texts that klda is sure of, with their classes; the least sure first.

    Those that were skipped, or left out of such a list, are for a person to sort.
    """
    left = left - {item.id for item in ranking.items if item.state == "skipped"}
    found = [
        (answer.top[0][1], i, answer.top[0][0])
        for i, (answer, verdict) in ranking.answers.items()
        if i in left and verdict == Verdict.SURE and answer.top[0][1] >= SURE
    ]
    return [(i, label) for _, i, label in sorted(found, key=lambda one: one[:2])]


async def _next(
    request: Request, state: PageState, order: str, said: str, *, is_changed: bool = True
) -> Response:
    events: dict[str, Any] = {"model-changed": {}} if is_changed else {}
    return render(request, "card.html", events=events, **await _card(state, order, said))


@router.get("/inbox")
async def show_inbox(request: Request, state: CurrentState, order: str = "most") -> Response:
    """Show the next text to sort."""
    return await screen(request, "inbox", **await _card(state, order))


@router.get("/page/inbox")
async def show_card(
    request: Request, state: CurrentState, order: str = "most", number: ItemNumber | None = None
) -> Response:
    """Show the next text in another order; or, while others are read, the one that is shown."""
    return render(request, "card.html", **await _card(state, order, number=number))


@router.post("/page/inbox/add")
async def add_items(
    state: CurrentState,
    texts: Annotated[str, Form(max_length=5_000_000)] = "",
    file: Annotated[list[UploadFile] | None, File()] = None,
) -> Response:
    """Add texts, pasted, one per line, or those of a file; or images."""
    service = state.service
    sent = [(one.filename, await one.read()) for one in file or () if one.filename]
    if service.modality == "image":
        if not sent:
            raise ServerError("Choose images, or a .zip archive of them.")
        images, _, _ = await service.run(inputs.image_files, sent)
        await service.run(state.waiting.add_images, images)
    elif service.modality == "text":
        lines = [line.strip() for line in texts.splitlines()]
        lines = [line[:MAX_TEXT_LENGTH] for line in lines if line]
        for name, content in sent:
            job = Import(service, name, content)
            await job.read(Layout())
            state.add_table(job)
            if job.inputs:  # some rows have a class, or seem to
                return Response(headers={"HX-Redirect": f"/import/{job.id}"})
            lines, job.waits = lines + job.unsorted, True
        if not lines:
            raise ServerError("Paste texts, one per line, or choose a file.")
        await service.run(state.waiting.add, lines)
    else:
        raise ServerError("The inbox is for models of texts and images.")
    state.inbox.encode_missing()
    return Response(headers={"HX-Redirect": "/inbox"})


@router.get("/page/inbox.csv")
async def download_texts(state: CurrentState) -> Response:
    """Return the texts as CSV, each with its class, or with the one that klda proposes."""
    answers = (await state.inbox.ranking()).answers
    rows = [
        [text, *_cells(label, "", answers.get(number))]
        for number, text, label in await state.service.run(state.waiting.all)
    ]
    return as_csv("inbox.csv", ["text", *CELLS], rows)


def _cells(label: str | None, given: Label, answered: tuple[Answer, Verdict] | None) -> list[Any]:
    """Return the class of a text, and where it is from; or what klda proposes, and how sure."""
    if label:
        return [label, "sorted", ""]
    if given != "":
        return [given, "in the file", ""]
    if answered is None:
        return ["", "waiting", ""]
    answer, verdict = answered
    best, probability = answer.top[0]
    return [best, verdict.words, f"{probability:.3f}" if verdict.has_probability else ""]


@router.get("/page/inbox/file/{number}")
async def download_file(state: CurrentState, job: CurrentImport) -> Response:
    """Return a file with all its columns, and the class of each row."""
    service = state.service
    file = (job.content, job.name, job.layout, MOST_ROWS)
    texts, rows, _ = await asyncio.to_thread(inputs.texts_of_file, *file)
    labels = {text: label for _, text, label in await service.run(state.waiting.all)}
    given = dict(zip(job.inputs, job.labels, strict=True))
    answered: dict[str, tuple[Answer, Verdict]] = {}
    left = [text for text in texts if not labels.get(text) and text not in given]
    if service.snapshot.counts and left:
        snapshot, answers = await service.predict(left, 1)
        verdicts = map(snapshot.verdict, answers)
        answered = dict(zip(left, zip(answers, verdicts, strict=True), strict=True))
    names = [f"klda {name}" if name in rows[0] else name for name in CELLS]
    return as_csv(
        f"{PurePath(job.name).stem}-sorted.csv",
        [*rows[0], *names],
        [
            [*row.values(), *_cells(labels.get(text), given.get(text, ""), answered.get(text))]
            for text, row in zip(texts, rows, strict=True)
        ],
    )


@router.get("/page/inbox/image/{number}")
async def show_image(state: CurrentState, number: ItemNumber) -> Response:
    """Return an image that waits, not larger than it is shown."""
    file = await state.service.run(state.waiting.image, number)
    if file is None:
        raise ServerError("This image is no longer in the inbox.", 404)
    shown = await state.service.run(inputs.thumbnail, file, SHOWN_PIXELS)
    return Response(shown, media_type="image/jpeg")


@router.post("/page/inbox/keep")
async def keep_asked(
    request: Request, state: CurrentState, days: Annotated[int, Form(ge=0, le=MOST_DAYS)]
) -> Response:
    """Choose for how many days texts are kept that programs ask and klda is not sure of."""
    await state.service.run(state.waiting.keep_asked, days)
    said = f"Unsure questions are kept for {counted(days, 'day')}." if days else NOT_KEPT
    return await _next(request, state, "most", said, is_changed=False)


async def _found(state: PageState, numbers: list[int]) -> list[Item]:
    found = await state.service.run(state.waiting.items, numbers)
    if not found or any(item.row is None for item in found):
        raise ServerError("This text is no longer in the inbox.", 404)
    return found


@router.post("/page/inbox/teach")
async def teach_items(
    request: Request,
    service: CurrentService,
    state: CurrentState,
    number: Annotated[list[ItemNumber], Form()],
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
    numbers = [item.id for item in items]
    await service.run(state.waiting.done, numbers, [name] * len(items), done.number)
    count = "" if len(items) == 1 else f"{counted(len(items), 'text')} as "
    return await _next(request, state, order, f"Taught {count}{named([name])}.")


@router.post("/page/inbox/accept")
async def accept_sure(
    request: Request,
    service: CurrentService,
    state: CurrentState,
    number: Annotated[list[ItemNumber] | None, Form()] = None,
    shown: Numbers = "",
    more: Numbers = "",
    order: Field = "most",
) -> Response:
    """Teach texts that klda is sure of: those shown and not left out, and `more` that were not."""
    kept = set(number or ())
    if not kept and not more.strip():
        raise ServerError("All of these are left out: tick those to accept.")
    ranking = await state.inbox.ranking()
    waiting = {item.id: item for item in await service.run(state.waiting.items)}
    sure = _sure(ranking, {*kept, *map(int, more.split())} & set(waiting))
    if not sure:
        raise ServerError("There is no such text any more.", 404)
    if left_out := {*map(int, shown.split())} - kept:
        await service.run(state.waiting.skip, *left_out)
    numbers, labels = [i for i, _ in sure], [label for _, label in sure]
    rows = np.stack([row for i in numbers if (row := waiting[i].row) is not None])
    done = await service.learn_rows(rows, labels, by=PAGE, as_answered=True)
    await service.run(state.waiting.done, numbers, labels, done.number)
    return await _next(request, state, order, f"Accepted {counted(len(sure), 'text')}.")


@router.post("/page/inbox/skip")
async def skip_item(
    request: Request,
    state: CurrentState,
    number: Annotated[ItemNumber, Form()],
    order: Field = "most",
) -> Response:
    """Put a text behind the others."""
    await state.service.run(state.waiting.skip, number)
    return await _next(request, state, order, "Skipped.", is_changed=False)


@router.post("/page/inbox/remove")
async def remove_items(
    request: Request,
    state: CurrentState,
    number: Annotated[ItemNumber | None, Form()] = None,
    order: Field = "most",
) -> Response:
    """Delete a text, or all that wait, without teaching anything."""
    await state.service.run(state.waiting.remove, number)
    return await _next(request, state, order, "Deleted.", is_changed=False)


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
        await service.run(partial(state.waiting.back, number=number))
        return await _next(request, state, order, "Brought back.", is_changed=False)
    try:
        await service.change(Undo(change, by=PAGE))
    except ServerError as error:
        if error.status not in (404, 409):
            raise
        if not await service.read(lambda _, journal: journal.is_undone(change)):
            await service.run(state.waiting.settle, change)  # nothing will undo it any more
            raise
    await state.undone(change)
    return await _next(request, state, order, "Undone.")
