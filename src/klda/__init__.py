"""Teach a classifier new classes for ever, without forgetting and without keeping the data."""

from __future__ import annotations

from klda.classifiers import KLDA, LDA, NCM, KLDAEnsemble
from klda.errors import KldaError

__version__ = "0.1.0"
__all__ = ["KLDA", "LDA", "NCM", "KLDAEnsemble", "KldaError"]
