"""Options that several commands have, each with one meaning, and lists of names."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from klda.cli.options import option
from klda.errors import KldaError

Seeds = Annotated[int, option("Number of seeds: 0, 1, ...", min=1, show_default=True)]
Repeats = Annotated[int, option("Runs; their medians count.", min=1, show_default=True)]
Device = Annotated[str, option("auto (default), cpu, cuda, ...")]
Backbone = Annotated[str, option("Foundation model of texts (minilm).")]
Data = Annotated[str | None, option("Folder of data sets to look in first.", envvar="KLDA_DATA")]
Names = Annotated[str, option("Data sets, comma-separated.", show_default=True)]
Shots = Annotated[str | None, option("Samples per class, comma-separated: 1,2,all.")]
Output = Annotated[Path | None, option("JSON Lines file to append the rows to.")]


def names(text: str, option: str, known: Collection[str] = ()) -> list[str]:
    """Read the names given for an option, separated by commas, out of those `known`."""
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise KldaError(f"{option} is empty: give at least one name.")
    for name in found if known else ():
        if name not in known:
            raise KldaError(f"{option}={name!r} is not one of {', '.join(known)}.")
    return found
