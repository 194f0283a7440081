"""Labels: checked where they come in, then plain strings or integers that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

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
    if hasattr(labels, "detach"):  # a torch tensor
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


def check_labels(values: Sequence[Any], parameter: str = "y") -> None:
    """Raise if labels, as they were given, are not all strings or all numbers.

    Parameters
    ----------
    values : sequence
        Plain labels.
    parameter : str
        What they were given as.
    """
    missing = first_missing(values)
    if missing is not None:
        raise KldaError(
            f"{parameter} has no label for sample {missing} (Input {parameter} contains NaN or "
            "None); leave such samples out."
        )
    kinds = {type(value).__name__ for value in values}
    if not (kinds <= {"str"} or kinds <= {"int", "bool"} or kinds <= {"int", "float"}):
        raise KldaError(
            f"{parameter} has labels of unknown type: {', '.join(sorted(kinds))}; "
            "use strings only or integers only."
        )


def checked_label(parameter: str, label: Any) -> Label:
    """Return a label as a plain string or integer.

    Parameters
    ----------
    parameter : str
        What it was given as.
    label : object
        The label.

    Raises
    ------
    KldaError
        If it is neither, or too long.
    """
    label = plain(label)
    if not isinstance(label, str | int) or isinstance(label, bool):
        raise KldaError(f"{parameter}={label!r} can't be a label; give a string or an integer.")
    check_lengths([label], parameter)
    return label


def grouped(values: np.ndarray) -> tuple[list[Label], np.ndarray]:
    """Return the distinct labels, sorted, and the position of each row's label among them."""
    if values.dtype.kind == "i":
        least, largest = int(values.min()), int(values.max())
        if largest - least < 4 * len(values):  # counted, not sorted: a GPU waits for this
            shifted = values.astype(np.int64) - least
            present = np.flatnonzero(np.bincount(shifted))
            place = np.empty(largest - least + 1, np.int64)
            place[present] = np.arange(len(present))
            return list((present + least).tolist()), place[shifted]
    distinct, groups = np.unique(values, return_inverse=True)
    return list(distinct.tolist()), groups
