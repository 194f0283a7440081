"""Features that the user has computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from klda.encoders.base import Modality, describe
from klda.errors import KldaError


class PrecomputedFeatures:
    """The encoder of ``modality="features"``: checks rows and returns them.

    Parameters
    ----------
    dimension : int, default=0
        Required length of a row; with 0, the classifier requires the length of its first batch.
    """

    name = "features"
    modality: Modality = "features"

    def __init__(self, dimension: int = 0) -> None:
        self.dimension = dimension

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Return feature rows, a 2-D array of finite numbers, as float32."""
        try:
            rows = np.asarray(inputs)
            # Checked before the conversion, which would turn "1.5" into a number.
            if rows.dtype.kind not in "fiub":
                raise TypeError(f"got values of type {rows.dtype}")
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32, copy=False)
        except (TypeError, ValueError) as error:
            raise KldaError(
                f"inputs must be a 2-D array of numbers, one feature row per sample: {error}."
            ) from error
        self._check_rows(rows)
        return np.ascontiguousarray(rows)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features; only the dimension varies."""
        return describe(self)

    def _check_rows(self, rows: np.ndarray) -> None:
        if rows.ndim != 2 or rows.shape[1] == 0:
            raise KldaError(
                f"inputs must be a 2-D array, one feature row per sample; got shape {rows.shape}. "
                "For a single row x, give x[None, :]."
            )
        if self.dimension and rows.shape[1] != self.dimension:
            raise KldaError(
                f"inputs has rows of length {rows.shape[1]}, but the model uses rows of length "
                f"{self.dimension}: compute them with the same foundation model."
            )
        broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(broken):
            raise KldaError(
                f"inputs[{broken[0]}] is not finite in float32 (NaN, infinite or too large): "
                "remove or repair such rows."
            )
