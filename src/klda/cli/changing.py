"""Models that a command changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from klda.cli.console import interrupts_ignored

if TYPE_CHECKING:
    from klda.learner import Learner


@contextmanager
def changed(model: Path, wait: float, **encoding: Any) -> Iterator[Learner]:
    """Load a model and, once the caller has changed it, save it; no one else writes meanwhile."""
    from klda.learner import Learner, folder

    if not folder.exists(model):
        folder.load(model)  # says what is wrong; a lock would make the folder
    with folder.writer_lock(model, timeout=wait):
        learner = Learner.load(model, **encoding)
        yield learner
        with interrupts_ignored():
            learner.save(model)
