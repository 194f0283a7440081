"""The classifiers, as scikit-learn estimators that learn new classes at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from klda import state
from klda.classifiers.continual import ContinualClassifier
from klda.classifiers.ensemble import KLDAEnsemble
from klda.classifiers.klda import KLDA
from klda.classifiers.lda import LDA
from klda.classifiers.ncm import NCM

__all__ = ["KINDS", "KLDA", "LDA", "NCM", "ContinualClassifier", "KLDAEnsemble", "from_state"]

KINDS = {kind.__name__: kind for kind in (KLDA, KLDAEnsemble, LDA, NCM)}


def from_state(
    arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], device: str | None = None
) -> ContinualClassifier:
    """Return the classifier that ``to_state`` described.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        May be lazy: ``learn/...`` is read only when something is learned.
    meta : mapping
        The values that came with the arrays.
    device : str, optional
        Use another device than the model was made with.
    """
    return state.unpack(KINDS, arrays, meta, device)
