"""Labels: checked where they come in, then plain strings or integers that JSON can hold."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np

from klda.checks import is_missing
from klda.errors import KldaError

Label = str | int
CLOSE = 0.8  # similarity of names that are probably meant as one; 1 is the same
ALIKE = 0.9  # similarity of names that look like one class written in two ways
MOST_COMPARED = 50_000  # pairs of names; beyond, only spelling counts: case, underscores, spaces
MAX_LABEL_LENGTH = 200  # characters; an array of labels gives each as many as the longest has
# Ends a line, controls a terminal, gets lost in an array of NumPy, or can't be written as UTF-8.
_NOT_VISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def as_python(label: Any) -> Any:
    """Return a NumPy scalar as the Python value it stands for, anything else as it is."""
    return label.item() if isinstance(label, np.generic) else label


def as_list(labels: Any) -> list[Any]:
    """Return one label, or several in whatever kind of sequence, as a list of plain ones."""
    if isinstance(labels, np.ndarray | np.generic):
        return np.ravel(labels).tolist()
    one = isinstance(labels, str | int) or not hasattr(labels, "__iter__")
    return [labels] if one else [as_python(label) for label in labels]


def plain_labels(labels: Any, parameter: str = "labels") -> Sequence[Label] | np.ndarray:
    """Return labels to be learned, plain and in memory of their own, as far as they can be checked.

    They may come as a list, an array, a tensor, or a column of a table.
    """
    if hasattr(labels, "detach"):  # a torch tensor
        labels = labels.detach().cpu().numpy()
    several = any(hasattr(labels, name) for name in ("__len__", "__array__", "__iter__"))
    if isinstance(labels, str | bytes) or not several:
        raise KldaError(f"{parameter}={labels!r} is not a list; give one label for each input.")
    if isinstance(labels, Iterator):
        labels = list(labels)
    if not isinstance(labels, list | tuple):
        labels = np.array(labels)
        is_column = labels.dtype.kind == "O" and labels.shape[1:] == (1,)
        if labels.dtype.kind not in "OTf" or (labels.ndim != 1 and not is_column):
            return labels
        labels = labels.ravel().tolist()
    values = [as_python(label) for label in labels]
    check_labels(values, parameter)
    return values


def label_list(labels: Any, parameter: str = "labels") -> list[Label]:
    """Return labels to be learned as a list; raise unless each can name a class."""
    values = np.asarray(plain_labels(labels, parameter))
    values = values.ravel() if values.shape[1:] == (1,) else values  # a column
    if values.ndim != 1 or (values.dtype.kind == "f" and (values % 1).any()):
        raise KldaError(
            f"{parameter} has {values.dtype} values of shape {values.shape}; give one label for "
            "each input, strings only or integers only."
        )
    found: list[Label] = values.tolist()
    check_labels(found, parameter)
    return found


def check_labels(values: Sequence[Any], parameter: str) -> None:
    """Raise unless plain labels are all strings or all numbers, and each can name a class."""
    kinds = {type(value).__name__ for value in values}
    if not kinds <= {"str"} and not kinds <= {"int"}:
        for row, value in enumerate(values):
            if is_missing(value):
                raise KldaError(
                    f"{parameter}[{row}] is {value!r}: it is missing (Input {parameter} contains "
                    "NaN or None). Give it a label, or leave it out."
                )
    if not (kinds <= {"str"} or kinds <= {"int", "bool"} or kinds <= {"int", "float"}):
        row = next((i for i, v in enumerate(values) if type(v) is not type(values[0])), 0)
        raise KldaError(
            f"{parameter} has labels of unknown type: {', '.join(sorted(kinds))} "
            f"({parameter}[{row}] is {values[row]!r}); use strings only or integers only."
        )
    check_names(values, parameter)


def check_one_each(inputs: Sized, labels: Sized, parameter: str = "inputs") -> None:
    """Raise if there are not as many labels as inputs."""
    if len(labels) != len(inputs):
        raise KldaError(
            f"{parameter} has {len(inputs)} samples and labels has {len(labels)}; give one label "
            "for each input."
        )


def check_names(labels: Iterable[Any], parameter: str) -> None:
    """Raise if a label can't be the name of a class; see `check_name`."""
    for label in dict.fromkeys(labels):
        if isinstance(label, str):
            try:
                check_name(label)
            except KldaError as error:
                raise KldaError(f"{parameter}: {error}") from None


def check_name(label: str) -> None:
    """Raise if a label can't be the name of a class: empty, too long, or not visible."""
    if not label.strip():
        raise KldaError("the label is empty.")
    if len(label) > MAX_LABEL_LENGTH:
        wrong = f"{label[:20]!r}... has {len(label):,} characters"
    elif found := _NOT_VISIBLE.search(label):
        wrong = f"{label!r} contains {found[0]!r}"
    else:
        return
    raise KldaError(
        f"the label {wrong}. A label is one line of visible text, of at most {MAX_LABEL_LENGTH} "
        "characters."
    )


def checked_label(parameter: str, label: Any) -> Label:
    """Return a label as a plain string or integer; raise if it is neither, or can't be a name."""
    label = as_python(label)
    if not isinstance(label, str | int) or isinstance(label, bool):
        raise KldaError(f"{parameter}={label!r} can't be a label; give a string or an integer.")
    check_names([label], parameter)
    return label


def group_labels(values: np.ndarray) -> tuple[list[Label], np.ndarray]:
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


def spelt(label: Label) -> str:
    """Return a label without what people often spell differently: case, underscores, spaces."""
    return " ".join(str(label).replace("_", " ").split()).casefold()


def close_names(
    label: Label, classes: Collection[Label], most: int = 1, cutoff: float = CLOSE
) -> list[Label]:
    """Return the classes whose names are much like a label, the most similar first."""
    names = {spelt(name): name for name in classes}
    found = difflib.get_close_matches(spelt(label), names, n=most, cutoff=cutoff)
    return [names[name] for name in found]


def similar_names(labels: Iterable[Label], classes: Collection[Label]) -> dict[Label, Label]:
    """Return labels that look like a class written differently, each with that class.

    Labels that are classes are left out, and so are names that differ in their digits. Of labels
    that look like each other, the first counts as the class.
    """
    known = {spelt(name): name for name in classes if isinstance(name, str)}
    new = [name for name in dict.fromkeys(labels) if isinstance(name, str) and name not in classes]
    few = len(new) * (len(known) + len(new)) <= MOST_COMPARED
    found: dict[Label, Label] = {}
    for label in new:
        name = spelt(label)
        close = difflib.get_close_matches(name, known, n=3, cutoff=ALIKE) if few else ()
        alike = [one for one in close if _digits(one) == _digits(name)]
        if name in known:
            found[label] = known[name]
        elif alike:
            found[label] = known[alike[0]]
        else:
            known[name] = label
    return found


def _digits(name: str) -> list[str]:
    return re.findall(r"\d+", name)


class CaseFolder:
    """Writes labels as the classes that are known, where they differ in upper and lower case.

    Of labels that are new, the first way to write them counts.
    """

    def __init__(self, classes: Iterable[Label]) -> None:
        self._known = {str(name).casefold(): name for name in classes}

    def __call__(self, labels: Iterable[Label]) -> list[Label]:
        """Return labels as they are to be learned."""
        return [
            self._known.setdefault(label.casefold(), label) if isinstance(label, str) else label
            for label in map(as_python, labels)
        ]


def closest(label: Label, classes: Collection[Label], cutoff: float = CLOSE) -> Label | None:
    """Return the class whose name is most like a label; None if none is much like it."""
    return next(iter(close_names(label, classes, cutoff=cutoff)), None)
