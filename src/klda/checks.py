"""Checks of what comes in, each in one place: parameters, inputs, texts, feature rows."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from klda.errors import KldaError

Modality = Literal["text", "image", "features"]
REFUSED = 0.05  # fraction of inputs of known classes that may be taken for unknown, by default


def check_count(parameter: str, value: Any, least: int = 1) -> None:
    """Raise if a parameter is not an integer from `least` on."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < least:
        what = "a positive integer" if least else "an integer from 0 on"
        raise KldaError(f"{parameter}={value!r} can't be used; give {what}.")


def check_fraction(parameter: str, value: Any) -> None:
    """Raise if a parameter is not a number between 0 and 1."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not 0 < value < 1:
        raise KldaError(
            f"{parameter}={value!r} can't be used; give a fraction between 0 and 1, such as "
            f"{REFUSED}."
        )


def checked_inputs(inputs: Any, modality: str) -> Any:
    """Return inputs that have a length and an order: at least one, and no empty text.

    Refuse a single text, a table of texts or images, and a mapping.
    """
    if isinstance(inputs, Mapping):
        raise KldaError(f"inputs is a {type(inputs).__name__}; give a list of its values.")
    if modality != "features" and hasattr(inputs, "columns"):
        names = [str(name) for name in getattr(inputs, "column_names", inputs.columns)]
        some = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise KldaError(
            f"inputs is a table with the columns {some}; give the one column that holds the inputs"
            + (f": inputs[{names[0]!r}]." if names else ".")
        )
    if modality == "text":
        inputs = checked_texts(inputs)
    elif isinstance(inputs, str | bytes):
        raise _one_text(inputs)
    elif not isinstance(inputs, Sequence) and not hasattr(inputs, "shape"):
        inputs = list(inputs)
    if len(inputs) == 0:
        raise KldaError("inputs is empty: give at least one.")
    if modality == "text":
        for i, text in enumerate(inputs):
            if is_blank(text):
                raise KldaError(f"inputs[{i}] is an empty text: leave it out.")
    return inputs


def checked_texts(inputs: Any) -> list[str]:
    """Return a list, tuple, array or column of texts as a list; refuse anything else."""
    if isinstance(inputs, str | bytes):
        raise _one_text(inputs)
    try:
        texts = list(inputs)
    except TypeError as error:
        raise KldaError(f"inputs must be a list of texts; got {type(inputs).__name__}.") from error
    for i, text in enumerate(texts):
        if problem := text_problem(text):
            raise KldaError(f"inputs[{i}] {problem}")
    return texts


def _one_text(text: str | bytes) -> KldaError:
    return KldaError(f"inputs={text!r} is one text; give a list of texts: [{text!r}].")


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, or what pandas has instead."""
    # pandas has a value of its own, which is neither equal nor unequal to itself.
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def is_blank(value: Any) -> bool:
    """Whether a value is missing, or a text without a visible character."""
    return not value.strip() if isinstance(value, str) else is_missing(value)


def text_problem(value: Any) -> str | None:
    """Say what keeps a value from being a text, in words that follow its name."""
    if not isinstance(value, str):
        return f"must be a string; got {type(value).__name__}: {reprlib.repr(value)}."
    try:
        value.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can contain
        at, what = error.start + 1, value[error.start]
        return f"is not valid Unicode: {what!r} at character {at}. Repair it or leave it out."
    return None


def finite_rows(rows: np.ndarray) -> np.ndarray:
    """Return for each row whether all its numbers are finite in float32."""
    with np.errstate(over="ignore"):
        return np.asarray(np.isfinite(rows.astype(np.float32, copy=False)).all(axis=1))
