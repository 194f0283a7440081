"""The demonstration: twenty intents, first known by their names, then taught, and never forgotten.

Run it with ``python -m klda_bench.demo``. The texts were written for it: 24 per class, of which 16
are for learning and 8 for testing, and some questions that fit none of the classes.
"""

from __future__ import annotations

import csv
from importlib.resources import files
from typing import NamedTuple


class Example(NamedTuple):
    """One text of the demonstration's data set; `part` is ``"learn"`` or ``"test"``."""

    task: str
    intent: str
    part: str
    text: str


def examples() -> list[Example]:
    """Read the labelled texts, in the order in which their tasks arrive."""
    return [Example(**row) for row in _rows("intents")]


def unknown_questions() -> list[str]:
    """Read the questions that fit none of the classes."""
    return [row["text"] for row in _rows("unknown")]


def _rows(name: str) -> list[dict[str, str]]:
    text = files(__name__).joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
