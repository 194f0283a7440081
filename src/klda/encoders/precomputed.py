"""Features that were computed elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np

from klda.checks import Modality, first_not_finite
from klda.encoders.encoder import describe
from klda.errors import KldaError
from klda.progress import Show


class PrecomputedFeatures:
    """The encoder ``"features"``: checks rows and returns them."""

    name = "features"
    modality: Modality = "features"
    dimension = 0  # any: the classifier requires the length of its first batch

    def encode(self, inputs: Any, *, progress: Show = False) -> np.ndarray:
        """Return feature rows, a 2-D array of finite numbers, as float32."""
        try:
            rows = np.asarray(inputs)
            # Checked before the conversion, which would turn "1.5" into a number.
            if rows.dtype.kind not in "fiub":
                raise TypeError(f"got values of type {rows.dtype}")
        except (TypeError, ValueError) as error:
            raise KldaError(
                f"inputs must be a 2-D array of numbers, one feature row per sample: {error}."
            ) from error
        if rows.ndim != 2 or rows.shape[1] == 0:
            raise KldaError(
                f"inputs must be a 2-D array, one feature row per sample; got shape {rows.shape}. "
                "For a single row x, give x[None, :]."
            )
        broken = first_not_finite(rows)
        if broken is not None:
            raise KldaError(
                f"inputs[{broken}] is not finite in float32 (NaN, infinite or too large): "
                "remove or repair such rows."
            )
        return np.ascontiguousarray(rows, dtype=np.float32)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features, which are the same for all that klda can tell."""
        return describe(self)
