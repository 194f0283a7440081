"""The bodies of requests and answers, with their limits and examples."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, Field, StrictInt, StrictStr, model_validator

from klda.checks import Modality
from klda.data import Layout
from klda.inspection.explanation import NearClass, NearSample
from klda.inspection.label_set import ConfusablePair
from klda.inspection.suggestions import Suggestion
from klda.inspection.suspects import Suspect
from klda.inspection.verdict import Verdict
from klda.labels import MAX_LABEL_LENGTH, check_name, check_one_each
from klda.learner.class_names import LONGEST_DESCRIPTION
from klda.server.changes import MAX_NUMBER
from klda.server.settings import MAX_COMPARED, MAX_FEATURES, MAX_ITEMS, MAX_TEXT_LENGTH, MAX_TOP

_WORDS = r"[^\s\x00-\x1f]"
_MANY = Field(min_length=1, max_length=MAX_ITEMS)
_COMPARED = Field(min_length=1, max_length=MAX_COMPARED)


def _named(label: str) -> str:
    """Refuse a name as it is refused everywhere."""
    check_name(label)
    return label


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_LENGTH, pattern=_WORDS)]
Description = Annotated[str, Field(min_length=1, max_length=LONGEST_DESCRIPTION, pattern=_WORDS)]
# Pydantic would refuse an empty or a long name in words of its own, so the schema alone has these.
_NAME_LENGTH = Field(json_schema_extra={"minLength": 1, "maxLength": MAX_LABEL_LENGTH})
Name = Annotated[StrictStr, AfterValidator(_named), _NAME_LENGTH]
ClassLabel = Name | Annotated[StrictInt, Field(ge=-(2**53), le=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=-1e9, le=1e9)]
Row = Annotated[list[Number], Field(min_length=1, max_length=MAX_FEATURES)]
Image = Annotated[str, Field(min_length=4, json_schema_extra={"contentEncoding": "base64"})]
ChangeNumber = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
Labels = Annotated[list[ClassLabel], _MANY]

# What a request calls one input or several, and what several are called.
_INPUTS = {"text": "texts", "image": "images"}
_INPUTS |= {name: name for name in ("texts", "features", "images")}


def _example(**body: Any) -> dict[str, Any]:
    return {"examples": [body]}


class Body(BaseModel, extra="forbid"):
    """The body of a request."""


class WithInputs(Body):
    """Inputs of one kind, depending on the model; if there are labels, one for each."""

    inputs_required: ClassVar[bool] = True

    def given(self) -> list[str]:
        """Return the names of the inputs that were given."""
        return [name for name in _INPUTS if getattr(self, name, None) is not None]

    def inputs(self) -> tuple[str, list[Any]]:
        """Return what the inputs are called if there are several, and a list of them."""
        (name,) = self.given()
        value = getattr(self, name)
        is_one = isinstance(value, str) or isinstance(value[0], float)
        return _INPUTS[name], [value] if is_one else value

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = self.given()
        if len(given) > 1 or (self.inputs_required and not given):
            most = "exactly" if self.inputs_required else "at most"
            *first, last = (name for name in _INPUTS if name in type(self).model_fields)
            raise ValueError(f"give {most} one of {', '.join(first)} and {last}")
        if given and hasattr(self, "labels"):
            check_one_each(getattr(self, given[0]), self.labels, given[0])
        return self


class Inputs(WithInputs):
    """Several inputs."""

    texts: Annotated[list[Text], _MANY] | None = None
    features: Annotated[list[Row], _MANY] | None = Field(
        None, description="Feature rows, for a model of features."
    )
    images: Annotated[list[Image], _MANY] | None = Field(
        None, description="Image files, base64-encoded."
    )


class LearnBody(
    Inputs,
    json_schema_extra=_example(
        texts=["where is my card?", "my card has not arrived yet"],
        labels=["card_arrival", "card_arrival"],
    ),
):
    """Samples, and one label per sample."""

    labels: Labels


class ForgetBody(Inputs, json_schema_extra=_example(labels=["card_arrival"])):
    """Classes to forget, or with inputs: samples to forget exactly, with one label each."""

    inputs_required: ClassVar[bool] = False
    labels: Labels


class ComparedInputs(WithInputs):
    """Inputs that are compared with each other."""

    texts: Annotated[list[Text], _COMPARED] | None = None
    features: Annotated[list[Row], _COMPARED] | None = None
    images: Annotated[list[Image], _MANY] | None = None


class FileForm(Body):
    """A file of texts, and how to read it; what is not said is found out."""

    file: UploadFile = Field(description="CSV, TSV, JSON, JSONL, parquet, xlsx, ...")
    text: list[str] = Field([], max_length=100, description="Columns of texts, to be joined.")
    label: str | None = Field(None, description="Column of labels.")
    header: bool | None = Field(None, description="Whether the first row names the columns.")
    encoding: str | None = Field(None, max_length=40)
    skip_bad: bool = Field(False, description="Leave out rows without text or label.")

    def layout(self) -> Layout:
        """Return it as files are read with."""
        return Layout(self.text or None, self.label or None, self.header, self.encoding or None)


class SuspectsBody(
    ComparedInputs,
    json_schema_extra=_example(
        texts=["where is my card?", "what is the rate?", "my card has not arrived yet"],
        labels=["card_arrival", "card_arrival", "card_arrival"],
    ),
):
    """Samples, learned or not, with one label each."""

    labels: Annotated[list[ClassLabel], _COMPARED]


class SuggestBody(ComparedInputs, json_schema_extra=_example(texts=["where is it?"], n=1)):
    """Inputs without labels, and how many of them to choose."""

    n: int = Field(20, ge=1, le=MAX_COMPARED, strict=True)


class PredictBody(Inputs, json_schema_extra=_example(texts=["has my card been sent?"], top=2)):
    """Inputs, and how many classes to name for each."""

    text: Text | None = Field(None, description="One text: short for texts with one entry.")
    top: int = Field(3, ge=1, le=MAX_TOP, strict=True)


class ExplainBody(WithInputs, json_schema_extra=_example(text="has my card been sent?")):
    """One input."""

    text: Text | None = None
    features: Row | None = None
    image: Image | None = None


class ClassesQuery(Body):
    """Which classes to list."""

    search: str = Field("", max_length=MAX_LABEL_LENGTH, description="Part of the name.")
    offset: int = Field(0, ge=0, le=10**9)
    limit: int = Field(1000, ge=1, le=10_000)


class HistoryQuery(Body):
    """Which changes to list."""

    limit: int = Field(100, ge=1, le=1000)
    before: int = Field(MAX_NUMBER, ge=1, le=MAX_NUMBER, description="A number of a change.")


class RenameBody(Body, json_schema_extra=_example(old="card_arrival", new="card_delivery")):
    """A class and its new name; with `merge`, that of another class, which it becomes part of."""

    old: ClassLabel
    new: ClassLabel
    merge: bool = False


class DeclareBody(
    Body,
    json_schema_extra=_example(
        classes={"refund": "customer wants money back", "card_arrival": None}
    ),
):
    """Classes, each with a description, or null where the name says enough."""

    classes: dict[Name, Description | None] = _MANY


class UndoBody(Body, json_schema_extra=_example(undo=17)):
    """The number of a change; without, the latest that is neither an undo nor undone."""

    undo: ChangeNumber | None = Field(None, strict=True)


class RetryBody(Body, json_schema_extra=_example(retry=17)):
    """The number of a refused change."""

    retry: ChangeNumber = Field(strict=True)


# ------------------------------------------------------------------ answers


class Ranked(BaseModel):
    """A class and its probability."""

    label: str | int
    probability: float = Field(ge=0, le=1)


class Prediction(Ranked):
    """The answer for one input."""

    verdict: Verdict = Field(
        description="sure; not_sure; new: unlike anything learned, so that the probabilities mean "
        "nothing; one_class: there is only one class so far."
    )
    known: bool | None = Field(
        description="False: unlike anything learned. Null: this model can't tell."
    )
    novelty: float | None = Field(description="Larger is less like what was learned.")
    top: list[Ranked]


class PredictAnswer(BaseModel):
    """One prediction per input, in the order given."""

    predictions: list[Prediction]
    version: int = Field(description="Number of the last change that the answers include.")


class ChangeAnswer(BaseModel):
    """The model after a change, which is on disk and included in every later answer."""

    version: int = Field(description="Number of the change.")
    classes: int
    samples: int
    new_classes: list[str | int]
    learned: int = Field(description="Samples that this request taught.")
    forgotten: list[str | int] = Field(description="Classes, or labels of samples, forgotten.")
    exact: bool = Field(description="What was forgotten left no trace.")
    undo: int = Field(description="What to give to POST /v1/undo.")
    repeated: bool = Field(description="The key was used before: nothing was changed again.")


class SkippedRow(BaseModel):
    """A row that was left out."""

    place: str
    problem: str


class FileAnswer(ChangeAnswer):
    """The model after the rows of a file were learned."""

    texts: list[str] = Field(description="The columns that the texts were read from.")
    labels: str | None = Field(description="The column that the labels were read from.")
    skipped: list[SkippedRow]


class RefusedChange(BaseModel):
    """A change that was acknowledged, and that a start could not apply to the model it found."""

    change: int = Field(description="For POST /v1/retry.")
    kind: str
    classes: list[str | int]
    samples: int
    when: float = Field(description="Seconds since 1970.")
    reason: str


class HistoryEntry(BaseModel):
    """A change that was made."""

    change: int = Field(description="Its number.")
    kind: str = Field(
        description="learn, remove (of samples), forget (of classes), rename, merge, declare, undo."
    )
    when: float = Field(description="Seconds since 1970.")
    by: str = Field(description="Who made it: api, page, or the name of an application.")
    classes: list[str | int]
    samples: int = Field(description="How many samples the model has more than before.")
    new_classes: list[str | int]
    undoes: int | None = Field(description="The change that it took back, if it is an undo.")
    undoable: bool = Field(description="Whether POST /v1/undo can still take it back.")


class HistoryAnswer(BaseModel):
    """Changes, the latest first."""

    changes: list[HistoryEntry]


# An event of GET /v1/events, as OpenAPI describes one.
EVENT = {
    "type": "object",
    "properties": {
        "event": {"const": "change"},
        "id": {"type": "string", "description": "Number of the last change."},
        "data": {"type": "string", "description": "JSON with version, classes and samples."},
    },
    "required": ["event", "data"],
}


class SuspectsAnswer(BaseModel):
    """Samples to look at: unlikely labels first, then near-duplicates with different labels."""

    suspects: list[Suspect]


class SuggestAnswer(BaseModel):
    """The inputs to label next, the most telling first."""

    suggestions: list[Suggestion]


class Accuracy(BaseModel):
    """An expected accuracy, as a fraction; null if it is not known."""

    accuracy: float | None
    low: float = Field(description="It is likely (90%) to be between low and high.")
    high: float
    left_out: int = Field(description="How many samples were answered as if not learned.")


class ClassAccuracy(Accuracy):
    """The expected accuracy of a class."""

    label: str | int
    samples: int


class QualityAnswer(Accuracy):
    """The expected accuracy of the model and of each class."""

    classes: list[ClassAccuracy]


class Word(BaseModel):
    """A word and how much it contributes to the answer (negative: against it)."""

    word: str
    weight: float


class ExplainAnswer(BaseModel):
    """The explanation of an answer."""

    label: str | int
    classes: list[NearClass]
    margin: float | None = Field(description="Log odds of the first class against the second.")
    known: bool | None
    novelty: float | None
    threshold: float | None = Field(description="The novelty beyond which inputs are unknown.")
    samples: list[NearSample]
    words: list[Word]


class ClassCount(BaseModel):
    """A class and its number of samples."""

    label: str | int
    samples: int


class ClassesAnswer(BaseModel):
    """Classes in alphabetical order."""

    classes: list[ClassCount]
    total: int


class ModelAnswer(BaseModel):
    """A description of the model."""

    modality: Modality
    foundation_model: dict[str, Any]
    classifier: str
    classes: int
    samples: int
    version: int
    journal_pending: int = Field(
        description="Changes that are in the journal and not yet in the model folder."
    )
    refused: int = Field(description="Changes that a start could not apply; see GET /v1/refused.")
    klda_version: str


class HealthAnswer(BaseModel):
    """Whether the service is ready."""

    status: Literal["ok"]
    version: int


class PlaceAnswer(ClassCount):
    """A class on the map."""

    x: float
    y: float


class MapAnswer(BaseModel):
    """A map of the classes and the pairs that are easily confused."""

    places: list[PlaceAnswer]
    pairs: list[ConfusablePair]


class TallyAnswer(BaseModel):
    """How the model answered just before it was taught; `new` are samples of unknown classes."""

    when: float
    right: int
    wrong: int
    new: int


class ScoresAnswer(BaseModel):
    """Live accuracy: the model predicts every sample before it learns it."""

    tallies: list[TallyAnswer]
    accuracy: float | None = Field(description="On samples of classes that were known.")


class ErrorAnswer(BaseModel):
    """An error: its code, for programs, and what to do about it."""

    error: dict[Literal["code", "message"], str]
