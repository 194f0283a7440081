"""Labels as users give them, made plain: texts or integers that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from klda.backend import is_torch
from klda.errors import KldaError

Label = str | int
MAX_LABEL_LENGTH = 200  # characters; an array of labels gives each as many as the longest has


def plain(label: Any) -> Any:
    """Return a NumPy scalar as the Python value it stands for, anything else as it is.

    Parameters
    ----------
    label : object
        A label or an id.

    Returns
    -------
    object
        For instance ``3`` for ``np.int64(3)``.
    """
    return label.item() if isinstance(label, np.generic) else label


def listed(labels: Any) -> list[Any]:
    """Return one label, or several, as a list of plain ones.

    Parameters
    ----------
    labels : label, or iterable of labels
        NumPy scalars and arrays included.

    Returns
    -------
    list
        Texts and integers.
    """
    if isinstance(labels, np.ndarray | np.generic):
        return np.ravel(labels).tolist()
    one = isinstance(labels, str | int) or not hasattr(labels, "__iter__")
    return [labels] if one else [plain(label) for label in labels]


def plain_labels(labels: Any) -> Sequence[Label] | np.ndarray:
    """Return labels to be learned, plain and in memory of their own.

    Parameters
    ----------
    labels : sequence
        A list, an array, a tensor, or a column of a table.

    Returns
    -------
    list or ndarray
        The same labels, whatever happens to what was given.

    Raises
    ------
    KldaError
        If it is no list, a label is missing (None, NaN), or texts and numbers are mixed.
    """
    if is_torch(labels):
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, str | bytes) or not hasattr(labels, "__len__"):
        raise KldaError(f"labels={labels!r} is not a list; give one label for each input.")
    if not isinstance(labels, list | tuple):
        labels = np.array(labels)
        if labels.ndim != 1 or labels.dtype.kind not in "OTf":
            return labels
        labels = labels.tolist()
    if set(map(type, labels)) in ({str}, {int}):
        check_lengths(labels)
        return list(labels)
    values = [plain(label) for label in labels]
    row = first_missing(values)
    if row is not None:
        raise KldaError(
            f"labels[{row}] is {values[row]!r}: it is missing. Give it a label, or leave it out."
        )
    _check_one_kind(values)
    check_lengths(values)
    return values


def check_lengths(labels: Iterable[Any], parameter: str = "labels") -> None:
    """Raise if a label is too long to be the name of a class.

    Parameters
    ----------
    labels : iterable
        Texts and others, which have no length.
    parameter : str
        What they were given as.
    """
    longest = max((len(label) for label in labels if isinstance(label, str)), default=0)
    if longest > MAX_LABEL_LENGTH:
        raise KldaError(
            f"{parameter} has a label of {longest:,} characters; give labels of at most "
            f"{MAX_LABEL_LENGTH} characters."
        )


def first_missing(values: Sequence[Any]) -> int | None:
    """Return the position of the first value that is no label: None, NaN, pandas' NA."""
    return next((i for i, value in enumerate(values) if _is_missing(value)), None)


def _is_missing(value: Any) -> bool:
    # pandas has a value of its own, which is neither equal nor unequal to itself.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or _is_nan(value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


def _check_one_kind(values: list[Any]) -> None:
    texts = [isinstance(value, str) for value in values]
    if any(texts) and not all(texts):
        row = texts.index(not texts[0])
        raise KldaError(
            f"labels has {values[0]!r} and labels[{row}]={values[row]!r}: use texts only, or "
            "integers only."
        )
