"""The history of a learner: what changed and when, and whether two have learned the same."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda.labels import Label

# Older entries are dropped: a service that learns all day must not grow forever.
HISTORY_LENGTH = 1000


def entry(
    action: str,
    before: Mapping[Label, int],
    after: Mapping[Label, int],
    source: str | Path | None,
    noted: Mapping[str, Any],
) -> dict[str, Any]:
    """Describe a change, given the samples of each class before and after it."""
    values = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "action": action,
        "samples": sum(after.values()) - sum(before.values()),
        "new_classes": [label for label in after if label not in before],
        "dropped_classes": [label for label in before if label not in after],
        "source": None if source is None else str(source),
        **noted,
    }
    return {key: value for key, value in values.items() if value not in (None, [])}


def learned(learner: Any) -> dict[str, str]:
    """Return what names the learns and the files in a history, each with where it came from."""
    return {
        key: entry.get("source", "some files")
        for entry in learner.history
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
