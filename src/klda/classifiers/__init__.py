"""The classifiers, as scikit-learn estimators that learn new classes at any time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from klda.classifiers.base import ContinualClassifier
from klda.classifiers.klda import KLDA, KLDAEnsemble
from klda.classifiers.lda import LDA, NCM
from klda.errors import KldaError

__all__ = ["KINDS", "KLDA", "LDA", "NCM", "ContinualClassifier", "KLDAEnsemble", "unpack"]

KINDS = {kind.__name__: kind for kind in (KLDA, KLDAEnsemble, LDA, NCM)}


def unpack(
    arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], device: str | None = None
) -> ContinualClassifier:
    """Return the classifier that ``pack`` described.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        May be lazy: ``learn/...`` is read only when something is learned.
    meta : mapping
        The values that came with the arrays.
    device : str, optional
        Use another device than the model was made with.
    """
    kind = meta.get("kind")
    if kind not in KINDS:
        raise KldaError(
            f"kind={kind!r} is not a classifier of this version of klda; known kinds: "
            f"{', '.join(KINDS)}."
        )
    return KINDS[kind].unpack(arrays, meta, device)
