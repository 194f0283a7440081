"""Which columns of a table hold the input and the label: by their names, or by what is in them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from klda.checks import is_blank
from klda.data.batch import Contents, Layout
from klda.data.damage import TableError

# The usual names, the likeliest first, as `_spelt` writes them.
TEXTS = (
    *("text", "texts", "utterance", "sentence", "query", "question", "message", "description"),
    *("body", "content", "comment", "input", "phrase", "document", "details", "feedback", "review"),
    *("snippet",),
)
# They go with a text, or stand for one.
TITLES = ("subject", "title", "summary", "short description", "betreff")
SURE_LABELS = ("label text", "label name", "label", "labels", "intent", "class", "target")
LABELS = (  # of those that are not sure, the first that has several classes
    *(*SURE_LABELS, "category", "queue", "topic", "team", "tag", "department", "group", "type"),
    *("component", "components", "component s", "categories", "tags", "intents", "sentiment", "y"),
)
VAGUE = ("group", "type")  # of whatever the words before them say, as in author_type
IMAGES = ("image", "images", "path", "file", "filename", "image path", "file name")
FEATURES = ("features", "feature", "embedding", "embeddings", "vector", "x")
INPUTS = {"text": (*TEXTS, *TITLES), "image": IMAGES, "features": FEATURES}  # by modality

MOST_LISTED = 30  # columns in a message
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
    return " ".join(re.sub(r"[_\-./()\[\]]", " ", name).split()).casefold()


def count_titles(rows: Sequence[Any]) -> int:
    """Count the rows above a table and its header: titles, and names of groups of columns.

    A title is alone in its row; groups are named above some columns only.
    """
    table = [[cell for cell in row if cell.strip()] for row in rows if not isinstance(row, str)]
    found = 0
    for cells, row, below in zip(rows, table, table[1:], strict=False):
        is_group = len(cells) > len(row) < len(below) and (
            _names_both(below) or (_names_column(below) and not _names_column(row))
        )
        if not is_group and (_names_column(row) or len(row) > 1):
            break
        found += 1
    if found and (several := len(table[found])) >= 2:
        is_row = several == 2 and len(rows[found - 1]) == 2  # a text without a label
        return 0 if is_row else found
    return 0


def _names_column(cells: Sequence[str]) -> bool:
    return guess(cells, (*INPUTS["text"], *LABELS)) is not None


def _names_both(cells: Iterable[str]) -> bool:
    """Whether cells are the usual names of a column of texts and one of labels."""
    spelt = set(map(_spelt, cells))
    return not spelt.isdisjoint(LABELS) and not spelt.isdisjoint(INPUTS["text"])


def has_header(rows: Sequence[Sequence[str]], layout: Layout) -> bool:
    """Tell whether the first of some rows names the columns."""
    cells = [cell.strip() for cell in rows[0]]
    if any(_find(cells, asked) for asked in (*layout.inputs, layout.label) if asked):
        return True
    if _names_both(cells):
        return True
    below = zip(*(row for row in rows[1:] if len(row) == len(cells)), strict=True)
    votes = sum(map(_vote, cells, below)) if len(rows) > 1 else 0
    votes += sum(_spelt(cell).rpartition(" ")[2] in (*INPUTS["text"], *LABELS) for cell in cells)
    # Where nothing tells, a row is not lost in a short table.
    return votes > 0 or (votes == 0 and len(cells) > 2)


def _vote(cell: str, below: Sequence[str]) -> int:
    """Say how much a cell looks like the name (2) or a part (-2) of the column below it."""
    if not cell:
        return 0
    if cell in map(str.strip, below):
        return -2  # a class comes again
    if _classes(below) and len(cell) > max(map(len, below)):
        return 2  # longer than any class, and none of them
    if _END.search(cell):
        return -2  # a name does not end like a sentence
    if _mostly(_CODE.fullmatch, below):
        return -2 if _CODE.fullmatch(cell) else 2
    if _mostly(_PROSE.search, below):
        return 1 if len(cell) < sum(map(len, below)) / len(below) / 2 else -1
    return 0


def choose(contents: Contents, layout: Layout, modality: str, labels: bool, where: str) -> Layout:
    """Return the columns of the inputs and, with `labels`, of the labels; others are None.

    Those that the user asks for count. The rules for the others, each for what is still missing:

    1. The column with a usual name, as in `TEXTS` and `LABELS`.
    2. In a table of two columns, the one that is left.
    3. For texts, what is in the columns: one of long texts, one of a few classes; then 2 again.

    tests/data/exports.py has the files that they were made for. Without any one of these rules, or
    a condition in them, one of those files or a case of tests/data/test_columns.py is read wrongly.
    """
    names = contents.names
    inputs = tuple(_asked(names, name, where) for name in layout.inputs)
    label = None if layout.label is None else _asked(names, layout.label, where)
    if label in inputs and labels:
        raise TableError(
            f"{where}: the column {label!r} can't hold both the {modality} and the label; its "
            f"columns are: {listed(names)}. Name two columns."
        )
    inputs = inputs or _guessed_inputs(contents, modality, label)
    label = label or _guessed(contents, [name for name in names if name not in inputs], LABELS)
    inputs, label = _other_of_two(contents, inputs, label)
    if modality == "text":
        if layout.label is None and label and _says_nothing(contents, label):
            label = _by_content(contents, inputs, None)[1] or label
        inputs, label = _by_content(contents, inputs, label)
        inputs, label = _other_of_two(contents, inputs, label)
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
        raise TableError(f"{where} has no column {asked!r}; its columns are: {listed(names)}.")
    return found


def _find(names: Sequence[str], asked: str) -> str | None:
    if asked in names:
        return asked
    spelt = asked.strip().casefold()
    return next((name for name in names if name.strip().casefold() == spelt), None)


def _not_found(where: str, names: Sequence[str], what: str, usual: Sequence[str]) -> TableError:
    examples = [name for name in usual if " " not in name][:4]
    return TableError(
        f"{where}: can't tell which column holds the {what}; its columns are: {listed(names)}. "
        f"Name the {what} column. Names such as {', '.join(examples)} are found without it.",
        "label" if usual is LABELS else "input",
    )


def _guessed(contents: Contents, names: Sequence[str], usual: Sequence[str]) -> str | None:
    """Return the column with the first of some usual names; one that tells nothing comes last."""
    left, found, tells = list(names), None, -1
    while tells < 2 and (name := guess(left, usual)):
        cells = contents.head([name]).get(name, "??")
        values = {str(cell) for cell in cells if not is_blank(cell)}
        if (now := 2 if values and _spelt(name) in SURE_LABELS else min(len(values), 2)) > tells:
            found, tells = name, now
        left.remove(name)
    return found


def _says_nothing(contents: Contents, name: str) -> bool:
    """Whether a column is the type or group of something, and always the same."""
    cells = {str(cell) for cell in contents.head([name]).get(name, ()) if not is_blank(cell)}
    before, _, last = _spelt(name).rpartition(" ")
    return bool(before) and last in VAGUE and len(cells) < 2


def _guessed_inputs(contents: Contents, modality: str, label: str | None) -> tuple[str, ...]:
    """Return the columns whose names say that they hold inputs."""
    if modality == "features" and contents.features:
        return tuple(name for name in contents.features if name != label)
    names = [name for name in contents.names if name != label]
    if modality != "text":
        return tuple(filter(None, [guess(names, INPUTS[modality])]))
    title, text = _guessed(contents, names, TITLES), _guessed(contents, names, TEXTS)
    if title and not text:
        head = _head(contents, [name for name in names if guess([name], LABELS) is None])
        text = _longest(head, 2 * _length(head.get(title, ())))
    return tuple(dict.fromkeys(name for name in (title, text) if name))


def _other_of_two(
    contents: Contents, inputs: tuple[str, ...], label: str | None
) -> tuple[tuple[str, ...], str | None]:
    """Complete a choice in a table of two columns, unless what is left only numbers the rows."""
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
    head = _head(contents, contents.names)
    if not inputs and (name := _longest({name: head[name] for name in head if name != label})):
        inputs = (name,)
    classes = [name for name, cells in head.items() if name not in inputs and _classes(cells)]
    if label is None and len(classes) == 1:
        label = classes[0]
    if contents.header is False and len(head) == 2 and not (inputs and label):
        # Nobody named these columns: the texts come first, unless classes do.
        first, second = head
        inputs, label = ((second,), first) if first == label else ((first,), second)
    return inputs, label


def _head(contents: Contents, names: Sequence[str]) -> dict[str, list[str]]:
    """Return the first cells of columns, but for the blank ones."""
    return {
        name: [str(cell) for cell in cells if not is_blank(cell)]
        for name, cells in contents.head(names).items()
    }


def _longest(head: Mapping[str, Sequence[str]], than: float = 0.0) -> str | None:
    """Return the column of the longest texts, if they are longer than so many characters."""
    lengths = {
        name: _length(cells)
        for name, cells in head.items()
        if _mostly(_PROSE.search, cells) and not _repeats(cells)
    }
    longest = max(lengths, key=lengths.__getitem__, default=None)
    return longest if longest is not None and lengths[longest] > than else None


def _length(cells: Collection[str]) -> float:
    return sum(map(len, cells)) / max(1, len(cells))


def _mostly(is_one: Callable[[str], Any], cells: Collection[str]) -> bool:
    return sum(1 for cell in cells if is_one(cell)) > len(cells) / 2


def _repeats(cells: Collection[str]) -> bool:
    return len(cells) > 3 and len(set(cells)) <= len(cells) / 2


def _classes(cells: Collection[str]) -> bool:
    short = all(len(cell) <= LONGEST_NAME for cell in cells)
    several = len(set(cells)) > 1
    return short and several and _repeats(cells) and not _mostly(_CODE.fullmatch, cells)


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


def listed(names: Sequence[str]) -> str:
    """Return the names of columns for a message."""
    more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
    return ", ".join(names[:MOST_LISTED]) + more


def described(layout: Layout) -> str:
    """Return a choice in words, as ``"texts from Subject and Body, labels from Queue"``."""
    words = f"texts from {' and '.join(map(repr, layout.inputs))}"
    return words if layout.label is None else f"{words}, labels from {layout.label!r}"
