"""How values are written for people."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from klda.labels import Label
from klda.server.changes import Change

MOST_NAMED = 3  # classes that a change is described by
UNDOABLE = ("learn", "declare", "rename", "forget", "remove")  # kinds of changes


def shown(label: Label) -> str:
    """Return a label as people read it: ``card_arrival`` as "card arrival"."""
    return " ".join(str(label).replace("_", " ").split()) or str(label)


def counted(number: int, one: str, many: str = "") -> str:
    """Return "1 class" or "2,000 classes"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percent(fraction: float) -> str:
    """Return a fraction as a whole percentage."""
    return f"{100 * fraction:.0f}%"


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
    labels = list(change.labels)
    match change.kind:
        case "learn":
            return f"taught {counted(len(labels), 'example')} of {named(labels)}"
        case "remove":
            return f"took back {counted(len(labels), 'example')} of {named(labels)}"
        case "forget":
            return f"removed {named(labels)}"
        case "rename" if change.merge:
            return f"merged {named(labels[:1])} into {named(labels[1:])}"
        case "rename":
            return f"renamed {named(labels[:1])} to {named(labels[1:])}"
        case "declare":
            is_new = bool(change.new_classes)
            return f"{'added' if is_new else 'described'} {named(labels)}"
        case "undo":
            return f"undid change {change.target}"
    return f"{change.kind} {named(labels)}" if labels else change.kind


def can_undo(change: Change) -> bool:
    """Return whether a change that was just made can be taken back."""
    return change.kind in UNDOABLE and bool(change.number) and not change.repeated
