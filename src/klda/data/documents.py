"""JSON, plain texts, and the training files of fastText and Rasa."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from klda.data.batch import Contents, TableError
from klda.data.lines import LONGEST_ROW, TextFile, too_long
from klda.data.records import Row, contents_of
from klda.errors import require

FASTTEXT = "__label__"
CHUNK = 1 << 16  # characters
_EXPECTED = 'one JSON object per row, such as {"text": "...", "label": "..."}.'
_BETWEEN = re.compile(r"[\s,]*")
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


def read_json(file: TextFile, is_array: bool) -> Contents:
    """Read objects, one per line or all in one array."""
    return contents_of(_array(file) if is_array else _objects(file), lambda: file.fraction)


def _objects(file: TextFile) -> Iterator[Row]:
    for number, line in file:
        if line.strip():
            try:
                cells = json.loads(line)
            except (ValueError, RecursionError) as error:  # also a number of 5,000 digits
                cells = error
            yield _row(number, cells, len(line))


def _array(file: TextFile) -> Iterator[Row]:
    """Yield the objects of an array as they come: all of it may not fit in the memory."""
    decoder, text, at, number = json.JSONDecoder(), file.read(CHUNK).lstrip(), 1, 1
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        if text[at : at + 1] == "]":
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
    return Row(line, cells, size)


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
