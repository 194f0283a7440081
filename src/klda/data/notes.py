"""What a user should be told about labels: some are probably not meant as they are written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from klda.labels import Label

NO_LABELS = {"n/a", "na", "nan", "none", "null", "nil", "-", "--", "?", "#n/a", "tbd", "missing"}
SEVERAL = re.compile(r"[^;|]+[;|][^;|]+")
MOST_NAMED = 3


def label_notes(counts: Mapping[Label, int]) -> list[str]:
    """Return what is odd about the labels of some classes, given with their samples."""
    notes = []
    none = [label for label in counts if str(label).strip().casefold() in NO_LABELS]
    if none:
        notes.append(
            f"{_some(none, counts)}: learned as a class like any other. If it means that there is "
            "no label, forget it and leave such rows out."
        )
    several = [label for label in counts if SEVERAL.fullmatch(str(label))]
    if several:
        notes.append(
            f"{_some(several, counts)}: each combination is a class of its own. If rows have "
            "several labels, keep one of them."
        )
    return notes


def _some(labels: Sequence[Label], counts: Mapping[Label, int]) -> str:
    rows = sum(counts[label] for label in labels)
    named = ", ".join(map(repr, labels[:MOST_NAMED]))
    more = f" and {len(labels) - MOST_NAMED:,} more" if len(labels) > MOST_NAMED else ""
    return f"{rows:,} row{'' if rows == 1 else 's'} with the label {named}{more}"
