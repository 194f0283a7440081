"""Inputs as Python callers give them: several texts, images or feature rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from klda.errors import KldaError


def checked_inputs(inputs: Any, modality: str) -> Any:
    """Return inputs that have a length and an order: at least one.

    Refuse a single text, a table of texts or images, a mapping, and empty texts.
    """
    if isinstance(inputs, str | bytes):
        raise KldaError(f"inputs={inputs!r} is one text; give a list of texts: [{inputs!r}].")
    if isinstance(inputs, Mapping):
        raise KldaError(f"inputs is a {type(inputs).__name__}; give a list of its values.")
    if modality != "features" and hasattr(inputs, "columns"):
        names = [str(name) for name in getattr(inputs, "column_names", inputs.columns)]
        some = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
        raise KldaError(
            f"inputs is a table with the columns {some}; give the one column that holds the inputs"
            + (f": inputs[{names[0]!r}]." if names else ".")
        )
    if not isinstance(inputs, Sequence) and not hasattr(inputs, "shape"):
        inputs = list(inputs)
    if len(inputs) == 0:
        raise KldaError("inputs is empty: give at least one.")
    if modality == "text":
        for i, text in enumerate(inputs):
            if isinstance(text, str) and not text.strip():
                raise KldaError(f"inputs[{i}] is an empty text: leave it out.")
    return inputs
