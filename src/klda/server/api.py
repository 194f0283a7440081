"""The HTTP API, under ``/v1``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Header, Query, Request, Response
from fastapi.security import HTTPBearer

import klda
from klda.data import as_label
from klda.server import schemas
from klda.server.changes import Change, Key, digest
from klda.server.errors import STATUSES, ServerError
from klda.server.events import event_stream
from klda.server.inputs import inputs_of, rows_of_file
from klda.server.service import Service
from klda.server.settings import MAX_KEY_LENGTH


async def service_of(request: Request) -> Service:
    """Return the service that an application serves; asynchronous, so that it takes no thread."""
    service: Service = request.app.state.service
    return service


CurrentService = Annotated[Service, Depends(service_of)]
GivenKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", max_length=MAX_KEY_LENGTH, pattern=r"^[\x21-\x7e]+$"),
]


async def key_of(request: Request, idempotency_key: GivenKey = None) -> Key | None:
    """Return the idempotency key of a request, and what tells another request with it."""
    if idempotency_key is None:
        return None
    content = request.scope["path"].encode() + await request.body()
    return Key(idempotency_key, digest(content))


MaybeKey = Annotated[Key | None, Depends(key_of)]
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer, "description": meaning}
    for status, (_, meaning) in STATUSES.items()
    if status
}
# For the OpenAPI document only: `klda.server.gate` checks the key before the body is read.
_bearer = Depends(HTTPBearer(auto_error=False, description="An API key. Also as X-API-Key."))
router = APIRouter(prefix="/v1", dependencies=[_bearer], responses=ERRORS)
open_router = APIRouter(prefix="/v1", responses=ERRORS)  # needs no key


@router.post("/predict", response_model=schemas.PredictAnswer, tags=["ask"])
async def predict(body: schemas.PredictBody, service: CurrentService) -> Any:
    """Answer for texts, images or features, with probabilities."""
    snapshot, answers = await service.predict(await inputs_of(service, *body.inputs()), body.top)
    predictions = []
    for answer in answers:
        top = [
            {"label": label, "probability": min(1.0, max(0.0, round(probability, 6)))}
            for label, probability in answer.top
        ]
        judged = {"verdict": snapshot.verdict(answer), "known": answer.known}
        predictions.append({**top[0], **judged, "novelty": answer.novelty, "top": top})
    return {"predictions": predictions, "version": snapshot.version}


@router.post("/explain", response_model=schemas.ExplainAnswer, tags=["ask"])
async def explain(body: schemas.ExplainBody, service: CurrentService) -> Any:
    """Explain an answer: the nearest classes, and how much each word contributes to it."""
    return await service.explain((await inputs_of(service, *body.inputs()))[0])


@router.post("/suspects", response_model=schemas.SuspectsAnswer, tags=["look"])
async def suspects(body: schemas.SuspectsBody, service: CurrentService) -> Any:
    """Find samples whose labels are probably wrong, and samples that are there twice.

    Each is answered by what was learned and by the other samples; nothing is learned.
    """
    inputs = await inputs_of(service, *body.inputs())
    return {"suspects": await service.suspects(inputs, body.labels)}


@router.post("/suggest", response_model=schemas.SuggestAnswer, tags=["look"])
async def suggest(body: schemas.SuggestBody, service: CurrentService) -> Any:
    """Choose which of some inputs to label next: what the model is least sure of, or never saw."""
    inputs = await inputs_of(service, *body.inputs())
    return {"suggestions": await service.suggest(inputs, body.n)}


def _answer(service: Service, made: Change) -> dict[str, Any]:
    snapshot = service.snapshot
    return {
        "version": made.number,
        "classes": len(snapshot.counts),
        "samples": snapshot.samples,
        "new_classes": made.new_classes,
        "learned": 0 if made.repeated else max(0, made.samples),
        "forgotten": made.labels if made.kind in ("forget", "remove") else (),
        "exact": made.exact,
        "undo": made.number,
        "repeated": made.repeated,
    }


def _changing(path: str) -> Callable[[Callable], Callable]:
    return router.post(path, response_model=schemas.ChangeAnswer, tags=["teach"])


@_changing("/learn")
async def learn(body: schemas.LearnBody, service: CurrentService, key: MaybeKey) -> Any:
    """Learn samples of new classes, or more of old ones.

    When the response arrives, they are on disk and included in every later answer. With an
    `Idempotency-Key`, a request that is sent again counts once.
    """
    inputs = await inputs_of(service, *body.inputs())
    return _answer(service, await service.learn(inputs, body.labels, key))


@router.post("/learn-file", response_model=schemas.FileAnswer, tags=["teach"])
async def learn_file(
    service: CurrentService,
    form: Annotated[schemas.FileForm, Form(media_type="multipart/form-data")],
    idempotency_key: GivenKey = None,
) -> Any:
    """Learn the rows of a file of texts: any file that `klda learn` reads, as one change.

    Columns are guessed unless they are named; the answer says which were read.
    """
    if service.modality != "text":
        raise ServerError("Files can be taught to models of texts only: use POST /v1/learn.")
    content, name = await form.file.read(), form.file.filename or "file"
    known, layout = service.snapshot.counts, form.layout()
    texts, labels, found, bad = await service.run(
        partial(rows_of_file, skip_bad=form.skip_bad), content, name, known, layout
    )
    content_digest = digest(content + repr((name, layout, form.skip_bad)).encode())
    key = None if idempotency_key is None else Key(idempotency_key, content_digest)
    answer = _answer(service, await service.learn(texts, labels, key))
    skipped = [{"place": row.place, "problem": row.problem} for row in bad]
    return {**answer, "texts": found.inputs, "labels": found.label, "skipped": skipped}


@_changing("/forget")
async def forget(body: schemas.ForgetBody, service: CurrentService, key: MaybeKey) -> Any:
    """Forget classes (an undo is possible for a while), or exactly the samples given.

    Classes are forgotten exactly if the model keeps a ledger of what it learned, holds its samples
    because they are few, or was taught none of them.
    """
    if not body.given():
        return _answer(service, await service.change(Change("forget", body.labels, key=key)))
    inputs = await inputs_of(service, *body.inputs())
    return _answer(service, await service.remove(inputs, body.labels, key))


@_changing("/undo")
async def undo(body: schemas.UndoBody, service: CurrentService, key: MaybeKey) -> Any:
    """Undo a change: the model becomes what it would be had the change never been made.

    That is exact, also after other changes, and for as long as the history says `undoable`. An undo
    is a change, too: undo it to make the change again.
    """
    return _answer(service, await service.change(Change("undo", target=body.undo or 0, key=key)))


@_changing("/retry")
async def retry(body: schemas.RetryBody, service: CurrentService, key: MaybeKey) -> Any:
    """Make a refused change now, as a new one."""
    return _answer(service, await service.change(Change("retry", target=body.retry, key=key)))


@_changing("/rename")
async def rename(body: schemas.RenameBody, service: CurrentService, key: MaybeKey) -> Any:
    """Rename a class, or make one class of two."""
    change = Change("rename", (body.old, body.new), merge=body.merge, key=key)
    return _answer(service, await service.change(change))


@_changing("/declare")
async def declare(body: schemas.DeclareBody, service: CurrentService, key: MaybeKey) -> Any:
    """Add classes of texts by name, without examples.

    A name is read as words: `card_arrival` as "card arrival". A description says more.
    """
    known = service.snapshot.counts  # names in a JSON object are texts, also if labels are integers
    integers = isinstance(next(iter(known), ""), int)
    labels = [as_label(name, known) if integers else name for name in body.classes]
    change = Change("declare", labels, descriptions=list(body.classes.values()), key=key)
    return _answer(service, await service.change(change))


@router.get("/refused", tags=["look"])
async def refused(
    service: CurrentService,
) -> dict[Literal["refused"], list[schemas.RefusedChange]]:
    """List the acknowledged changes that a start could not apply to the model it found."""
    found = [
        schemas.RefusedChange(
            change=change.number,
            kind=change.kind,
            classes=list(dict.fromkeys(change.labels)),
            samples=0 if change.rows is None else len(change.rows),
            when=change.when,
            reason=reason,
        )
        for change, reason in await service.read(lambda _, journal: journal.refused())
    ]
    return {"refused": found}


@router.get("/classes", response_model=schemas.ClassesAnswer, tags=["look"])
async def classes(service: CurrentService, query: Annotated[schemas.ClassesQuery, Query()]) -> Any:
    """List the classes and their numbers of samples."""
    found = service.snapshot.search(query.search)
    page = found[query.offset : query.offset + query.limit]
    listed = [{"label": label, "samples": samples} for label, samples in page]
    return {"classes": listed, "total": len(found)}


@router.get("/map", response_model=schemas.MapAnswer, tags=["look"])
async def class_map(service: CurrentService) -> Any:
    """Return a map of the classes and the pairs that are easily confused."""
    drawn, pairs = await service.class_overview()
    places = []
    if drawn is not None:
        at = drawn.places.round(4).tolist()
        places = [
            {"label": label, "samples": int(count), "x": x, "y": y}
            for label, count, (x, y) in zip(drawn.labels, drawn.counts, at, strict=True)
        ]
    return {"places": places, "pairs": pairs}


@router.get("/scores", response_model=schemas.ScoresAnswer, tags=["look"])
async def scores(service: CurrentService) -> Any:
    """Return how the model answered on every sample just before it learned it."""
    found = [(made.when, made.tally) for made in await service.history() if made.tally]
    right = sum(tally.right for _, tally in found)
    asked = right + sum(tally.wrong for _, tally in found)
    return {
        "tallies": [{"when": when, **tally._asdict()} for when, tally in found],
        "accuracy": right / asked if asked else None,
    }


@router.get("/history", response_model=schemas.HistoryAnswer, tags=["look"])
async def history(service: CurrentService, query: Annotated[schemas.HistoryQuery, Query()]) -> Any:
    """List the latest changes, the latest first."""
    found = await service.history(query.limit, query.before)
    undoable = {change.number for change in await service.undoable(undos=True)}
    listed = [
        {
            "change": made.number,
            "kind": "merge" if made.merge else made.kind,
            "when": made.when,
            "by": made.by,
            "classes": list(dict.fromkeys(made.labels)),
            "samples": made.samples,
            "new_classes": made.new_classes,
            "undoes": made.target if made.kind == "undo" else None,
            "undoable": made.number in undoable,
        }
        for made in reversed(found)
    ]
    return {"changes": listed}


@router.get("/quality", response_model=schemas.QualityAnswer, tags=["look"])
async def quality(service: CurrentService) -> Any:
    """Return how accurate the model is expected to be on new inputs, as a whole and by class.

    No test file is needed: samples that were learned are answered as if they had not been.
    """
    return (await service.quality()).to_dict()


@router.get(
    "/events",
    responses={200: {"content": {"text/event-stream": {"schema": schemas.EVENT}}}},
    response_class=Response,
    tags=["look"],
)
async def events(service: CurrentService) -> Response:
    """Follow the model with server-sent events.

    There is an event `change` at once and after each change, with the number of the last change
    (`version`), and of `classes` and `samples`. The stream ends after ten minutes: connect again.
    """
    return await event_stream(service.states())


@router.get("/model", response_model=schemas.ModelAnswer, tags=["look"])
async def model(service: CurrentService) -> Any:
    """Describe the model."""
    snapshot, writer = service.snapshot, service.writer
    public = ("name", "modality", "revision", "pooling", "layers", "dimension")
    return {
        "modality": service.modality,
        "foundation_model": {key: service.foundation.get(key) for key in public},
        "classifier": "LDA" if writer.learner.parameters.n_components is None else "KLDA",
        "classes": len(snapshot.counts),
        "samples": snapshot.samples,
        "version": snapshot.version,
        "journal_pending": writer.pending,
        "refused": writer.refused,
        "klda_version": klda.__version__,
    }


@open_router.get("/health", response_model=schemas.HealthAnswer, tags=["operate"])
async def health(service: CurrentService) -> Any:
    """Report whether the service is ready and can learn; needs no key."""
    reasons = [reason for reason in service.problems.values() if reason]
    if reasons:
        raise ServerError(f"The service has a problem: {'; '.join(reasons)}.", 503, "problem")
    return {"status": "ok", "version": service.snapshot.version}


@router.get(
    "/metrics",
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
    tags=["operate"],
)
async def metrics(request: Request) -> Response:
    """Return counters for Prometheus."""
    return request.app.state.metrics.response()
