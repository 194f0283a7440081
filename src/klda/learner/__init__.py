"""The Learner: a frozen foundation model, a classifier on top, and a model folder."""

from klda.learner.learner import ForgetTraceWarning, Learner

__all__ = ["ForgetTraceWarning", "Learner"]
