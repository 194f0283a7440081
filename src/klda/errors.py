"""Errors that klda raises on bad input or a missing package, and the checks that rooms share."""

from __future__ import annotations

import importlib
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

REFUSED = 0.05  # fraction of inputs of known classes that may be taken for unknown, by default


class KldaError(ValueError):
    """Base of all errors that name a parameter, what was given, and the fix."""


class MissingDependencyError(KldaError, ImportError):
    """A part of klda needs a package that is not installed."""


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


def require(module: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Parameters
    ----------
    module : str
        Dotted module name.
    extra : str
        The extra that installs it, as in ``pip install "klda[extra]"``.

    Returns
    -------
    module
        The imported module.

    Raises
    ------
    MissingDependencyError
        If the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingDependencyError(
            f"This needs the package {module.split('.')[0]!r}, which is not installed. "
            f'Install it with: pip install "klda[{extra}]"'
        ) from error
