"""Which columns of a table hold the input and the label: by their names, or by what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from klda.checks import is_blank
from klda.data.batch import Contents, Layout, TableError

# The usual names, the likeliest first, as `_spelt` writes them.
TEXTS = (
    *("text", "texts", "utterance", "sentence", "query", "question", "message", "description"),
    *("body", "content", "comment", "input", "phrase", "document", "details", "feedback", "review"),
)
TITLES = ("subject", "title", "summary")  # they go with a text, or stand for one
LABELS = (
    *("label", "labels", "intent", "category", "class", "queue", "topic", "team", "target"),
    *("tag", "department", "group", "type", "tags", "y"),
)
IMAGES = ("image", "images", "path", "file", "filename", "image path", "file name")
FEATURES = ("features", "feature", "embedding", "embeddings", "vector", "x")
INPUTS = {"text": (*TEXTS, *TITLES), "image": IMAGES, "features": FEATURES}  # by modality

LONGEST_NAME = 60  # characters of a class, or of a column
_PROSE = re.compile(r"[^\W\d_]\S*\s+\S*[^\W\d_]")  # two words at least
_END = re.compile(r"[?!.。？！]$")
_CODE = re.compile(r"[\d\s:.,/+TZ-]+|\S+@\S+|\w+://\S+")  # a number, a date, an address


def guess(names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the column with the first of some usual names: as it is, or as its last word."""
    exact = {_spelt(name): name for name in reversed(names)}
    last = {_spelt(name).rpartition(" ")[2]: name for name in reversed(names)}
    for found in (exact, last):
        if name := next((found[one] for one in usual if one in found), None):
            return name
    return None


def _spelt(name: str) -> str:
    return " ".join(re.sub(r"[_\-./]", " ", name).split()).casefold()


def is_title(cells: Any, below: Any) -> bool:
    """Whether a row is the title of a report: one cell, which names no column, above several."""
    if isinstance(cells, str) or isinstance(below, str):
        return False
    several = sum(bool(cell.strip()) for cell in below)
    filled = [cell for cell in cells if cell.strip()]
    if len(filled) != 1 or several < 2 or (several == 2 and len(cells) == 2):
        return False  # a text and no label is no title
    return guess(filled, (*INPUTS["text"], *LABELS)) is None


def has_header(rows: Sequence[Sequence[str]], layout: Layout) -> bool:
    """Tell whether the first of some rows names the columns."""
    cells = [cell.strip() for cell in rows[0]]
    if any(_find(cells, asked) for asked in (*layout.inputs, layout.label) if asked):
        return True
    spelt = [_spelt(cell) for cell in cells]
    if any(name in LABELS for name in spelt) and any(name in INPUTS["text"] for name in spelt):
        return True
    below = zip(*(row for row in rows[1:] if len(row) == len(cells)), strict=True)
    votes = sum(map(_vote, cells, below)) if len(rows) > 1 else 0
    votes += sum(name.rpartition(" ")[2] in (*INPUTS["text"], *LABELS) for name in spelt)
    # Where nothing tells, a row is not lost in a short table.
    return votes > 0 or (votes == 0 and len(cells) > 2)


def _vote(cell: str, below: Sequence[str]) -> int:
    """Say how much a cell looks like the name (2) or a part (-2) of the column below it."""
    if not cell:
        return 0
    if cell in map(str.strip, below) or _END.search(cell):
        return -2  # a class comes again, and a name does not end like a sentence
    if _mostly(_CODE.fullmatch, below):
        return -2 if _CODE.fullmatch(cell) else 2
    if _mostly(_PROSE.search, below):
        return 1 if len(cell) < sum(map(len, below)) / len(below) / 2 else -1
    return 0


def choose(contents: Contents, layout: Layout, modality: str, labels: bool, where: str) -> Layout:
    """Return the columns of the inputs and, with `labels`, of the labels; others are None."""
    names = contents.names
    inputs = tuple(_asked(names, name, where) for name in layout.inputs)
    label = None if layout.label is None else _asked(names, layout.label, where)
    if label in inputs and labels:
        raise TableError(
            f"{where}: the column {label!r} can't hold both the {modality} and the label; its "
            f"columns are: {', '.join(names)}. Name two columns."
        )
    inputs = inputs or _guessed_inputs(contents, modality, label)
    label = label or _guessed(contents, [name for name in names if name not in inputs], LABELS)
    inputs, label = _completed(contents, inputs, label)
    if modality == "text":
        inputs, label = _completed(contents, *_by_content(contents, inputs, label))
    if len(names) == 1:
        if labels:
            raise TableError(f"{where} has one column and no labels. {contents.labels_hint}")
        inputs = (names[0],)
    if not inputs:
        raise _not_found(where, names, modality, INPUTS[modality])
    if label is None and labels:
        raise _not_found(where, names, "label", LABELS)
    label = label if labels else None
    return layout._replace(input=inputs, label=label, header=contents.header)


def _asked(names: Sequence[str], asked: str, where: str) -> str:
    found = _find(names, asked)
    if found is None:
        raise TableError(f"{where} has no column {asked!r}; its columns are: {', '.join(names)}.")
    return found


def _find(names: Sequence[str], asked: str) -> str | None:
    if asked in names:
        return asked
    spelt = asked.strip().casefold()
    return next((name for name in names if name.strip().casefold() == spelt), None)


def _not_found(where: str, names: Sequence[str], what: str, usual: Sequence[str]) -> TableError:
    return TableError(
        f"{where}: can't tell which column holds the {what}; its columns are: {', '.join(names)}. "
        f"Name the {what} column. Names such as {', '.join(usual[:4])} are found without it."
    )


def _guessed(contents: Contents, names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the column with the first of some usual names; one that is empty comes last."""
    left = list(names)
    while name := guess(left, usual):
        if not all(map(is_blank, contents.head([name]).get(name, "?"))):
            return name
        left.remove(name)
    return guess(names, usual)


def _guessed_inputs(contents: Contents, modality: str, label: str | None) -> tuple[str, ...]:
    """Return the columns whose names say that they hold inputs."""
    if modality == "features" and contents.features:
        return tuple(name for name in contents.features if name != label)
    names = [name for name in contents.names if name != label]
    if modality != "text":
        return tuple(filter(None, [guess(names, INPUTS[modality])]))
    found = _guessed(contents, names, TITLES), _guessed(contents, names, TEXTS)
    return tuple(name for name in found if name)


def _completed(
    contents: Contents, inputs: tuple[str, ...], label: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Complete a choice in a table of two columns, where knowing one is knowing the other."""
    names = contents.names
    if len(names) == 2 and len(inputs) < 2 and bool(inputs) != bool(label):
        (other,) = set(names) - {*inputs, label}
        if not inputs:
            return (other,), label
        if not _numbers_rows(contents.head([other]).get(other, ())):
            return inputs, other
    return inputs, label


def _numbers_rows(cells: Sequence[Any]) -> bool:
    """Whether cells number rows, or say when they were written: such are no classes."""
    texts = [str(cell) for cell in cells if not is_blank(cell)]
    codes = all(map(_CODE.fullmatch, texts))
    return codes and len(texts) > 3 and len(set(texts)) == len(texts)


def _by_content(
    contents: Contents, inputs: tuple[str, ...], label: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Complete a choice by what is in the columns: long texts, and a few classes."""
    if inputs and label:
        return inputs, label
    head = {
        name: [str(cell) for cell in cells if not is_blank(cell)]
        for name, cells in contents.head(contents.names).items()
    }
    if not inputs:
        lengths = {
            name: sum(map(len, cells)) / len(cells)
            for name, cells in head.items()
            if name != label and cells and _mostly(_PROSE.search, cells) and not _repeats(cells)
        }
        inputs = (max(lengths, key=lengths.__getitem__),) if lengths else ()
    classes = [name for name, cells in head.items() if name not in inputs and _classes(cells)]
    if label is None and len(classes) == 1:
        label = classes[0]
    if contents.header is False and len(head) == 2 and not (inputs and label):
        # Nobody named these columns: the texts come first, unless classes do.
        first, second = head
        inputs, label = ((second,), first) if first == label else ((first,), second)
    return inputs, label


def _mostly(is_one: Callable[[str], Any], cells: Collection[str]) -> bool:
    return sum(1 for cell in cells if is_one(cell)) > len(cells) / 2


def _repeats(cells: Collection[str]) -> bool:
    return len(cells) > 3 and len(set(cells)) <= len(cells) / 2


def _classes(cells: Collection[str]) -> bool:
    short = all(len(cell) <= LONGEST_NAME for cell in cells)
    return short and _repeats(cells) and not _mostly(_CODE.fullmatch, cells)


def unique_names(names: Iterable[str]) -> list[str]:
    """Return the names of columns; repeated ones, and those without a name, get numbers."""
    plain = [name.strip() or "column" for name in names]
    seen: dict[str, int] = {}
    unique = []
    for name in plain:
        seen[name] = seen.get(name, 0) + 1
        is_one = plain.count(name) == 1 and name != "column"
        unique.append(name if is_one else f"{name} ({seen[name]})")
    return unique


def described(layout: Layout) -> str:
    """Return a choice in words, as ``"texts from Subject and Body, labels from Queue"``."""
    words = f"texts from {' and '.join(map(repr, layout.inputs))}"
    return words if layout.label is None else f"{words}, labels from {layout.label!r}"
