"""A change of a model compared on held-out rows, before and after, and refused if it is worse."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from klda.cli import reading
from klda.cli.answers import words
from klda.cli.console import print_parts, table
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.data import Layout
    from klda.inspection.evaluation import Evaluation
    from klda.inspection.quality import ClassChange
    from klda.learner import Learner

SHOWN = 20  # classes in the table
NAMED = 3  # classes in an error


def check_refusal(check: Path | None, refuse_worse: float | None) -> None:
    """Refuse --refuse-worse without a file to tell by, and a file that is not there."""
    if refuse_worse is not None and check is None:
        raise typer.BadParameter("--refuse-worse needs --check: give a file with true labels.")
    if check is not None and not check.exists():
        raise KldaError(f"--check {check}: there is no such file.")


class CheckedChange:
    """One change, with what the model said of a file with true labels before it and after it."""

    def __init__(
        self, path: Path, layout: Layout, existing: Learner | None, refuse: float | None
    ) -> None:
        self._path, self._layout, self._refuse = path, layout, refuse
        self._known = existing.classes if existing else {}
        self._before = self._evaluated(existing) if existing else None
        self._after: Evaluation
        self._changes: list[ClassChange]

    def _evaluated(self, learner: Learner) -> Evaluation:
        tables = reading.open_tables([self._path], self._layout, learner.modality, learner.classes)
        rows = reading.batches(tables, "Checking", labels=True)
        return learner.evaluate((batch.inputs, batch.labels or []) for batch in rows)

    def compare(self, learner: Learner) -> None:
        """Evaluate the changed model; raise if a class got worse than is allowed."""
        from klda.inspection.quality import class_changes

        self._after = self._evaluated(learner)
        self._changes = class_changes(self._before, self._after, self._known)
        limit = self._refuse
        worse = [one for one in self._changes if limit is not None and -one.points > limit]
        if worse:
            some = ", ".join(
                f"{one.label!r} from {one.before:.1%} to {one.after:.1%}" for one in worse[:NAMED]
            )
            more = f" and {len(worse) - NAMED:,} more" if len(worse) > NAMED else ""
            raise KldaError(
                f"--refuse-worse {limit:g}: on {self._path} this change makes worse {some}{more}. "
                "The model is as it was. Allow more points, or give these classes more samples."
            )

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain objects."""
        return {
            "file": str(self._path),
            "samples": self._after.samples,
            "before": None if self._before is None else self._before.accuracy,
            "after": self._after.accuracy,
            "classes": list(map(asdict, self._changes)),
        }

    def show(self) -> None:
        """Print both accuracies, and the classes that changed most for the worse first."""
        then = "" if self._before is None else f"{self._before.accuracy:.1%} before, "
        rows = [
            (one.label, f"{one.samples:,}", *map(words, (one.before, one.after)))
            for one in self._changes
            if one.before is None or one.points
        ]
        shown = table("class", "tested", "before", "after", rows=rows, most=SHOWN)
        accuracy = f"Accuracy on {self._path}: {then}{self._after.accuracy:.1%} now."
        print_parts([accuracy, *([shown] if rows else [])])
