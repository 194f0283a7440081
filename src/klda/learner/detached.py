"""A class that was forgotten and can be brought back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from klda.labels import Label


@dataclass(frozen=True)
class Detached:
    """A class that was forgotten, with all that `Learner.attach` needs to bring it back.

    Attributes
    ----------
    label : label
        Its name.
    count : int
        Its samples.
    arrays : dict of str to ndarray
        A packed model of the class alone, or ``rows`` if a ledger had its samples.
    meta : dict
        JSON-able values of the packed model.
    """

    label: Label
    count: int
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]
