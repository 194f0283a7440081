"""The bodies of answers, as the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from klda.checks import Modality
from klda.inspection.verdict import Verdict

AnyLabel = Annotated[str | int, Field(description="Label of a class.")]
ClassesFound = Annotated[list[str | int], Field(description="Labels of the classes.")]
Probability = Annotated[float, Field(ge=0, le=1, description="Probability of the class.")]
Samples = Annotated[int, Field(description="Number of samples learned.")]
Version = Annotated[int, Field(description="Number of the last change.")]
When = Annotated[float, Field(description="Seconds since 1970.")]
Known = Annotated[
    bool | None, Field(description="False: unlike anything learned. Null: this model can't tell.")
]
Novelty = Annotated[float | None, Field(description="Larger is less like what was learned.")]
NewClasses = Annotated[list[str | int], Field(description="Classes that the change added.")]


class ErrorAnswer(BaseModel):
    """An error: its code, for programs, and what to do about it."""

    error: dict[Literal["code", "message"], str] = Field(description="Its code and its message.")


class Ranked(BaseModel):
    """A class and its probability."""

    label: AnyLabel
    probability: Probability


class Prediction(Ranked):
    """The answer for one input."""

    verdict: Verdict = Field(
        description="sure; not_sure; new: unlike anything learned, so that the probabilities mean "
        "nothing; one_class: there is only one class so far."
    )
    known: Known
    novelty: Novelty
    top: list[Ranked] = Field(description="The likeliest classes, the likeliest first.")


class PredictAnswer(BaseModel):
    """One prediction per input, in the order given."""

    predictions: list[Prediction] = Field(description="One per input, in the order given.")
    version: int = Field(description="Number of the last change that the answers include.")


class Made(BaseModel):
    """A change that was made; it is on disk and included in every later answer."""

    version: int = Field(description="Number of the change.")
    undo: int = Field(description="What to give to POST /v1/undo.")
    repeated: bool = Field(description="The key was used before: nothing was changed again.")


class ChangeAnswer(Made):
    """The model after a change."""

    classes: int = Field(description="Number of classes of the model.")
    samples: int = Field(description="Number of samples of the model.")
    new_classes: NewClasses
    similar: dict[str, str] = Field(
        description="New classes whose names look like those of others, each with the other: "
        "a rename with merge makes one class of two."
    )
    learned: int = Field(description="Samples that this request taught.")
    forgotten: list[str | int] = Field(description="Classes, or labels of samples, forgotten.")
    exact: bool = Field(
        description="What was forgotten left no trace; false for a change that forgets nothing, "
        "such as a learn."
    )


class ChoiceAnswer(BaseModel):
    """A threshold, and what it costs."""

    limit: float = Field(description="The threshold, in units of the distance between classes.")
    known_refused: float = Field(description="Fraction of known inputs taken for unknown.")
    unknown_accepted: float = Field(description="Fraction of unknown inputs taken for known.")
    chosen: bool = Field(description="Whether the model uses it now.")


class TuneAnswer(Made):
    """What each choice of a threshold costs; the chosen one is stored."""

    choices: list[ChoiceAnswer] = Field(description="Thresholds to choose from.")
    known: int = Field(description="Known inputs that it was fitted to.")
    unknown: int = Field(description="Unknown inputs that it was fitted to.")
    classes: int = Field(description="Classes that got a threshold of their own.")


class SkippedRow(BaseModel):
    """A row that was left out."""

    place: str = Field(description="Where it is in the file.")
    problem: str = Field(description="Why it can't be learned.")


class FileAnswer(ChangeAnswer):
    """The model after the rows of a file were learned."""

    texts: list[str] = Field(description="The columns that the texts were read from.")
    labels: str | None = Field(description="The column that the labels were read from.")
    skipped: list[SkippedRow] = Field(description="Rows that were left out, with skip_bad.")
    notes: list[str] = Field(
        description="What is odd: labels that look like none or several, texts in a language that "
        "the foundation model does not know."
    )


class AnyChange(BaseModel):
    """A change."""

    change: int = Field(description="Its number.")
    kind: str = Field(
        description="learn, remove (of samples), forget (of classes), rename, merge, declare, tune "
        "(of what is unknown), undo."
    )
    when: When
    by: str = Field(description="Who made it: api, page, or the name of an application.")
    classes: ClassesFound
    samples: int = Field(description="How many samples the model has more than before.")


class RefusedChange(AnyChange):
    """A change that was acknowledged, and that a start could not apply to the model it found."""

    samples: int = Field(description="How many samples it learns or forgets.")
    reason: str = Field(description="Why it could not be applied.")


class HistoryEntry(AnyChange):
    """A change that was made."""

    new_classes: NewClasses
    undoes: int | None = Field(description="The change that it took back, if it is an undo.")
    undoable: bool = Field(description="Whether POST /v1/undo can still take it back.")


RefusedAnswer = dict[Literal["refused"], list[RefusedChange]]
HistoryAnswer = dict[Literal["changes"], list[HistoryEntry]]


class Accuracy(BaseModel):
    """An expected accuracy, as a fraction; null if it is not known."""

    accuracy: float | None = Field(description="Expected fraction of correct answers.")
    low: float = Field(description="It is likely (90%) to be at least this.")
    high: float = Field(description="It is likely (90%) to be at most this.")
    left_out: int = Field(description="How many samples were answered as if not learned.")


class ClassCount(BaseModel):
    """A class and its number of samples."""

    label: AnyLabel
    samples: Samples


class ClassAccuracy(Accuracy, ClassCount):
    """The expected accuracy of a class."""


class QualityAnswer(Accuracy):
    """The expected accuracy of the model and of each class."""

    classes: list[ClassAccuracy] = Field(description="The expected accuracy of each class.")


class NearClass(Ranked):
    """A class near an input."""

    score: float = Field(description="Discriminant score: the larger, the likelier.")
    distance: float = Field(description="How far the input is from it; may be negative.")


class NearSample(BaseModel):
    """A learned sample near an input."""

    id: str | int = Field(description="The id it was given, or its running number.")
    label: AnyLabel
    similarity: float = Field(description="Cosine between its features and the input's.")


class Suggestion(BaseModel):
    """An input to be labelled."""

    row: int = Field(description="Which of the inputs, from 0 on.")
    label: str | int | None = Field(description="The likeliest class; null if there is none yet.")
    probability: float | None = Field(description="Its probability.")
    known: Known
    alike: list[int] = Field(description="Inputs like it, which probably have its label.")


class Suspect(BaseModel):
    """A sample to look at."""

    row: int = Field(description="Which of the samples, from 0 on.")
    problem: str = Field(
        description="label: another label is far likelier; conflict: a near-duplicate has another "
        "label; duplicate: it is there before."
    )
    label: AnyLabel
    suggested: str | int | None = Field(
        description="The label that it should probably have; null for a duplicate."
    )
    confidence: float | None = Field(description="Probability of the one suggested.")
    like: int | None = Field(description="The other sample of a conflict or duplicate.")


SuggestAnswer = dict[Literal["suggestions"], list[Suggestion]]
SuspectsAnswer = dict[Literal["suspects"], list[Suspect]]


class Word(BaseModel):
    """A word of a text."""

    word: str = Field(description="The word.")
    weight: float = Field(description="How much it contributes to the answer; negative: against.")


class ExplainAnswer(BaseModel):
    """The explanation of an answer."""

    label: AnyLabel
    classes: list[NearClass] = Field(description="The nearest classes, the likeliest first.")
    margin: float | None = Field(description="Log odds of the first class against the second.")
    known: Known
    novelty: Novelty
    threshold: float | None = Field(description="The novelty beyond which inputs are unknown.")
    samples: list[NearSample] = Field(description="The nearest samples, out of a ledger.")
    words: list[Word] = Field(description="Words of a text, and how much each contributes.")


class ClassesAnswer(BaseModel):
    """Classes in alphabetical order."""

    classes: list[ClassCount] = Field(description="Classes in alphabetical order.")
    total: int = Field(description="How many classes there are, also beyond the limit.")


class ModelAnswer(BaseModel):
    """A description of the model."""

    modality: Modality = Field(description="What it takes.")
    foundation_model: dict[str, Any] = Field(description="The model that encodes inputs.")
    classifier: str = Field(description="LDA or KLDA.")
    classes: int = Field(description="Number of classes.")
    samples: Samples
    version: Version
    journal_pending: int = Field(
        description="Changes that are in the journal and not yet in the model folder."
    )
    refused: int = Field(description="Changes that a start could not apply; see GET /v1/refused.")
    klda_version: str = Field(description="Version of klda that runs the service.")


class HealthAnswer(BaseModel):
    """Whether the service is ready."""

    status: Literal["ok"] = Field(description="ok; a service with a problem answers 503.")
    version: Version


class PlaceAnswer(ClassCount):
    """A class on the map."""

    x: float = Field(description="Position from left to right.")
    y: float = Field(description="Position from bottom to top.")


class ConfusablePair(BaseModel):
    """Two classes that are close."""

    first: AnyLabel
    second: AnyLabel
    distance: float = Field(description="Between their means, in units of the spread within them.")
    confusion: float = Field(description="Fraction of samples of one expected to look the other.")


class MapAnswer(BaseModel):
    """A map of the classes and the pairs that are easily confused."""

    places: list[PlaceAnswer] = Field(description="Where each class is on the map.")
    pairs: list[ConfusablePair] = Field(description="Pairs of classes that are easily confused.")


class TallyAnswer(BaseModel):
    """How the model answered just before it was taught."""

    when: When
    right: int = Field(description="Samples that were answered correctly.")
    wrong: int = Field(description="Samples that were answered wrongly.")
    new: int = Field(description="Samples of classes that were unknown.")


class ScoresAnswer(BaseModel):
    """Live accuracy: the model predicts every sample before it learns it."""

    tallies: list[TallyAnswer] = Field(description="One per learn, the oldest first.")
    accuracy: float | None = Field(description="On samples of classes that were known.")
