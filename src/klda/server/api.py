"""The HTTP API, under ``/v1``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.security import HTTPBearer

import klda
from klda.data import as_label
from klda.labels import Label
from klda.server import schemas
from klda.server.changes import Key, digest
from klda.server.errors import STATUSES, ServerError
from klda.server.inputs import inputs_of
from klda.server.service import Service


def _errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Document the errors of a request: those that every request may get, and its own."""
    always = (400, 401, 403, 413, 422, 429, 503)
    return {
        status: {"model": schemas.ErrorAnswer, "description": STATUSES[status][1]}
        for status in sorted({*always, *statuses})
    }


def service_of(request: Request) -> Service:
    """Return the service that an application serves."""
    service: Service = request.app.state.service
    return service


The = Annotated[Service, Depends(service_of)]
GivenKey = Annotated[str | None, Header(alias="Idempotency-Key", **schemas.IDEMPOTENCY_KEY)]


async def key_of(request: Request, idempotency_key: GivenKey = None) -> Key | None:
    """Return the idempotency key of a request, and what tells another request with it."""
    if idempotency_key is None:
        return None
    content = request.scope["path"].encode() + await request.body()
    return Key(idempotency_key, digest(content))


MaybeKey = Annotated[Key | None, Depends(key_of)]
router = APIRouter(prefix="/v1")
# For the OpenAPI document only: `klda.server.gate` checks the key before the body is read.
keyed = [Depends(HTTPBearer(auto_error=False, description="An API key. Also as X-API-Key."))]


@router.post("/predict", dependencies=keyed, responses=_errors(409), tags=["ask"])
async def predict(body: schemas.PredictBody, service: The) -> schemas.PredictAnswer:
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
    return schemas.PredictAnswer.model_validate(
        {"predictions": predictions, "version": snapshot.version}
    )


@router.post("/explain", dependencies=keyed, responses=_errors(409), tags=["ask"])
async def explain(body: schemas.ExplainBody, service: The) -> schemas.ExplainAnswer:
    """Explain an answer: the nearest classes, and how much each word contributes to it."""
    inputs = await inputs_of(service, *body.inputs())
    return schemas.ExplainAnswer.model_validate(await service.explain(inputs[0]))


@router.post("/learn", dependencies=keyed, responses=_errors(409), tags=["teach"])
async def learn(body: schemas.LearnBody, service: The, key: MaybeKey = None) -> schemas.LearnAnswer:
    """Learn samples of new classes, or more of old ones.

    When the response arrives, they are on disk and included in every later answer. With an
    `Idempotency-Key`, a request that is sent again counts once.
    """
    done = await service.learn(await inputs_of(service, *body.inputs()), body.labels, key)
    learned = 0 if done.repeated else len(body.labels)
    return schemas.LearnAnswer(**asdict(done), learned=learned)


@router.post("/forget", dependencies=keyed, responses=_errors(404, 409), tags=["teach"])
async def forget(
    body: schemas.ForgetBody, service: The, key: MaybeKey = None
) -> schemas.ForgetAnswer:
    """Forget classes (an undo is possible for a while), or exactly the samples given.

    Classes are forgotten exactly if the model keeps a ledger of what it learned, holds its samples
    because they are few, or was taught none of them.
    """
    inputs = await inputs_of(service, *body.inputs()) if body.given() else None
    done = await service.forget(body.labels, inputs, key)
    forgotten, undo = list(dict.fromkeys(body.labels)), done.version if inputs is None else None
    return schemas.ForgetAnswer(**asdict(done), forgotten=forgotten, undo=undo)


@router.post("/undo", dependencies=keyed, responses=_errors(404, 409), tags=["teach"])
async def undo(body: schemas.UndoBody, service: The, key: MaybeKey = None) -> schemas.ChangeAnswer:
    """Restore the classes that a forget dropped."""
    return schemas.ChangeAnswer(**asdict(await service.undo(body.undo, key)))


@router.get("/refused", dependencies=keyed, responses=_errors(), tags=["look"])
async def refused(service: The) -> schemas.RefusedAnswer:
    """List the acknowledged changes that a start could not apply to the model it found."""
    found = [
        schemas.RefusedChange(
            change=change.sequence,
            kind=change.kind,
            classes=list(dict.fromkeys(change.labels)),
            samples=0 if change.rows is None else len(change.rows),
            when=change.when,
            reason=reason,
        )
        for change, reason in await service.refused()
    ]
    return schemas.RefusedAnswer(refused=found)


@router.post("/retry", dependencies=keyed, responses=_errors(404, 409), tags=["teach"])
async def retry(
    body: schemas.RetryBody, service: The, key: MaybeKey = None
) -> schemas.ChangeAnswer:
    """Make a refused change now, as a new one."""
    return schemas.ChangeAnswer(**asdict(await service.retry(body.retry, key)))


@router.post("/rename", dependencies=keyed, responses=_errors(404, 409), tags=["teach"])
async def rename(
    body: schemas.RenameBody, service: The, key: MaybeKey = None
) -> schemas.ChangeAnswer:
    """Rename a class."""
    return schemas.ChangeAnswer(**asdict(await service.rename(body.old, body.new, key)))


@router.post("/declare", dependencies=keyed, responses=_errors(409), tags=["teach"])
async def declare(
    body: schemas.DeclareBody, service: The, key: MaybeKey = None
) -> schemas.DeclareAnswer:
    """Make classes of texts known by their names, before anything is taught of them.

    A name is read as words: `card_arrival` as "card arrival". A description says more.
    """
    known = service.snapshot.counts  # names in a JSON object are texts, also if labels are integers
    integers = isinstance(next(iter(known), ""), int)
    named = {as_label(x, known) if integers else x: about for x, about in body.classes.items()}
    return schemas.DeclareAnswer(**asdict(await service.declare(named, key)))


@router.get("/classes", dependencies=keyed, responses=_errors(), tags=["look"])
async def classes(
    service: The, query: Annotated[schemas.ClassesQuery, Query()]
) -> schemas.ClassesAnswer:
    """List the classes and their numbers of samples."""
    found = search_classes(service, query.search)
    page = found[query.offset : query.offset + query.limit]
    return schemas.ClassesAnswer(
        classes=[schemas.ClassCount(label=label, samples=n) for label, n in page],
        total=len(found),
    )


@router.get("/map", dependencies=keyed, responses=_errors(), tags=["look"])
async def class_map(service: The) -> schemas.MapAnswer:
    """Return a map of the classes and the pairs that are easily confused."""
    drawn, pairs = await service.class_overview()
    places = []
    if drawn is not None:
        at = drawn.places.round(4).tolist()
        places = [
            schemas.PlaceAnswer(label=label, samples=int(count), x=x, y=y)
            for label, count, (x, y) in zip(drawn.labels, drawn.counts, at, strict=True)
        ]
    return schemas.MapAnswer(places=places, pairs=pairs)


@router.get("/scores", dependencies=keyed, responses=_errors(), tags=["look"])
async def scores(service: The) -> schemas.ScoresAnswer:
    """Return how the model answered on every sample just before it learned it."""
    tallies = await service.tallies()
    right, asked = sum(t.right for t in tallies), sum(t.right + t.wrong for t in tallies)
    return schemas.ScoresAnswer(tallies=tallies, accuracy=right / asked if asked else None)


@router.get("/model", dependencies=keyed, responses=_errors(), tags=["look"])
async def model(service: The) -> schemas.ModelAnswer:
    """Describe the model."""
    snapshot = service.snapshot
    public = ("name", "modality", "revision", "pooling", "layers", "dimension")
    return schemas.ModelAnswer(
        modality=service.modality,  # type: ignore[arg-type]
        foundation_model={key: service.foundation.get(key) for key in public},
        classifier="LDA" if service.writer.learner.parameters.n_components is None else "KLDA",
        classes=len(snapshot.counts),
        samples=snapshot.samples,
        version=snapshot.version,
        journal_pending=service.writer.pending,
        refused=service.writer.refused,
        klda_version=klda.__version__,
    )


@router.get("/health", responses=_errors(), tags=["operate"])
async def health(service: The) -> schemas.HealthAnswer:
    """Report whether the service is ready and can learn; needs no key."""
    reasons = [reason for reason in service.problems.values() if reason]
    if reasons:
        raise ServerError(f"The service has a problem: {'; '.join(reasons)}.", 503, "problem")
    return schemas.HealthAnswer(status="ok", version=service.snapshot.version)


@router.get(
    "/metrics",
    dependencies=keyed,
    responses={**_errors(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    response_class=Response,
    tags=["operate"],
)
async def metrics(request: Request) -> Response:
    """Return counters for Prometheus."""
    return request.app.state.metrics.response()


# ------------------------------------------------------------------ inside


def search_classes(service: Service, search: str) -> list[tuple[Label, int]]:
    """Return the classes whose names contain a text, in alphabetical order, with their samples."""
    wanted = search.casefold().strip()
    counts = service.snapshot.counts
    return [(x, n) for x, n in counts.items() if wanted in str(x).casefold()]
