"""A machine learning backend of Label Studio, under ``/label-studio``.

Label Studio asks for the classes of its tasks, and says which class an annotator chose: each
annotation is learned at once. The requests are those of Label Studio 1.23 and of older versions.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Self
from xml.etree import ElementTree

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter

from klda.data import as_label
from klda.labels import Label
from klda.learner.class_names import readable
from klda.server import schemas
from klda.server.api import CurrentService
from klda.server.changes import Declare, Key, Learn, Undo, digest
from klda.server.errors import ServerError
from klda.server.service import Service
from klda.server.settings import MAX_TEXT_LENGTH, MAX_TOP

BY = "label-studio"
TAUGHT = ("ANNOTATION_CREATED", "ANNOTATIONS_CREATED", "ANNOTATION_UPDATED")
CHUNK = 64  # annotations that are encoded together
DELETED = ("ANNOTATIONS_DELETED", "ANNOTATION_DELETED")
Said = tuple[int, str | None, str | None]  # an annotation's id, its text, and the class chosen

_text: TypeAdapter[str] = TypeAdapter(schemas.Text)
log = logging.getLogger("klda.server")
router = APIRouter(prefix="/label-studio", include_in_schema=False)  # the format is not ours


# ------------------------------------------------------------------ what Label Studio sends


class Task(BaseModel):
    """A task; one that is sent to be learned has its annotations."""

    id: int | None = None
    data: dict[str, Any] = {}
    annotations: list[Annotation] = []


class Annotation(BaseModel):
    """What an annotator chose; of one that was deleted there is only the id."""

    id: int
    task: int | None = None
    result: list[dict[str, Any]] = []
    was_cancelled: bool = False


class Chosen(BaseModel):
    """What was chosen of one control, if it has choices."""

    choices: list[schemas.Name] | None = None


class Project(BaseModel):
    """A project; some requests have only its id, with the time when it was made."""

    id: int = 0
    label_config: str = ""


_project = BeforeValidator(lambda x: {"id": x.split(".")[0]} if isinstance(x, str) else x)
_listed = BeforeValidator(lambda x: [x] if isinstance(x, dict) else x)


class Sent(BaseModel):
    """What every body has: a project, and somewhere its labeling configuration."""

    project: Annotated[Project, _project] = Project()
    label_config: str = ""
    schema_: str = Field("", alias="schema")

    @cached_property
    def config(self) -> LabelingConfig:
        """The labeling configuration."""
        return LabelingConfig.of(self.label_config or self.schema_ or self.project.label_config)

    def says(self, task: Task | None, annotation: Annotation) -> Said:
        """Return what an annotation of a task says; of one that was deleted there is no task."""
        if task is None:
            return annotation.id, None, None
        return annotation.id, self.config.text_of(task), self.config.chosen(annotation)


class Asked(Sent):
    """Tasks to answer for."""

    tasks: list[Task] = []


class Event(Sent):
    """What annotators did."""

    action: str = ""
    task: Annotated[list[Task], _listed] = []
    annotation: Annotated[list[Annotation], _listed] = []  # of these tasks
    annotations: list[Annotation] = []  # that were deleted


class Trained(Sent):
    """All tasks with their annotations."""

    annotations: list[Task] = []


@dataclass(frozen=True)
class LabelingConfig:
    """The part of a labeling configuration that says where texts and classes are."""

    control: str  # name of the <Choices>
    text: str  # name of the <Text>
    field: str  # of a task's data
    choices: tuple[str, ...]  # empty if each task brings its own

    @classmethod
    def of(cls, xml: str) -> Self:
        """Read a configuration: the first <Choices> that belongs to a <Text>."""
        try:
            if "<!DOCTYPE" in xml or "<!ENTITY" in xml:
                raise ValueError("it defines entities")
            root = ElementTree.fromstring(xml)
        except (ElementTree.ParseError, ValueError) as error:
            raise ServerError(f"The labeling configuration can't be read: {error}.") from error
        texts = {tag.get("name", ""): tag.get("value", "") for tag in root.iter("Text")}
        for control in root.iter("Choices"):
            text = control.get("toName", "")
            if text in texts:
                named = [tag.get("alias") or tag.get("value") for tag in control.iter("Choice")]
                choices = tuple(name for name in named if name)
                return cls(control.get("name", ""), text, texts[text].lstrip("$"), choices)
        raise ServerError(
            'The labeling configuration needs <Text name="text" value="$text"/> and <Choices '
            'name="label" toName="text">.'
        )

    def text_of(self, task: Task) -> str | None:
        """Return the text of a task; None if it has none."""
        text = task.data.get(self.field, task.data.get("$undefined$"))
        if not isinstance(text, str) or not re.search(schemas.VISIBLE, text):
            return None
        return _text.validate_python(text[:MAX_TEXT_LENGTH])

    def chosen(self, annotation: Annotation) -> str | None:
        """Return the class that was chosen; None unless it is exactly one."""
        if annotation.was_cancelled:
            return None
        found = [
            choice
            for entry in annotation.result
            if entry.get("from_name") == self.control
            for choice in Chosen.model_validate(entry.get("value") or {}).choices or []
        ]
        return found[0] if len(found) == 1 else None

    def result(self, label: Label) -> list[dict[str, Any]]:
        """Return a class as Label Studio shows it."""
        value = {"choices": [str(label)]}
        names = {"from_name": self.control, "to_name": self.text}
        return [{**names, "type": "choices", "value": value}]


# ------------------------------------------------------------------ the routes


@router.get("/")
@router.get("/health")
async def health(service: CurrentService) -> Any:
    """Report whether the service works; needs no key."""
    service.check_health()
    return {"status": "UP", "model_class": "klda"}


@router.post("/setup")
async def setup(sent: Sent, service: CurrentService) -> Any:
    """Take a project: classes that are not known yet are added by their names, if possible."""
    if service.modality != "text":
        raise ServerError("Label Studio can be connected to a model of texts only.")
    known = service.snapshot.counts
    labels = [as_label(choice, known) for choice in dict.fromkeys(sent.config.choices)]
    new = [label for label in labels if label not in known and readable(label)]
    if new and service.snapshot.learner.parameters.rule == "auto":
        await service.change(Declare([(label, None) for label in new], by=BY))
    return {"model_version": _version(service)}


@router.post("/predict")
async def predict(sent: Asked, service: CurrentService) -> Any:
    """Answer for tasks; what is unlike anything learned gets no class, and a score of 0."""
    config, known = sent.config, service.snapshot.counts
    texts = [config.text_of(task) for task in sent.tasks]
    asked = [text for text in texts if text is not None]
    allowed = set(config.choices) or {str(label) for label in known}
    top = 1 if all(str(label) in allowed for label in known) else min(MAX_TOP, len(known))
    answers = iter((await service.predict(asked, top))[1] if asked and known else [])
    results = []
    for text in texts:
        answer = next(answers, None) if text is not None else None
        best = None
        if answer is not None and answer.known is not False:
            best = next((one for one in answer.top if str(one[0]) in allowed), None)
        found = {"result": [], "score": 0.0}
        if best is not None:
            found = {"result": config.result(best[0]), "score": round(best[1], 6)}
        results.append({**found, "model_version": _version(service)})
    return {"results": results, "model_version": _version(service)}


def _version(service: Service) -> str:
    return f"klda-{service.snapshot.version}"


@router.post("/webhook")
async def webhook(sent: Event, service: CurrentService, request: Request) -> Any:
    """Learn from what annotators do: an annotation that was made, changed or deleted."""
    if sent.action in TAUGHT:
        tasks = {task.id: task for task in sent.task}
        said = [sent.says(tasks.get(one.task), one) for one in sent.annotation]
    elif sent.action in DELETED:
        said = [sent.says(None, one) for one in sent.annotations]
    elif sent.action == "START_TRAINING":  # nothing to do: all annotations were learned
        said = []
    else:
        return {"status": "Unknown event"}
    return await _teach_all(request, service, sent.project, said)


@router.post("/train")
async def train(sent: Trained, service: CurrentService, request: Request) -> Any:
    """Learn the annotations of all tasks, as far as they were not learned yet."""
    said = [sent.says(task, one) for task in sent.annotations for one in task.annotations]
    return await _teach_all(request, service, sent.project, said)


# ------------------------------------------------------------------ learning annotations


async def _teach_all(
    request: Request, service: Service, project: Project, said: list[Said]
) -> JSONResponse:
    """Learn what annotations say; the answer names those that could not be taken back."""
    made, problems = 0, []
    async with request.app.state.label_studio:  # of two requests, the later one counts
        for start in range(0, len(said), CHUNK):
            some = said[start : start + CHUNK]
            calls = (_teach(service, f"{BY}-{project.id}-{id}", *what) for id, *what in some)
            for (id, *_), (count, problem) in zip(some, await asyncio.gather(*calls), strict=True):
                made += count
                problems += [{"annotation": id, "reason": problem}] if problem else []
    result = {"changes": made} | ({"not_taken_back": problems} if problems else {})
    return JSONResponse({"status": "ok", "result": result}, 201)


async def _teach(
    service: Service, name: str, text: str | None, choice: str | None
) -> tuple[int, str]:
    """Let the model have learned exactly what an annotation says now.

    Return how many changes that took, and why what it said before was not taken back, if so. The
    idempotency keys of changes say what was learned of it before.
    """
    wanted = None if text is None or choice is None else digest(f"{choice}\n{text}".encode())
    before = await service.read(lambda _, journal: journal.made_with_keys(f"{name}-"))
    last = before[-1] if before else None
    has = last.key.digest if isinstance(last, Learn) and last.key else None
    if has == wanted:
        return 0, ""
    made, problem = 0, ""
    if isinstance(last, Learn) and has is not None:
        key = Key(f"{name}-{len(before)}", "")
        made, problem = await _take_back(service, last, text, key)
    if text is not None and choice is not None and wanted is not None:
        label = as_label(choice, service.snapshot.counts)
        key = Key(f"{name}-{len(before) + made}", wanted)
        await service.learn([text], [label], key, by=BY)
        made += 1
    return made, problem


async def _take_back(
    service: Service, learned: Learn, text: str | None, key: Key
) -> tuple[int, str]:
    """Take back what was learned of an annotation, unless someone did; or say why not."""
    try:
        undoable = [change.number for change in await service.undoable()]
        if learned.number in undoable:
            await service.change(Undo(learned.number, key=key, by=BY))
        elif await service.read(lambda _, journal: journal.is_undone(learned.number)):
            return 0, ""
        elif text is not None:
            await service.remove([text], learned.labels, key, by=BY)
        else:
            raise ServerError("It was learned too long ago, and its text is not given.", 409)
        return 1, ""
    except ServerError as error:
        if error.status not in (404, 409):
            raise
        log.warning("annotation not taken back", extra={"key": key.name, "error": str(error)})
        return 0, str(error)
