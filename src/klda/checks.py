"""What is checked at the door of an estimator: values, labels and parameters."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.backend import Array, is_torch
from klda.errors import KldaError
from klda.labels import check_lengths, first_missing, plain
from klda.statistics import Label

LARGEST_SUM = 1e-8  # of squares of a batch, as a share of the largest number


def grouped(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct labels, sorted, and the position of each row's label among them."""
    if values.dtype.kind == "i":
        least, largest = int(values.min()), int(values.max())
        if largest - least < 4 * len(values):  # counted, not sorted: a GPU waits for this
            shifted = values.astype(np.int64) - least
            present = np.flatnonzero(np.bincount(shifted))
            place = np.empty(largest - least + 1, np.int64)
            place[present] = np.arange(len(present))
            return present + least, place[shifted]
    return np.unique(values, return_inverse=True)


def usable(samples: Array) -> bool:
    """Whether all values are finite, and their squares, too.

    A sum of squares proves it at a fraction of the cost of looking at each value.
    """
    largest = LARGEST_SUM * np.finfo(str(samples.dtype).removeprefix("torch.")).max
    if is_torch(samples):
        return bool(sys.modules["torch"].linalg.vector_norm(samples) < largest**0.5)
    with np.errstate(over="ignore", invalid="ignore"):
        flat = samples.reshape(-1)
        return bool(np.dot(flat, flat) < largest)


def unusable(samples: Array) -> KldaError:
    """Return the error that says which value can't be used."""
    values = samples.cpu().numpy() if is_torch(samples) else samples
    strange = np.argwhere(~np.isfinite(values))
    if len(strange):
        row, column = strange[0]
        kind = "NaN" if np.isnan(values[row, column]) else "infinity (inf)"
        return KldaError(
            f"X contains {kind} (row {row}, column {column}); remove such samples or fill the "
            "values."
        )
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    return KldaError(
        f"X contains {values[row, column]:g} (row {row}, column {column}), whose square is too "
        f"large for {values.dtype.name}; scale the features, or use dtype='float64'."
    )


def check_labels(values: Sequence[Any]) -> None:
    """Raise if labels, as they were given, are not all strings or all numbers."""
    missing = first_missing(values)
    if missing is not None:
        raise KldaError(
            f"y has no label for sample {missing} (Input y contains NaN or None); leave such "
            "samples out."
        )
    kinds = {type(value).__name__ for value in values}
    if not (kinds <= {"str"} or kinds <= {"int", "bool"} or kinds <= {"int", "float"}):
        raise KldaError(
            f"y has labels of unknown type: {', '.join(sorted(kinds))}; "
            "use strings only or integers only."
        )
    check_lengths(values, "y")


def checked_label(parameter: str, label: Any) -> Label:
    """Return a label as a plain string or integer; raise if it is neither."""
    label = plain(label)
    if not isinstance(label, str | int) or isinstance(label, bool):
        raise KldaError(f"{parameter}={label!r} can't be a label; give a string or an integer.")
    check_lengths([label], parameter)
    return label


def check_number(name: str, value: Any, *, kind: type = numbers.Real) -> None:
    """Raise if a parameter is not a positive number."""
    usable = isinstance(value, kind) and not isinstance(value, bool)
    if not usable or not np.isfinite(value) or value <= 0:
        what = "a positive integer" if kind is numbers.Integral else "a number above 0"
        raise KldaError(f"{name}={value!r} can't be used; give {what}.")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise if a parameter is not one of some words."""
    if value not in choices:
        raise KldaError(
            f"{name}={value!r} is not known; use one of {', '.join(map(repr, choices))}."
        )
