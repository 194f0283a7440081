"""The bodies of requests and answers, with their limits and examples."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from klda.labels import MAX_LABEL_LENGTH
from klda.server.settings import (
    MAX_FEATURES,
    MAX_ITEMS,
    MAX_KEY_LENGTH,
    MAX_TEXT_LENGTH,
    MAX_TOP,
)

NAME = r"^[^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f][^\x00-\x1f\x7f]*$"  # something to see, one line

Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_LENGTH, pattern=r"[^\s\x00-\x1f]")]
TextLabel = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_LENGTH, pattern=NAME)]
NumberLabel = Annotated[StrictInt, Field(ge=-(2**53), le=2**53)]
Label = TextLabel | NumberLabel
Number = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=-1e9, le=1e9)]
Row = Annotated[list[Number], Field(min_length=1, max_length=MAX_FEATURES)]
Image = Annotated[str, Field(min_length=4, json_schema_extra={"contentEncoding": "base64"})]

Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_ITEMS)]
Labels = Annotated[list[Label], Field(min_length=1, max_length=MAX_ITEMS)]
Rows = Annotated[list[Row], Field(min_length=1, max_length=MAX_ITEMS)]
Images = Annotated[list[Image], Field(min_length=1, max_length=MAX_ITEMS)]

IDEMPOTENCY_KEY = {"max_length": MAX_KEY_LENGTH, "pattern": r"^[\x21-\x7e]+$"}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Inputs(_Body):
    """Exactly one of texts, features and images, by what the model takes."""

    texts: Texts | None = None
    features: Rows | None = Field(
        default=None, description="Rows computed elsewhere, for a model of features."
    )
    images: Images | None = Field(default=None, description="Image files, base64-encoded.")

    def given(self) -> list[str]:
        """Return the names of the inputs that were given."""
        names = ("texts", "features", "images")
        return [name for name in names if getattr(self, name) is not None]

    def rows(self) -> np.ndarray | None:
        """Return the features as an array, or None where they are of several lengths."""
        assert self.features is not None
        if len({len(row) for row in self.features}) > 1:
            return None
        return np.array(self.features, np.float32)


class _NeedsInputs(Inputs):
    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if len(self.given()) != 1:
            raise ValueError("give exactly one of texts, features and images")
        return self


class LearnBody(_NeedsInputs):
    """Samples and a label for each."""

    labels: Labels

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "texts": ["where is my card?", "my card has not come yet"],
                    "labels": ["card_arrival", "card_arrival"],
                }
            ]
        },
    )


class PredictBody(_NeedsInputs):
    """Inputs, and how many classes to name for each."""

    text: Text | None = Field(None, description="One text: short for texts with one entry.")
    top: int = Field(3, ge=1, le=MAX_TOP, strict=True)

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"texts": ["has my card been sent?"], "top": 2}]},
    )

    @model_validator(mode="before")
    @classmethod
    def _single(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("text") is not None:
            if values.get("texts") is not None:
                raise ValueError("give text or texts, not both")
            values = {**values, "texts": [values["text"]]}
        return values


class ForgetBody(Inputs):
    """Classes to forget, or with inputs: samples to forget exactly, and a label for each."""

    labels: Labels

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"labels": ["card_arrival"]}]}
    )

    @model_validator(mode="after")
    def _at_most_one_kind(self) -> Self:
        if len(self.given()) > 1:
            raise ValueError("give at most one of texts, features and images")
        return self


class ClassesQuery(_Body):
    """Which classes to list."""

    search: str = Field("", max_length=MAX_LABEL_LENGTH, description="Part of the name.")
    offset: int = Field(0, ge=0, le=10**9)
    limit: int = Field(1000, ge=1, le=10_000)


class RenameBody(_Body):
    """A class and its new name."""

    old: Label
    new: Label

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"old": "card_arrival", "new": "card_delivery"}]},
    )


class UndoBody(_Body):
    """The number that a forget returned."""

    undo: int = Field(ge=1, le=2**53, strict=True)

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"undo": 17}]})


class ExplainBody(_Body):
    """One input."""

    text: Text | None = None
    features: Row | None = None
    image: Image | None = None

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"text": "has my card been sent?"}]}
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(value is not None for value in (self.text, self.features, self.image)) != 1:
            raise ValueError("give exactly one of text, features and image")
        return self


# ------------------------------------------------------------------ answers


class Ranked(BaseModel):
    """A class and its probability."""

    label: str | int
    probability: float = Field(ge=0, le=1)


class Prediction(BaseModel):
    """The answer for one input."""

    label: str | int
    probability: float = Field(ge=0, le=1)
    known: bool | None = Field(
        description="False: unlike everything learned. Null: this model can't say."
    )
    novelty: float | None = Field(description="Larger is less like what was learned.")
    top: list[Ranked]


class PredictAnswer(BaseModel):
    """One answer an input, in the order given."""

    predictions: list[Prediction]
    version: int = Field(description="Number of the last change that the answers know of.")


class LearnAnswer(BaseModel):
    """What was learned; on disk and in the answers."""

    learned: int
    new_classes: list[str | int]
    classes: int
    samples: int
    version: int
    repeated: bool = Field(description="The key was used before: nothing was learned again.")


class ForgetAnswer(BaseModel):
    """What was forgotten."""

    forgotten: list[str | int]
    classes: int
    samples: int
    version: int
    undo: int | None = Field(description="For POST /v1/undo; null where samples were forgotten.")
    exact: bool = Field(
        description="False: the covariance that all classes share keeps a trace of them."
    )


class ChangeAnswer(BaseModel):
    """The model after a change."""

    classes: int
    samples: int
    version: int


class Word(BaseModel):
    """A word and how much it speaks for the answer (negative: against it)."""

    word: str
    weight: float


class NearClass(Ranked):
    """A class near an input."""

    distance: float


class NearSample(BaseModel):
    """A learned sample near an input, where the model keeps a ledger."""

    id: str | int
    label: str | int
    similarity: float


class ExplainAnswer(BaseModel):
    """Why the model answers as it does."""

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
    """What the model is."""

    modality: Literal["text", "image", "features"]
    foundation_model: dict[str, Any]
    classifier: str
    classes: int
    samples: int
    version: int
    unfolded: int = Field(description="Changes in the journal that the folder will get next.")
    klda_version: str


class HealthAnswer(BaseModel):
    """Whether the service is ready."""

    status: Literal["ok"]
    version: int


class PlaceAnswer(BaseModel):
    """A class on the map."""

    label: str | int
    samples: int
    x: float
    y: float


class PairAnswer(BaseModel):
    """Two classes that are easily confused."""

    first: str | int
    second: str | int
    confusion: float = Field(
        ge=0, le=1, description="Share of samples of one expected to be taken for the other."
    )


class MapAnswer(BaseModel):
    """Where the classes lie, and which are easily confused."""

    places: list[PlaceAnswer]
    pairs: list[PairAnswer]


class TallyAnswer(BaseModel):
    """How the model answered just before it was taught, once."""

    when: float
    right: int
    wrong: int
    new: int


class ScoresAnswer(BaseModel):
    """Ask-then-teach: the model is asked about every sample before it learns it."""

    tallies: list[TallyAnswer]
    accuracy: float | None = Field(description="Over samples of classes that were known.")


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str
    message: str


class ErrorAnswer(BaseModel):
    """An error."""

    error: ErrorDetail
