"""A change of a model compared on held-out rows, before and after, and refused if it is worse."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from klda.cli import reading
from klda.cli.console import print_parts, table
from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.data import Layout
    from klda.inspection.evaluation import Evaluation
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
    """One change, with what the model said of a file with true labels before it."""

    def __init__(
        self, path: Path, layout: Layout, existing: Learner | None, refuse: float | None
    ) -> None:
        self.path, self._layout, self._refuse = path, layout, refuse
        self._known = existing.classes if existing else {}
        self.before = self._evaluated(existing) if existing else None
        self.after: Evaluation | None = None

    @classmethod
    def of(
        cls, path: Path | None, layout: Layout, existing: Learner | None, refuse: float | None
    ) -> CheckedChange | None:
        """Return a change to be checked, if there is a file to check it on."""
        return None if path is None else cls(path, layout, existing, refuse)

    def _evaluated(self, learner: Learner) -> Evaluation:
        tables = reading.open_tables([self.path], self._layout, learner.modality, learner.classes)
        rows = reading.batches(tables, "Checking", labels=True)
        return learner.evaluate((batch.inputs, batch.labels or []) for batch in rows)

    def compare(self, learner: Learner) -> None:
        """Evaluate the changed model; raise if a class got worse than is allowed."""
        self.after = self._evaluated(learner)
        limit = self._refuse
        worse = [one for one in self._changes() if limit is not None and -one.points > limit]
        if worse:
            some = ", ".join(
                f"{one.label!r} from {one.before:.1%} to {one.after:.1%}" for one in worse[:NAMED]
            )
            more = f" and {len(worse) - NAMED:,} more" if len(worse) > NAMED else ""
            raise KldaError(
                f"--refuse-worse {limit:g}: on {self.path} this change makes worse {some}{more}. "
                "The model is as it was. Allow more points, or give these classes more samples."
            )

    def _changes(self) -> list[Any]:
        from klda.inspection.quality import class_changes

        if self.after is None:
            return []
        found = class_changes(self.before, self.after)
        # Of a class that was not known nothing could be right: that is no figure to compare with.
        return [
            one if one.label in self._known else type(one)(one.label, one.samples, None, one.after)
            for one in found
        ]

    def to_dict(self) -> dict[str, Any] | None:
        """Convert to plain objects; None if nothing changed."""
        if self.after is None:
            return None
        before = None if self.before is None else self.before.accuracy
        classes = [asdict(one) for one in self._changes()]
        return {
            "file": str(self.path),
            "samples": self.after.samples,
            "before": before,
            "after": self.after.accuracy,
            "classes": classes,
        }

    def show(self) -> None:
        """Print both accuracies, and the classes that changed most for the worse first."""
        if self.after is None:
            return
        then = "" if self.before is None else f"{self.before.accuracy:.1%} before, "
        changed = [one for one in self._changes() if one.before is None or one.points]
        rows = [
            (
                one.label,
                f"{one.samples:,}",
                "-" if one.before is None else f"{one.before:.1%}",
                f"{one.after:.1%}",
            )
            for one in changed
        ]
        columns = ("class", "tested", "before", "after")
        shown = table(*columns, rows=rows, numbers=columns[1:], most=SHOWN)
        accuracy = f"Accuracy on {self.path}: {then}{self.after.accuracy:.1%} now."
        print_parts([accuracy, *([shown] if rows else [])])
