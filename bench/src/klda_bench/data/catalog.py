"""Known data sets: those of the paper, and texts of other kinds (``more``)."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import pandas as pd

_TABLE = pd.read_csv(str(files(__package__) / "datasets.csv"), keep_default_na=False)
DATASETS: dict[str, Any] = {row.name: row for row in _TABLE.itertuples(index=False)}
"""By name: title, sizes, tasks, and the address of an archive or repository."""


def _names(collection: str, modality: str) -> tuple[str, ...]:
    wanted = (_TABLE.collection == collection) & (_TABLE.modality == modality)
    return tuple(_TABLE.name[wanted])


TEXT_SETS = _names("paper", "text")
MORE_SETS = _names("more", "text")
IMAGE_SETS = _names("paper", "image")


def title(name: str) -> str:
    """Return a data set's name in tables."""
    return DATASETS[name].title if name in DATASETS else name
