"""How values are written for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from klda.labels import Label
from klda.messages import counted
from klda.server.changes import Change, Declare, Forget, Learn, Remove, Rename, Tune, Undo

MOST_NAMED = 3  # classes that a change is described by
WIDE = 0.2  # a range of accuracies that is said as a range


def shown(label: Label) -> str:
    """Return a label as people read it: ``card_arrival`` as "card arrival"."""
    return " ".join(str(label).replace("_", " ").split()) or str(label)


def one_line(text: str) -> str:
    """Return a text as it stands in a list: the parts that were joined, with dots between them."""
    return " · ".join(line.strip() for line in text.splitlines() if line.strip())


def percent(fraction: float) -> str:
    """Return a fraction as a whole percentage."""
    return f"{100 * fraction:.0f}%"


def likely(accuracy: float, low: float, high: float) -> str:
    """Return an expected accuracy: a range while there is little to tell it from."""
    return f"{percent(low)} to {percent(high)}" if high - low > WIDE else percent(accuracy)


def ago(when: float) -> str:
    """Return how long ago a moment was, in words."""
    seconds = max(0.0, time.time() - when)
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            return f"{counted(int(seconds // size), unit)} ago"
    return "just now"


def moment(when: float) -> str:
    """Return a moment in the format of HTML's time element."""
    return datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")


def named(labels: Sequence[Label], most: int = MOST_NAMED) -> str:
    """Return some classes as people read them: "a, b and 3 more"."""
    names = [f"“{shown(label)}”" for label in dict.fromkeys(labels)]
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def described(change: Change) -> str:
    """Return what a change did, as "taught 2 examples of “refund”"."""
    match change:
        case Learn():
            return f"taught {counted(len(change.labels), 'example')} of {named(change.labels)}"
        case Remove():
            return f"took back {counted(len(change.labels), 'example')} of {named(change.labels)}"
        case Forget():
            return f"removed {named(change.labels)}"
        case Rename(old, new, merge):
            verb, word = ("merged", "into") if merge else ("renamed", "to")
            return f"{verb} {named([old])} {word} {named([new])}"
        case Declare():
            return f"{'added' if change.new_classes else 'described'} {named(change.classes)}"
        case Tune():
            return "set how readily klda says “new to me”"
        case Undo():
            return "undid a change"
    return change.kind


def can_undo(change: Change) -> bool:
    """Return whether a change that was just made can be taken back."""
    return not isinstance(change, Undo) and bool(change.number) and not change.repeated
