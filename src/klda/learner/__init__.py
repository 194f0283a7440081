"""The Learner: a frozen foundation model, a classifier on top, and a model folder."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klda.learner.answering import UNKNOWN, UNKNOWN_INTEGER
    from klda.learner.inputs import FoundationModelError
    from klda.learner.learner import ForgetTraceWarning, Learner, SimilarClassWarning
    from klda.undo.log import UndoError

__all__ = [
    "UNKNOWN",
    "UNKNOWN_INTEGER",
    "ForgetTraceWarning",
    "FoundationModelError",
    "Learner",
    "SimilarClassWarning",
    "UndoError",
]

# Imported when first used: an answer out of a model folder needs neither scikit-learn nor these.
_MODULES = {
    "UNKNOWN": "answering",
    "UNKNOWN_INTEGER": "answering",
    "ForgetTraceWarning": "learner",
    "FoundationModelError": "inputs",
    "Learner": "learner",
    "SimilarClassWarning": "learner",
    "UndoError": "learner",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
