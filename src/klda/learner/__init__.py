"""The Learner: a frozen foundation model, an engine on top, and a model folder."""

from klda.labels import UNKNOWN, UNKNOWN_INTEGER, SimilarClassWarning
from klda.learner.inputs import FoundationModelError
from klda.learner.learner import ForgetTraceWarning, Learner
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
