"""The bodies and queries of requests, with their limits and examples."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Self

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, Field, StrictInt, StrictStr, model_validator

from klda.data import Layout
from klda.labels import MAX_LABEL_LENGTH, check_labels, check_name, check_one_each
from klda.learner.class_names import LONGEST_DESCRIPTION
from klda.server.changes import MAX_NUMBER
from klda.server.settings import MAX_COMPARED, MAX_FEATURES, MAX_ITEMS, MAX_TEXT_LENGTH, MAX_TOP

VISIBLE = r"[^\s\x00-\x1f]"
NO_SPACES = r"^[\x21-\x7e]+$"
# What to do about a value that does not match a pattern.
FIXES = {
    VISIBLE: "it is blank: give a text that can be seen.",
    NO_SPACES: "give ASCII characters without spaces.",
}
_MANY = Field(min_length=1, max_length=MAX_ITEMS)
_COMPARED = Field(min_length=1, max_length=MAX_COMPARED)
_TEXTS, _FEATURES = "Texts, for a model of texts.", "Feature rows, for a model of features."
_IMAGES = "Image files, base64-encoded, for a model of images."


def _named(label: str) -> str:
    """Reject a name as it is rejected everywhere."""
    check_name(label)
    return label


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_LENGTH, pattern=VISIBLE)]
Description = Annotated[str, Field(min_length=1, max_length=LONGEST_DESCRIPTION, pattern=VISIBLE)]
# Pydantic would reject an empty or a long name in words of its own, so the schema alone has these.
_NAME_LENGTH = Field(json_schema_extra={"minLength": 1, "maxLength": MAX_LABEL_LENGTH})
Name = Annotated[StrictStr, AfterValidator(_named), _NAME_LENGTH]
ClassLabel = Name | Annotated[StrictInt, Field(ge=-(2**53), le=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False, strict=True, ge=-1e9, le=1e9)]
Row = Annotated[list[Number], Field(min_length=1, max_length=MAX_FEATURES)]
Image = Annotated[str, Field(min_length=4, json_schema_extra={"contentEncoding": "base64"})]
ChangeNumber = Annotated[int, Field(ge=1, le=MAX_NUMBER)]
ItemNumber = Annotated[int, Field(ge=1, le=MAX_NUMBER)]  # of what waits in the Inbox
Labels = Annotated[list[ClassLabel], _MANY, Field(description="One label per input.")]

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
        if hasattr(self, "labels"):
            check_labels(self.labels, "labels")
        return self


class Inputs(WithInputs):
    """Several inputs."""

    texts: Annotated[list[Text], _MANY] | None = Field(None, description=_TEXTS)
    features: Annotated[list[Row], _MANY] | None = Field(None, description=_FEATURES)
    images: Annotated[list[Image], _MANY] | None = Field(None, description=_IMAGES)


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
    labels: Annotated[list[ClassLabel], _MANY] = Field(description="Classes, or one per sample.")


class ComparedInputs(WithInputs):
    """Inputs that are compared with each other."""

    texts: Annotated[list[Text], _COMPARED] | None = Field(None, description=_TEXTS)
    features: Annotated[list[Row], _COMPARED] | None = Field(None, description=_FEATURES)
    images: Annotated[list[Image], _MANY] | None = Field(None, description=_IMAGES)


class FileForm(Body):
    """A file of texts, and how to read it; what you leave out is detected."""

    file: UploadFile = Field(description="CSV, TSV, JSON, JSONL, parquet, xlsx, ...")
    text: list[str] = Field([], max_length=100, description="Columns of texts, to be joined.")
    label: str | None = Field(None, description="Column of labels.")
    header: bool | None = Field(None, description="Whether the first row names the columns.")
    encoding: str | None = Field(None, max_length=40, description="Such as utf-8 or latin-1.")
    skip_bad: bool = Field(False, description="Leave out rows without text or label.")
    ignore_case: bool = Field(False, description="Labels that differ only in case are one class.")

    def layout(self) -> Layout:
        """Return it as files are read with."""
        return Layout(
            self.text or None,
            self.label or None,
            self.header,
            self.encoding or None,
            self.ignore_case,
        )


class SuspectsBody(
    ComparedInputs,
    json_schema_extra=_example(
        texts=["where is my card?", "what is the rate?", "my card has not arrived yet"],
        labels=["card_arrival", "card_arrival", "card_arrival"],
    ),
):
    """Samples, learned or not, with one label each."""

    labels: Annotated[list[ClassLabel], _COMPARED] = Field(description="One label per sample.")


class SuggestBody(ComparedInputs, json_schema_extra=_example(texts=["where is it?"], n=1)):
    """Inputs without labels, and how many of them to choose."""

    n: int = Field(20, ge=1, le=MAX_COMPARED, strict=True, description="How many to choose.")


class PredictBody(Inputs, json_schema_extra=_example(texts=["has my card been sent?"], top=2)):
    """Inputs, and how many classes to name for each."""

    text: Text | None = Field(None, description="One text: short for texts with one entry.")
    top: int = Field(3, ge=1, le=MAX_TOP, strict=True, description="Classes for each input.")


class ExplainBody(WithInputs, json_schema_extra=_example(text="has my card been sent?")):
    """One input."""

    text: Text | None = Field(None, description="A text, for a model of texts.")
    features: Row | None = Field(None, description="A feature row, for a model of features.")
    image: Image | None = Field(None, description="An image file, base64-encoded.")


class ClassesQuery(Body):
    """Which classes to list."""

    search: str = Field("", max_length=MAX_LABEL_LENGTH, description="Part of the name.")
    offset: int = Field(0, ge=0, le=10**9, description="How many to skip.")
    limit: int = Field(1000, ge=1, le=10_000, description="How many to list at most.")


class HistoryQuery(Body):
    """Which changes to list."""

    limit: int = Field(100, ge=1, le=1000, description="How many to list at most.")
    before: int = Field(MAX_NUMBER, ge=1, le=MAX_NUMBER, description="List those before a number.")


class RenameBody(Body, json_schema_extra=_example(old="card_arrival", new="card_delivery")):
    """A class and its new name; with `merge`, that of another class, which it becomes part of."""

    old: ClassLabel = Field(description="A class.")
    new: ClassLabel = Field(description="Its new name.")
    merge: bool = Field(False, description="Make one class of two: the new name may be taken.")


class DeclareBody(
    Body,
    json_schema_extra=_example(
        classes={"refund": "customer wants money back", "card_arrival": None}
    ),
):
    """Classes, each with a description, or null where the name says enough."""

    classes: Annotated[dict[Name, Description | None], _MANY] = Field(
        description="Names, each with a description or null."
    )


class UndoBody(Body, json_schema_extra=_example(undo=17)):
    """The number of a change; without, the latest that is neither an undo nor undone."""

    undo: ChangeNumber | None = Field(None, strict=True, description="Number of a change.")


class ExpireUndoBody(Body):
    """Which undo data to erase: what is older than a time, or all."""

    before: float | None = Field(
        None, ge=0, allow_inf_nan=False, strict=True, description="Seconds since 1970."
    )


class TuneBody(
    Body,
    json_schema_extra=_example(
        known={"texts": ["where is my card?"]}, unknown={"texts": ["will it rain tomorrow?"]}
    ),
):
    """Inputs of the classes, inputs that belong to none, and what the threshold may cost."""

    known: ComparedInputs = Field(description="Inputs of the classes.")
    unknown: ComparedInputs = Field(description="Inputs that belong to no class.")
    reject: float | None = Field(
        None,
        gt=0,
        lt=1,
        strict=True,
        description="Fraction of known inputs that may be taken for unknown; by default the "
        "threshold with the fewest errors of both kinds.",
    )
    by_class: bool = Field(False, description="Also fit thresholds of single classes.")


class RetryBody(Body, json_schema_extra=_example(retry=17)):
    """The number of a refused change."""

    retry: ChangeNumber = Field(strict=True, description="See GET /v1/refused.")
