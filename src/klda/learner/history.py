"""The history of a learner: what changed and when, and whether two have learned the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda.labels import Label
from klda.undo.log import Change, UndoLog

# Older entries are dropped: a service that learns all day must not grow forever.
HISTORY_LENGTH = 1000


def entry(
    action: str,
    before: Mapping[Label, int],
    after: Mapping[Label, int],
    source: str | Path | None,
    noted: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Describe a change, given the samples of each class before and after it."""
    values = {
        "number": next_number(history),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "action": action,
        "samples": sum(after.values()) - sum(before.values()),
        "new_classes": [label for label in after if label not in before],
        "dropped_classes": [label for label in before if label not in after],
        "source": None if source is None else str(source),
        **noted,
    }
    return {key: value for key, value in values.items() if value not in (None, [])}


def next_number(history: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of the next change."""
    return int(history[-1]["number"]) + 1 if history else 1


def numbered(history: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a stored history; older versions of klda did not number the changes."""
    return [{"number": i, **entry} for i, entry in enumerate(history, 1)]


def mark_undone(history: list[dict[str, Any]], change: Change, number: int) -> dict[str, Any]:
    """Note in a history that a change is undone, or done again; return the entry that is undone."""
    latest, found = UndoLog.latest(change), {"number": change.number}
    for i, entry in enumerate(history):
        if entry["number"] == latest:
            found = history[i] = {**entry, "undone_by": number}
        elif entry["number"] == change.number:
            history[i] = {key: value for key, value in entry.items() if key != "undone_by"}
    return found


def learned(learner: Any) -> dict[str, str]:
    """Return what names the learns and the files in a history, each with where it came from."""
    return {
        key: entry.get("source", "some files")
        for entry in learner.history
        if "undone_by" not in entry
        for key in (entry.get("run"), *entry.get("contents", ()))
        if key
    }


def check_no_overlap(learner: Any, other: Any) -> None:
    """Raise if another learner is the same one, or has learned some of the same files."""
    theirs = learned(other)
    shared = {source: None for key, source in learned(learner).items() if key in theirs}
    if shared:
        reason = f"both models have learned {', '.join(shared)}, which would count twice"
    elif _is_same(learner, other):
        reason = "both models have learned the same samples, which would count twice"
    else:
        return
    raise KldaError(
        f"Nothing was merged: {reason}. To merge them anyway, use allow_same (--allow-same)."
    )


def _is_same(learner: Any, other: Any) -> bool:
    if not learner.samples or learner.classes != other.classes:
        return False
    mine, theirs = (one.pack(solved=False)[0] for one in (learner, other))
    return mine.keys() == theirs.keys() and all(
        np.array_equal(array, theirs[name]) for name, array in mine.items()
    )
