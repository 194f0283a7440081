"""Teach a classifier new classes forever, without forgetting and without keeping the data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from klda.errors import KldaError
from klda.version import __version__

if TYPE_CHECKING:
    from klda.classifiers import KLDA, LDA, NCM, KLDAEnsemble
    from klda.encoders.vectorizer import Vectorizer
    from klda.learner import Learner
    from klda.learner.text_classifier import TextClassifier
    from klda.server.client import Client

__all__ = [
    "KLDA",
    "LDA",
    "NCM",
    "Client",
    "KLDAEnsemble",
    "KldaError",
    "Learner",
    "TextClassifier",
    "Vectorizer",
    "__version__",
]

# Imported when first used: scikit-learn alone takes most of a second, and `klda --help` needs none.
_MODULES = {
    "KLDA": "klda.classifiers",
    "LDA": "klda.classifiers",
    "NCM": "klda.classifiers",
    "KLDAEnsemble": "klda.classifiers",
    "Client": "klda.server.client",
    "Learner": "klda.learner",
    "TextClassifier": "klda.learner.text_classifier",
    "Vectorizer": "klda.encoders.vectorizer",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
