"""JSON, plain texts, and the training files of fastText and Rasa."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

from klda.data.batch import Contents
from klda.data.columns import LABELS, TEXTS, TITLES, guess, listed
from klda.data.damage import TableError
from klda.data.lines import LONGEST_ROW, TextFile, too_long
from klda.data.records import Row, contents_of, names_in
from klda.errors import require

FASTTEXT = "__label__"
CHUNK = 1 << 16  # characters
_EXPECTED = 'one JSON object per row, such as {"text": "...", "label": "..."}.'
_LIST = re.compile(r'"([^"\\]+)"\s*:\s*(?=\[\s*\{)')  # "tickets": [{...
_BETWEEN = re.compile(r"[\s,]*")
log = logging.getLogger("klda.data")
_ENTITY = re.compile(r"\[([^\]]+)\](\([^)]*\)|\{[^}]*\})")  # [Paris](city), [Paris]{"entity": ...}


def read_lines(file: TextFile) -> Contents:
    """Read texts, one per line; empty lines are skipped."""
    rows = (Row(i, {"text": line.rstrip("\r\n")}, len(line)) for i, line in file if line.strip())
    return contents_of(rows, lambda: file.fraction)


def read_fasttext(file: TextFile) -> Contents:
    """Read lines of a text and its labels, which begin with ``__label__``; several are joined."""

    def rows() -> Iterator[Row]:
        for number, line in file:
            words = line.split()
            labels = [word.removeprefix(FASTTEXT) for word in words if word.startswith(FASTTEXT)]
            text = " ".join(word for word in words if not word.startswith(FASTTEXT))
            if words:
                yield Row(number, {"text": text, "label": ";".join(labels)}, len(line))

    return contents_of(rows(), lambda: file.fraction)


def read_json(file: TextFile, *, lines: bool) -> Contents:
    """Read objects: one per line, or all in one array, which may be in another object."""
    head = file.head
    if head.lstrip().startswith("["):
        rows = _array(file)
    elif lines or _are_lines(head):
        rows = _objects(file)
    elif found := _list_of_rows(head):
        log.info("%s: reads the list %r.", file.name, found[1])
        file.read(found.end())
        rows = _array(file, inside=True)
    else:
        rows = _one_object(file)
    return contents_of(rows, lambda: file.fraction)


def _list_of_rows(head: str) -> re.Match[str] | None:
    """Return where a list of objects begins: the first that have a text and a label, or a text."""
    decoder, end = json.JSONDecoder(), 0
    lists: list[tuple[int, re.Match[str]]] = []
    for found in _LIST.finditer(head):
        if found.start() < end:
            continue  # in an object of another list
        names: list[str] = []
        end = len(head)
        with contextlib.suppress(ValueError, RecursionError):
            first, _ = decoder.raw_decode(head, head.index("{", found.end()))
            names = list(names_in(first))
            _, end = decoder.raw_decode(head, found.end())  # unless it goes on
        has_text = guess(names, (*TEXTS, *TITLES)) is not None
        lists.append((has_text + (has_text and guess(names, LABELS) is not None), found))
    return max(lists, key=lambda own: own[0])[1] if lists else None


def _are_lines(head: str) -> bool:
    """Whether the first line is an object of its own, with others below it."""
    first, _, rest = head.strip().partition("\n")
    try:
        return isinstance(json.loads(first), dict) and bool(rest)
    except (ValueError, RecursionError):
        return False


def _objects(file: TextFile) -> Iterator[Row]:
    for number, line in file:
        if line.strip():
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:  # also a number of 5,000 digits
                cells = error
            yield _row(number, cells, len(line))


def _one_object(file: TextFile) -> Iterator[Row]:
    """Yield the rows of a table that is one object: its rows, or its columns, as pandas writes."""
    text = file.read(LONGEST_ROW)
    if len(text) == LONGEST_ROW:
        raise TableError(f"{file.name}: {too_long('row')}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        found = error
    inner = list(found.values()) if isinstance(found, dict) else []
    alike = all(isinstance(one, dict) and one.keys() & inner[0].keys() for one in inner)
    if len(inner) < 2 or not alike:
        yield _row(0, found, len(text))
    elif guess(list(found), (*TEXTS, *LABELS)) is None:
        for row in inner:
            yield _row(0, row, len(row))
    else:
        for key in inner[0]:
            yield _row(0, {name: cells.get(key) for name, cells in found.items()}, len(found))


def _array(file: TextFile, *, inside: bool = False) -> Iterator[Row]:
    """Yield the objects of an array as they come: all of it may not fit in the memory.

    Nothing may follow it, unless it is inside another object.
    """
    decoder, text, at, number = json.JSONDecoder(), file.read(CHUNK).lstrip(), 1, 1
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] == "]":
            if not inside and (text[at + 1 :] + file.read(CHUNK)).strip():
                yield _row(0, Exception("something follows the array"), 0)
            return
        start, cells = at, Exception("the array does not end")
        try:
            cells, at = decoder.raw_decode(text, at)
        except ValueError as error:
            if len(text) - at > LONGEST_ROW:
                raise TableError(f"{file.name}, row {number}: {too_long('row')}") from error
            # As much again as there is: each attempt begins at the start of the object.
            if more := file.read(max(CHUNK, len(text) - at)):
                text, at = text[at:] + more, 0
                continue
            cells = error if text[at:] else cells
        except RecursionError as error:
            cells = error
        yield _row(0, cells, at - start)
        if isinstance(cells, Exception):
            return  # where the next object begins is not known
        number += 1


def _row(line: int, cells: Any, size: int) -> Row:
    if isinstance(cells, Exception):
        reason = "nested too deeply" if isinstance(cells, RecursionError) else cells
        cells = (
            f"broken row: not JSON ({reason}). Give one object per line, or an array of objects."
        )
    elif not isinstance(cells, dict):
        cells = f"broken row: expected {_EXPECTED}"
    elif isinstance(cells.get("data"), dict) and isinstance(cells.get("annotations"), list):
        cells = _with_choices(cells)
    elif all(isinstance(cell, list) for cell in cells.values()):
        cells = f"broken row: only lists in {listed(list(cells)) or 'it'}; expected {_EXPECTED}"
    return Row(line, cells, size)


def _with_choices(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task of Label Studio with what was chosen in a column of its own."""
    chosen: list[Any] = []
    with contextlib.suppress(AttributeError, KeyError, TypeError):  # another program's, after all
        for annotation in task["annotations"]:
            for result in annotation["result"] if not annotation.get("was_cancelled") else ():
                chosen += result["value"].get("choices", ())
    return task | {"label": list(dict.fromkeys(chosen)) or None}


def read_rasa(file: TextFile) -> Contents:
    """Read the examples of the intents in Rasa's ``nlu.yml``, without the marks of entities."""
    yaml = require("yaml", "rasa")
    text = file.read(LONGEST_ROW)
    if len(text) == LONGEST_ROW:
        raise TableError(f"{file.name}: more than {LONGEST_ROW:,} characters. Divide it.")
    try:
        found = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise TableError(f"{file.name}: not YAML ({error}).") from error
    entries = found.get("nlu") if isinstance(found, dict) else None
    if not isinstance(entries, list):
        raise TableError(f"{file.name}: no list 'nlu' in it, as Rasa's training data has.")

    def rows() -> Iterator[Row]:
        for entry in entries:
            if not isinstance(entry, dict) or "intent" not in entry:
                continue  # synonyms, lookup tables
            examples = entry.get("examples") or ""
            if isinstance(examples, str):
                examples = [line.strip().removeprefix("- ") for line in examples.splitlines()]
            for example in examples:
                text = str(example.get("text", "") if isinstance(example, dict) else example)
                text = _ENTITY.sub(r"\1", text).strip()
                if text:
                    yield Row(0, {"text": text, "label": entry["intent"]}, len(text))

    return contents_of(rows(), lambda: 1.0)
