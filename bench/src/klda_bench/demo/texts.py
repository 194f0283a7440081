"""The texts of the demonstration, which were written for it.

24 per class, of which 16 are for learning and 8 for testing, and questions that fit no class.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pandas as pd


def examples() -> list[Any]:
    """Read the labelled texts in the order of their tasks: task, intent, part and text of each."""
    return list(_table("intents").itertuples(index=False))


def unknown_questions() -> list[str]:
    """Read the questions that fit none of the classes."""
    return _table("unknown").text.tolist()


def _table(name: str) -> Any:
    return pd.read_csv(str(files(__package__) / f"{name}.csv"), keep_default_na=False)
