"""Whether two learners have learned the same: merged, it would count twice."""

from __future__ import annotations

from typing import Any

import numpy as np

from klda.errors import KldaError


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


def learned(learner: Any) -> dict[str, str]:
    """Return what names the learns and the files in a history, each with where it came from."""
    return {
        key: entry.get("source", "some files")
        for entry in learner.history
        for key in (entry.get("run"), *entry.get("contents", ()))
        if key
    }


def _is_same(learner: Any, other: Any) -> bool:
    if not learner.samples or learner.classes != other.classes:
        return False
    mine, theirs = (one.pack(solved=False)[0] for one in (learner, other))
    return mine.keys() == theirs.keys() and all(
        np.array_equal(array, theirs[name]) for name, array in mine.items()
    )
