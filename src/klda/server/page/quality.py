"""Quality: how good the model is, what to do next, and how it does on a file."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from fastapi import File, Request, UploadFile
from fastapi.responses import Response

from klda.data import Layout
from klda.engine.solution import Answer
from klda.inspection.evaluation import Evaluation
from klda.labels import Label, close_names
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.changes import Tally
from klda.server.errors import ServerError
from klda.server.page.classes import CONFUSED, FEW, table
from klda.server.page.render import render, screen
from klda.server.page.routes import router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.wording import counted, percent, shown
from klda.server.service import Service

MOST_STEPS = 5  # what to do next
MOST_TESTED = 5000  # rows of a file
SHOWN = 8  # classes, pairs and rows of a result
CHARTED = 500  # examples that the chart shows
CHART_STEPS = 40
SURE = 0.9  # an answer that is as sure as this, and wrong, may have a wrong label


@dataclass(frozen=True)
class Tested:
    """How the model did on a file."""

    name: str
    texts: list[str]
    labels: list[Label]
    answers: list[Answer]
    evaluation: Evaluation
    unknown: list[tuple[Label, int, Label | None]]  # labels that no class has; what may be meant

    @property
    def errors(self) -> list[tuple[str, Label, Label, float]]:
        """Text, label, answer and its probability of what went wrong, the surest first."""
        found = [
            (text, label, *answer.top[0])
            for text, label, answer in zip(self.texts, self.labels, self.answers, strict=True)
            if answer.top[0][0] != label
        ]
        return sorted(found, key=lambda one: -one[3])


@router.get("/quality")
async def show_quality(request: Request, state: CurrentState) -> Response:
    """Show how good the model is."""
    return await screen(request, "quality", **await _figures(state))


@router.get("/page/quality")
async def show_figures(request: Request, state: CurrentState) -> Response:
    """Show it again after a change."""
    quality = await state.service.quality()
    return render(request, "figures.html", quality=quality, **await _figures(state))


async def _figures(state: PageState) -> dict[str, Any]:
    tallies = [made.tally for made in await state.service.history() if made.tally]
    return {
        "chart": chart(tallies),
        "steps": await next_steps(state),
        "tested": state.tests[-1] if state.tests else None,
        "before": state.tests[-2] if len(state.tests) > 1 else None,
        "most": SHOWN,
        "sure": SURE,
    }


async def next_steps(state: PageState) -> list[dict[str, Any]]:
    """Return what would help most, each with what its button opens."""
    rows = await table(state)
    steps: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: row.examples):
        if row.examples < FEW and len(steps) < 2:
            text = f"“{shown(row.label)}” has {counted(row.examples, 'example')}."
            more = f"{counted(FEW - row.examples, 'more', 'more')} would help a lot."
            open_ = {"path": "/page/class", "values": {"label": str(row.label)}}
            steps.append({"text": text, "more": more, "button": "Add examples", **open_})
    for pair in (await state.service.class_overview())[1]:
        if pair.confusion >= CONFUSED and len(steps) < MOST_STEPS:
            text = f"“{shown(pair.first)}” and “{shown(pair.second)}” are easily confused."
            more = f"About {percent(pair.confusion)} of one is taken for the other."
            both = {"first": str(pair.first), "second": str(pair.second)}
            open_ = {"path": "/page/pair", "values": both}
            steps.append({"text": text, "more": more, "button": "Look at the two", **open_})
    for row in rows:
        if (
            row.similar is not None
            and str(row.label) < str(row.similar)
            and len(steps) < MOST_STEPS
        ):
            text = f"“{shown(row.label)}” and “{shown(row.similar)}” have almost the same name."
            both = {"first": str(row.label), "second": str(row.similar)}
            open_ = {"path": "/page/pair", "values": both}
            more = "Are they one class?"
            steps.append({"text": text, "more": more, "button": "Look at the two", **open_})
    return steps


def chart(tallies: Sequence[Tally]) -> dict[str, Any]:
    """Draw how often the model was right just before it was taught, in a box of 100 by 40."""
    outcomes: list[float] = []
    for tally in tallies:
        # The order within a batch is not known: each example counts as its batch did.
        if asked := tally.right + tally.wrong:
            outcomes += [tally.right / asked] * asked
    outcomes = outcomes[-CHARTED:]
    count, new = len(outcomes), sum(tally.new for tally in tallies)
    if not count:
        return {"accuracy": None, "new": new}
    window, points = max(5, count // 8), []
    for i in sorted({round(i * (count - 1) / (CHART_STEPS - 1)) for i in range(CHART_STEPS)}):
        part = outcomes[max(0, i + 1 - window) : i + 1]
        y = 40 * (1 - sum(part) / len(part))
        points.append(f"{100 * i / max(1, count - 1):.2f},{y:.2f}")
    accuracy = sum(outcomes) / count
    return {"points": " ".join(points), "accuracy": accuracy, "asked": count, "new": new}


@router.post("/page/quality/test")
async def evaluate_file(
    request: Request,
    service: CurrentService,
    state: CurrentState,
    file: Annotated[UploadFile | None, File()] = None,
) -> Response:
    """Answer for the rows of a file and compare with its labels; nothing is taught."""
    if service.modality != "text":
        raise ServerError("Files can be tested on models of texts only; use the API.")
    if file is None or not file.filename:
        raise ServerError("Choose a file with texts and their classes.")
    state.tests = [*state.tests[-1:], await tested(service, await file.read(), file.filename)]
    quality = await service.quality()
    return render(request, "figures.html", quality=quality, **await _figures(state))


async def tested(service: Service, content: bytes, name: str) -> Tested:
    """Answer for the rows of a file."""
    known = service.snapshot.counts
    if not known:
        raise ServerError("This model has no classes yet: teach it first.", 409)
    texts, labels, _, _ = await asyncio.to_thread(
        lambda: inputs.rows_of_file(content, name, known, Layout(), skip_bad=True)
    )
    if len(texts) > MOST_TESTED:
        raise ServerError(
            f"{name} has {len(texts):,} rows: test at most {MOST_TESTED:,} at a time."
        )
    _, answers = await service.predict(texts, 1)
    given = [answer.top[0] for answer in answers]
    confidence = np.array([probability for _, probability in given])
    evaluation = Evaluation.of(labels, [label for label, _ in given], confidence)
    unknown = [
        (one.label, one.samples, next(iter(close_names(one.label, known)), None))
        for one in evaluation.never_learned(known)
    ]
    return Tested(name, texts, labels, answers, evaluation, unknown)


@router.get("/page/quality/errors.csv")
async def download_errors(request: Request, state: CurrentState) -> Response:
    """Return the wrong answers of the last test as CSV."""
    if not state.tests:
        raise ServerError("No file was tested yet.", 404)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["text", "label", "answer", "probability"])
    for text, label, answer, probability in state.tests[-1].errors:
        writer.writerow([text, label, answer, f"{probability:.3f}"])
    headers = {"Content-Disposition": 'attachment; filename="errors.csv"'}
    return Response(file.getvalue(), media_type="text/csv", headers=headers)
