"""The chart of live accuracy; the template draws it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from klda.server.changes import Tally

LATEST = 500  # samples that the chart shows
STEPS = 40


@dataclass(frozen=True)
class Chart:
    """Live accuracy over the latest samples taught."""

    points: str  # of an SVG polyline in a box of 100 by 40
    accuracy: float | None  # on samples of classes that were known
    asked: int  # samples of known classes
    new: int  # samples of new classes


def chart(tallies: Sequence[Tally]) -> Chart:
    """Draw how often the model was right just before it was taught."""
    outcomes: list[float] = []
    for tally in tallies:
        # The order within a batch is not known: each sample counts as its batch did.
        if asked := tally.right + tally.wrong:
            outcomes += [tally.right / asked] * asked
    outcomes = outcomes[-LATEST:]
    new = sum(tally.new for tally in tallies)
    if not outcomes:
        return Chart("", None, 0, new)
    window = max(5, len(outcomes) // 8)
    points = []
    for i in sorted({round(i * (len(outcomes) - 1) / (STEPS - 1)) for i in range(STEPS)}):
        part = outcomes[max(0, i + 1 - window) : i + 1]
        x = 100 * i / max(1, len(outcomes) - 1)
        points.append(f"{x:.2f},{40 * (1 - sum(part) / len(part)):.2f}")
    return Chart(" ".join(points), sum(outcomes) / len(outcomes), len(outcomes), new)
