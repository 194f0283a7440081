"""Labels: checked where they come in, then plain strings or integers that JSON can hold."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from klda.checks import is_missing
from klda.errors import KldaError

Label = str | int
CLOSE = 0.8  # similarity of names that are probably meant as one; 1 is the same
ALIKE = 0.9  # similarity of names that look like one class written in two ways
MOST_COMPARED = 50_000  # pairs of names; beyond, only spelling counts: case, underscores, spaces
# What is answered for inputs unlike anything learned, where classes are strings or integers. -1 is
# what scikit-learn's outlier detectors say.
UNKNOWN = "unknown"
UNKNOWN_INTEGER = -1
LARGEST_INTEGER = 2.0**53  # beyond, floating-point numbers skip integers
MAX_LABEL_LENGTH = 200  # characters; an array of labels gives each as many as the longest has
# Ends a line, controls a terminal, gets lost in an array of NumPy, or can't be written as UTF-8.
# Also what turns the direction of text around, on a terminal and on the page.
_NOT_VISIBLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_NO_WIDTH = "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff"


class SimilarClassWarning(UserWarning):
    """A new class has a name that looks like another's: probably both are meant as one."""


def as_python(label: Any) -> Any:
    """Return a NumPy scalar as the Python value it stands for, anything else as it is."""
    return label.item() if isinstance(label, np.generic) else label


def as_list(labels: Any) -> list[Any]:
    """Return one label, or several in whatever kind of sequence, as a list of plain ones."""
    if isinstance(labels, np.ndarray | np.generic):
        return np.ravel(labels).tolist()
    one = isinstance(labels, str | int) or not hasattr(labels, "__iter__")
    return [labels] if one else [as_python(label) for label in labels]


def unknown_like(label: Label) -> Label:
    """Return what is answered for unknown inputs, beside a label."""
    return UNKNOWN if isinstance(label, str) else UNKNOWN_INTEGER


def plain_labels(labels: Any, parameter: str = "labels") -> list[Any] | np.ndarray:
    """Return labels to be learned, plain and in memory of their own: a list, or an array.

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
            if labels.dtype.kind == "U":
                check_names(labels.ravel().tolist(), parameter)
            return labels
        labels = labels.ravel().tolist()
    values = [as_python(label) for label in labels]
    check_labels(values, parameter)
    return values


def label_list(labels: Any, parameter: str = "labels") -> list[Label]:
    """Return labels to be learned as a list; raise unless each can name a class."""
    plain = plain_labels(labels, parameter)
    if isinstance(plain, list) and {str} >= set(map(type, plain)):
        return plain
    values = np.asarray(plain)
    values = values.ravel() if values.shape[1:] == (1,) else values  # a column
    if values.ndim != 1 or (values.dtype.kind == "f" and (values % 1).any()):
        raise KldaError(
            f"{parameter} has {values.dtype} values of shape {values.shape}; give one label for "
            "each input, strings only or integers only."
        )
    if values.dtype.kind in "bfuO" and len(values) and not isinstance(values[0], str):
        if max(map(abs, values.tolist())) > LARGEST_INTEGER:  # whole numbers, all of them
            raise KldaError(
                f"{parameter} has numbers as large as {max(values, key=abs)}; give integers below "
                "2^53, or write numbers as strings."
            )
        values = values.astype(np.int64)
    found: list[Label] = values.tolist()
    if values.dtype.kind not in "biufU":
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
        items = "1 item" if len(inputs) == 1 else f"{len(inputs)} items"
        raise KldaError(
            f"{parameter} has {items}, labels has {len(labels)}; give one label for each item."
        )


def check_names(labels: Iterable[Any], parameter: str) -> None:
    """Raise if a label can't be the name of a class; see `check_name`."""
    for label in dict.fromkeys(labels):
        if isinstance(label, str):
            try:
                check_name(label)
            except KldaError as error:
                raise KldaError(f"{parameter}: {error}") from None


def as_name(text: str) -> str:
    """Return a text as a name, without what can't be seen of it: blanks around it, marks, ...

    A letter and its accent are one character, which they are not in files of every system.
    """
    return unicodedata.normalize("NFC", text).strip().strip(_NO_WIDTH).strip()


def check_name(label: str) -> None:
    """Raise if a label can't be the name of a class: empty, too long, or not visible."""
    if not as_name(label):
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


def check_label_kind(
    classes: Iterable[Label], labels: Iterable[Label], parameter: str = "y"
) -> None:
    """Raise if labels are strings where the known ones are integers, or the other way round."""
    known, new = next(iter(classes), None), next(iter(labels), None)
    if known is not None and new is not None and isinstance(known, str) != isinstance(new, str):
        is_string = isinstance(new, str)
        given, kind = ("a string", "integers") if is_string else ("an integer", "strings")
        raise KldaError(
            f"{parameter}: the label {new!r} is {given}, but the known classes are {kind}, "
            f"such as {known!r}; use {kind}."
        )


def check_labels_known(
    classes: Iterable[Label], labels: Sequence[Any], parameter: str
) -> list[Label]:
    """Return plain labels; raise if one is none of the known ones, which are sorted."""
    known, plain = dict.fromkeys(classes), [as_python(label) for label in labels]
    for label in plain:
        is_label = isinstance(label, str | int) and not isinstance(label, bool)
        if not known:
            raise KldaError(f"{parameter}={label!r}: there are no classes yet.")
        if not is_label or label not in known:
            some = ", ".join(map(repr, list(known)[:5]))
            more = f" and {len(known) - 5} more" if len(known) > 5 else ""
            close = closest(label, known) if isinstance(label, str) else None
            meant = "" if close is None else f" Did you mean {close!r}?"
            raise KldaError(
                f"{parameter}={label!r}: there is no such class.{meant} Known classes: "
                f"{some}{more}."
            )
    return plain


def check_removable(counts: Mapping[Label, int], labels: Sequence[Label]) -> None:
    """Raise if more samples are to be removed than were learned."""
    check_labels_known(counts, labels, "y")
    for label, n in Counter(labels).items():
        if n > counts[label]:
            raise KldaError(
                f"There are {n} samples of class {label!r} to remove, but only {counts[label]} "
                "were learned; give at most as many."
            )


def checked_name(
    classes: Collection[Label], old: Any, new: Any, *, merge: bool | None = None
) -> tuple[Label, Label]:
    """Return a class and its new name, both plain; raise if it can't have that one.

    It may be the name of another class only to `merge` the two; None where that can't be asked for.
    """
    [old] = check_labels_known(classes, [old], "old")
    new = checked_label("new", new)
    check_label_kind(classes, [new], "new")
    if new == old and merge:
        raise KldaError(f"old and new are both {new!r}: name two classes to merge.")
    if new in classes and not merge:
        joined = "" if merge is None else ", or make one class of the two with merge=True"
        raise KldaError(f"new={new!r} is already a class; choose another name{joined}.")
    return old, new


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
    """Return a label without what people often spell differently: case, underscores, hyphens."""
    words = re.sub(r"(?<=\w)-(?=\w)", " ", as_name(str(label))).replace("_", " ")
    return " ".join(words.split()).casefold()


def close_names(
    label: Label, classes: Iterable[Label], most: int = 1, cutoff: float = CLOSE
) -> list[Label]:
    """Return the classes whose names are much like a label, the most similar first."""
    names = {spelt(name): name for name in classes}
    found = difflib.get_close_matches(spelt(label), names, n=most, cutoff=cutoff)
    return [names[name] for name in found]


def closest(label: Label, classes: Iterable[Label]) -> Label | None:
    """Return the class whose name is most like a label; None if none is much like it."""
    return next(iter(close_names(label, classes)), None)


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
        close = close_names(label, known.values(), 3, ALIKE) if few else ()
        alike = [one for one in close if _digits(one) == _digits(label)]
        if same := [known[spelt(label)]] if spelt(label) in known else alike:
            found[label] = same[0]
        else:
            known[spelt(label)] = label
    return found


def did_you_mean(similar: Mapping[Label, Label]) -> str:
    """Say which new classes look like others, as `similar_names` found, and what to do about it."""
    some = [f"{new!r} is a new class. Did you mean {old!r}?" for new, old in similar.items()]
    return (
        f"{' '.join(some[:3])} A rename with merge=True (klda rename --merge) makes one class of "
        "two, and an undo takes the change back."
    )


def _digits(name: Label) -> list[str]:
    return re.findall(r"\d+", str(name))


class CaseFolder:
    """Writes a label as the class that differs from it in case only, or else in lower case."""

    def __init__(self, classes: Collection[Label]) -> None:
        self._classes = frozenset(classes)
        self._known = {str(name).casefold(): name for name in classes}

    def __call__(self, label: Label) -> Label:
        """Return a label as it is to be learned."""
        if label in self._classes or not isinstance(label, str):
            return label
        return self._known.get(label.casefold(), label.lower())
