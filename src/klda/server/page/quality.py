"""Quality: how good the model is, what to do next, and how it does on a file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import File, Request, UploadFile
from fastapi.responses import Response

from klda.data import Layout
from klda.inspection.evaluation import Evaluation
from klda.labels import Label, closest, spelt
from klda.messages import counted
from klda.server import inputs
from klda.server.api import CurrentService
from klda.server.changes import Learn, Tally
from klda.server.errors import ServerError
from klda.server.page.classes import FEW, OFTEN, Row, confused_pairs, table
from klda.server.page.render import as_csv, render, screen
from klda.server.page.routes import router
from klda.server.page.state import CurrentState, PageState
from klda.server.page.strictness import strictness
from klda.server.page.tested import Tested
from klda.server.page.wording import percent, shown
from klda.server.service import Service

MOST_STEPS, MOST_THIN = 5, 2  # what to do next, and how much of it is to add examples
MOST_TESTED = 5000  # rows of a file
SHOWN = 8  # classes, pairs and rows of a result
CHARTED = 500  # examples that the chart shows
CHART_STEPS = 40


@router.get("/quality")
async def show_quality(request: Request, state: CurrentState) -> Response:
    """Show how good the model is."""
    return await screen(request, "quality", **await _figures(state), **await strictness(state))


@router.get("/page/quality")
async def show_figures(request: Request, state: CurrentState) -> Response:
    """Show it again after a change."""
    return render(request, "figures.html", **await _figures(state))


async def _figures(state: PageState) -> dict[str, Any]:
    history = await state.service.history()
    tallies = [one.tally for one in history if isinstance(one, Learn) and one.tally]
    return {
        "expected": await state.service.quality(),
        "chart": chart(tallies),
        "steps": await next_steps(state),
        "tested": state.tests[-1] if state.tests else None,
        "before": state.tests[-2] if len(state.tests) > 1 else None,
        "most": SHOWN,
    }


async def next_steps(state: PageState) -> list[dict[str, Any]]:
    """Return what would help most, each with what its button opens."""
    steps = [_look_at_labels(one) for one in state.tests[-1:] if one.odd]
    rows = await table(state)
    thin = sorted((row for row in rows if row.examples < FEW), key=lambda row: row.examples)
    steps += [_more_examples(row) for row in thin[:MOST_THIN]]
    for pair in await confused_pairs(state.service):
        often = "often" if pair.confusion >= OFTEN else "sometimes"
        more = f"About {percent(pair.confusion)} of one is taken for the other."
        steps.append(_look_at(pair.first, pair.second, f"are {often} confused.", more))
    for row in rows:
        if row.similar is not None and str(row.label) < str(row.similar):
            more = "Are they one class?"
            steps.append(_look_at(row.label, row.similar, "have almost the same name.", more))
    return steps[:MOST_STEPS]


def _look_at_labels(test: Tested) -> dict[str, Any]:
    return {
        "text": f"{counted(len(test.odd), 'row')} of {test.name} may have the wrong class.",
        "more": "klda is sure of another one.",
        "button": "Look at them",
        "address": "#odd",
    }


def _more_examples(row: Row) -> dict[str, Any]:
    has = counted(row.examples, "example") if row.examples else "no examples"
    return {
        "text": f"“{shown(row.label)}” has {has}.",
        "more": f"{FEW - row.examples}{' more' if row.examples else ''} would help a lot.",
        "button": "Add examples",
        "path": "/page/class",
        "values": {"label": str(row.label)},
    }


def _look_at(first: Label, second: Label, words: str, more: str) -> dict[str, Any]:
    return {
        "text": f"“{shown(first)}” and “{shown(second)}” {words}",
        "more": more,
        "button": "Look at the two",
        "path": "/page/pair",
        "values": {"first": str(first), "second": str(second)},
    }


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
    return await show_figures(request, state)


async def tested(service: Service, content: bytes, name: str) -> Tested:
    """Answer for the rows of a file."""
    known = service.snapshot.counts
    if not known:
        raise ServerError("This model has no classes yet: teach it first.", 409)
    texts, given, _, _ = await asyncio.to_thread(
        lambda: inputs.rows_of_file(content, name, known, Layout(), skip_bad=True)
    )
    same = {spelt(label): label for label in known}
    labels = [label if label in known else same.get(spelt(label), label) for label in given]
    if len(texts) > MOST_TESTED:
        raise ServerError(
            f"{name} has {len(texts):,} rows: test at most {MOST_TESTED:,} at a time."
        )
    _, answers = await service.predict(texts, 1)
    first = [answer.top[0] for answer in answers]
    confidence = np.array([probability for _, probability in first])
    evaluation = Evaluation.of(labels, [label for label, _ in first], confidence)
    unknown = [
        (one.label, one.samples, closest(one.label, known))
        for one in evaluation.never_learned(known)
    ]
    return Tested(name, texts, labels, answers, evaluation, unknown)


@router.get("/page/quality/errors.csv")
async def download_errors(request: Request, state: CurrentState) -> Response:
    """Return the wrong answers of the last test as CSV."""
    if not state.tests:
        raise ServerError("No file was tested yet.", 404)
    rows = [[*one[:3], f"{one[3]:.3f}"] for one in state.tests[-1].errors]
    return as_csv("errors.csv", ["text", "label", "answer", "probability"], rows)
