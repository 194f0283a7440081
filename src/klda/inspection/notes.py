"""What a user should be told about rows: odd labels, and a language that a model does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from klda.encoders import MODELS
from klda.inspection.languages import NAMES, language_of
from klda.labels import Label
from klda.messages import counted

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
    names = {str(label) for label in counts}
    several = [
        label
        for label in counts
        if SEVERAL.fullmatch(str(label))
        or ("," in str(label) and any(one.strip() in names for one in str(label).split(",")))
    ]
    if several:
        notes.append(
            f"{_some(several, counts)}: each combination is a class of its own. If rows have "
            "several labels, keep one of them."
        )
    return notes


def language_notes(texts: Iterable[str], foundation: str) -> list[str]:
    """Return a note if the foundation model of this name does not know the language of texts."""
    known = MODELS[foundation].languages if foundation in MODELS else ()
    found = language_of(texts) if known else None
    if found is None or found in known:
        return []
    knows = NAMES[known[0]] if len(known) == 1 else f"{len(known)} other languages"
    others = [info.name for info in MODELS.values() if found in info.languages][:1]
    return [
        f"The texts look {NAMES[found]}, and {foundation} knows {knows}. Models made with the "
        f"foundation model {' or '.join([*others, 'ngrams'])} may answer better."
    ]


def _some(labels: Sequence[Label], counts: Mapping[Label, int]) -> str:
    rows = sum(counts[label] for label in labels)
    named = ", ".join(map(repr, labels[:MOST_NAMED]))
    more = f" and {len(labels) - MOST_NAMED:,} more" if len(labels) > MOST_NAMED else ""
    return f"{counted(rows, 'row')} with the label {named}{more}"
