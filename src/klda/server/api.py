"""The HTTP API, under ``/v1``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Header, HTTPException, Query, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

import klda
from klda.data import as_label
from klda.inspection.notes import label_notes, language_notes
from klda.labels import similar_names
from klda.server import responses, schemas
from klda.server.changes import (
    Change,
    Declare,
    Forget,
    Key,
    Learn,
    Remove,
    Rename,
    Retry,
    Samples,
    Undo,
    digest,
)
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
    Header(
        alias="Idempotency-Key",
        max_length=MAX_KEY_LENGTH,
        pattern=schemas.NO_SPACES,
        description="Any name for this request: sent again with it, the request counts once.",
    ),
]


async def key_of(request: Request, idempotency_key: GivenKey = None) -> Key | None:
    """Return the idempotency key of a request, with a digest that tells requests apart."""
    if idempotency_key is None:
        return None
    content = request.scope["path"].encode() + await request.body()
    return Key(idempotency_key, digest(content))


MaybeKey = Annotated[Key | None, Depends(key_of)]
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": responses.ErrorAnswer, "description": meaning}
    for status, (_, meaning) in STATUSES.items()
    if status
}


class StrictRequest(Request):
    """A request whose JSON has no name twice: one of the values would be lost."""

    async def json(self) -> Any:
        """Return the body."""
        return json.loads(await self.body(), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:  # FastAPI passes this kind of error on
            raise HTTPException(422, f"{name[:200]!r} is there twice: give each name once.")
        found[name] = value
    return found


class StrictRoute(APIRoute):
    """A route whose requests are strict."""

    def get_route_handler(self) -> Callable:
        """Return what handles a request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return handle_strictly


# For the OpenAPI document only: `klda.server.gate` checks the key before the body is read.
_bearer = Depends(HTTPBearer(auto_error=False, description="An API key. Also as X-API-Key."))
router = APIRouter(prefix="/v1", dependencies=[_bearer], responses=ERRORS, route_class=StrictRoute)
open_router = APIRouter(prefix="/v1", responses=ERRORS)  # needs no key


@router.post("/predict", response_model=responses.PredictAnswer, tags=["ask"])
async def predict(body: schemas.PredictBody, service: CurrentService) -> Any:
    """Answer for texts, images or features, with probabilities."""
    inputs = await inputs_of(service, *body.inputs())
    snapshot, answers = await service.predict(inputs, body.top)
    service.on_asked(inputs, snapshot, answers)
    predictions = []
    for answer in answers:
        top = [
            {"label": label, "probability": min(1.0, max(0.0, round(probability, 6)))}
            for label, probability in answer.top
        ]
        judged = {"verdict": snapshot.verdict(answer), "known": answer.known}
        predictions.append({**top[0], **judged, "novelty": answer.novelty, "top": top})
    return {"predictions": predictions, "version": snapshot.version}


@router.post("/explain", response_model=responses.ExplainAnswer, tags=["ask"])
async def explain(body: schemas.ExplainBody, service: CurrentService) -> Any:
    """Explain an answer: the nearest classes, and how much each word contributes to it."""
    return await service.explain((await inputs_of(service, *body.inputs()))[0])


@router.post("/suspects", response_model=responses.SuspectsAnswer, tags=["look"])
async def suspects(body: schemas.SuspectsBody, service: CurrentService) -> Any:
    """Find samples whose labels are probably wrong, and samples that are there twice.

    Each is compared with what was learned and with the other samples; nothing is learned. Unlikely
    labels come first, then near-duplicates with different labels.
    """
    inputs = await inputs_of(service, *body.inputs())
    return {"suspects": await service.suspects(inputs, body.labels)}


@router.post("/suggest", response_model=responses.SuggestAnswer, tags=["look"])
async def suggest(body: schemas.SuggestBody, service: CurrentService) -> Any:
    """Choose which inputs to label next: those the model is least sure of, or never saw."""
    inputs = await inputs_of(service, *body.inputs())
    return {"suggestions": await service.suggest(inputs, body.n)}


def _answer(service: Service, made: Change) -> dict[str, Any]:
    snapshot = service.snapshot
    return {
        "version": made.number,
        "classes": len(snapshot.counts),
        "samples": snapshot.samples,
        "new_classes": made.new_classes,
        "similar": similar_names(made.new_classes, snapshot.counts.keys() - made.new_classes),
        "learned": len(made.labels) if isinstance(made, Learn) and not made.repeated else 0,
        "forgotten": made.labels if isinstance(made, Forget | Remove) else (),
        "exact": made.exact,
        "undo": made.number,
        "repeated": made.repeated,
    }


def _changing(path: str) -> Callable[[Callable], Callable]:
    return router.post(path, response_model=responses.ChangeAnswer, tags=["teach"])


@_changing("/learn")
async def learn(body: schemas.LearnBody, service: CurrentService, key: MaybeKey) -> Any:
    """Learn samples of new classes, or more of old ones.

    When the response arrives, they are on disk and included in every later answer. With an
    `Idempotency-Key`, a request that is sent again counts once.
    """
    inputs = await inputs_of(service, *body.inputs())
    return _answer(service, await service.learn(inputs, body.labels, key))


@router.post("/learn-file", response_model=responses.FileAnswer, tags=["teach"])
async def learn_file(
    service: CurrentService,
    form: Annotated[schemas.FileForm, Form(media_type="multipart/form-data")],
    idempotency_key: GivenKey = None,
) -> Any:
    """Learn the rows of a file of texts as one change: any file that `klda learn` reads.

    Columns are detected unless you name them; the answer says which were read.
    """
    if service.modality != "text":
        raise ServerError("Only a model of texts learns files: use POST /v1/learn.")
    content, name = await form.file.read(), form.file.filename or "file"
    known, layout = service.snapshot.counts, form.layout()
    texts, labels, found, bad = await service.run(
        partial(rows_of_file, skip_bad=form.skip_bad), content, name, known, layout
    )
    content_digest = digest(content + repr((name, layout, form.skip_bad)).encode())
    key = None if idempotency_key is None else Key(idempotency_key, content_digest)
    answer = _answer(service, await service.learn(texts, labels, key))
    skipped = [{"place": row.place, "problem": row.problem} for row in bad]
    counts = Counter(labels)  # of the file: the model may have forgotten a class by now
    notes = label_notes({label: counts[label] for label in answer["new_classes"]})
    notes += language_notes(texts, service.foundation["name"])
    read = {"texts": found.inputs, "labels": found.label, "skipped": skipped}
    return {**answer, **read, "notes": notes}


@_changing("/forget")
async def forget(body: schemas.ForgetBody, service: CurrentService, key: MaybeKey) -> Any:
    """Forget classes (an undo is possible for a while), or exactly the samples given.

    Classes are forgotten exactly if the model keeps a ledger, has few samples, or learned none of
    these classes' samples.
    """
    if not body.given():
        return _answer(service, await service.change(Forget(body.labels, key=key)))
    inputs = await inputs_of(service, *body.inputs())
    return _answer(service, await service.remove(inputs, body.labels, key))


@_changing("/undo")
async def undo(body: schemas.UndoBody, service: CurrentService, key: MaybeKey) -> Any:
    """Undo a change: the model becomes what it would be had the change never been made.

    That is exact, also after other changes, as long as the history says `undoable`. An undo is a
    change, too: undo it to make the change again.
    """
    return _answer(service, await service.change(Undo(body.undo or 0, key=key)))


@router.post("/expire-undo", tags=["teach"])
async def expire_undo(
    body: schemas.ExpireUndoBody, service: CurrentService
) -> dict[Literal["erased"], bool]:
    """Erase what undoes changes, in the model folder and the journal too; say if there was any.

    It holds features of what was learned and of what was forgotten.
    """
    return {"erased": await service.expire_undo(body.before)}


@_changing("/retry")
async def retry(body: schemas.RetryBody, service: CurrentService, key: MaybeKey) -> Any:
    """Make a change of GET /v1/refused now, as a new one."""
    return _answer(service, await service.change(Retry(body.retry, key=key)))


@_changing("/rename")
async def rename(body: schemas.RenameBody, service: CurrentService, key: MaybeKey) -> Any:
    """Rename a class, or make one class of two."""
    change = Rename(body.old, body.new, merge=body.merge, key=key)
    return _answer(service, await service.change(change))


@_changing("/declare")
async def declare(body: schemas.DeclareBody, service: CurrentService, key: MaybeKey) -> Any:
    """Add classes of texts by name, without examples.

    A name is read as words: `card_arrival` as "card arrival". A description says more.
    """
    known = service.snapshot.counts  # names in a JSON object are texts, also if labels are integers
    integers = isinstance(next(iter(known), ""), int)
    classes = [
        (as_label(name, known) if integers else name, about) for name, about in body.classes.items()
    ]
    return _answer(service, await service.change(Declare(classes, key=key)))


@router.post("/tune-unknown", response_model=responses.TuneAnswer, tags=["teach"])
async def tune_unknown(body: schemas.TuneBody, service: CurrentService, key: MaybeKey) -> Any:
    """Fit the threshold of novelty to known and unknown inputs; none of them is learned.

    The model then uses it for `known` and `verdict`.
    """
    known, unknown = [
        await inputs_of(service, *each.inputs()) for each in (body.known, body.unknown)
    ]
    made = await service.tune_unknown(
        known, unknown, key, reject=body.reject, by_class=body.by_class
    )
    said = {"version": made.number, "undo": made.number, "repeated": made.repeated}
    return {**made.costs, **said}


@router.get("/refused", response_model=responses.RefusedAnswer, tags=["look"])
async def refused(service: CurrentService) -> Any:
    """List the acknowledged changes that a start could not apply to the model it found."""
    found = await service.read(lambda _, journal: journal.refused())
    return {
        "refused": [
            {
                **_described(one),
                "samples": len(one.labels) if isinstance(one, Samples) else 0,
                "reason": reason,
            }
            for one, reason in found
        ]
    }


def _described(change: Change) -> dict[str, Any]:
    return {
        "change": change.number,
        "kind": "merge" if isinstance(change, Rename) and change.merge else change.kind,
        "when": change.when,
        "by": change.by,
        "classes": change.classes,
        "samples": change.samples,
    }


@router.get("/classes", response_model=responses.ClassesAnswer, tags=["look"])
async def classes(service: CurrentService, query: Annotated[schemas.ClassesQuery, Query()]) -> Any:
    """List the classes and their numbers of samples."""
    found = service.snapshot.search(query.search)
    page = found[query.offset : query.offset + query.limit]
    listed = [{"label": label, "samples": samples} for label, samples in page]
    return {"classes": listed, "total": len(found)}


@router.get("/map", response_model=responses.MapAnswer, tags=["look"])
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


@router.get("/scores", response_model=responses.ScoresAnswer, tags=["look"])
async def scores(service: CurrentService) -> Any:
    """Return how the model answered on every sample just before it learned it."""
    history = await service.history()
    found = [(one.when, one.tally) for one in history if isinstance(one, Learn) and one.tally]
    right = sum(tally.right for _, tally in found)
    asked = right + sum(tally.wrong for _, tally in found)
    return {
        "tallies": [{"when": when, **tally._asdict()} for when, tally in found],
        "accuracy": right / asked if asked else None,
    }


@router.get("/history", response_model=responses.HistoryAnswer, tags=["look"])
async def history(service: CurrentService, query: Annotated[schemas.HistoryQuery, Query()]) -> Any:
    """List the latest changes, the latest first."""
    found = await service.history(query.limit, query.before)
    undoable = {change.number for change in await service.undoable(undos=True)}
    return {
        "changes": [
            {
                **_described(made),
                "new_classes": made.new_classes,
                "undoes": made.target if isinstance(made, Undo) else None,
                "undoable": made.number in undoable,
            }
            for made in reversed(found)
        ]
    }


@router.get("/quality", response_model=responses.QualityAnswer, tags=["look"])
async def quality(service: CurrentService) -> Any:
    """Return how accurate the model is expected to be on new inputs, as a whole and by class.

    No test file is needed: samples that were learned are answered as if they had not been.
    """
    return (await service.quality()).to_dict()


@router.get(
    "/events",
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "object"}}}}},
    response_class=Response,
    tags=["look"],
)
async def events(service: CurrentService) -> Response:
    """Follow the model with server-sent events.

    There is an event `change` at once and after each change, with the number of the last change
    (`version`), and of `classes` and `samples`. The stream ends after ten minutes: connect again.
    """
    return await event_stream(service.states())


@router.get("/model", response_model=responses.ModelAnswer, tags=["look"])
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


@open_router.get("/health", response_model=responses.HealthAnswer, tags=["operate"])
async def health(service: CurrentService) -> Any:
    """Report whether the service is ready and can learn; needs no key."""
    service.check_health()
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
