"""The Learner: a frozen foundation model, a classifier on top, and a model folder."""

from klda.learner.detached import Detached
from klda.learner.inputs import FoundationModelError
from klda.learner.learner import ForgetTraceWarning, Learner
from klda.learner.prediction import REFUSED, UNKNOWN, UNKNOWN_INTEGER

__all__ = [
    "REFUSED",
    "UNKNOWN",
    "UNKNOWN_INTEGER",
    "Detached",
    "ForgetTraceWarning",
    "FoundationModelError",
    "Learner",
]
