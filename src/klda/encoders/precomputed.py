"""Features that the user has computed go straight through."""

from __future__ import annotations

from typing import Any

import numpy as np

from klda.encoders.base import Modality
from klda.errors import KldaError


class PrecomputedFeatures:
    """The encoder of ``modality="features"``: checks rows and passes them on.

    Parameters
    ----------
    dimension : int, default=0
        Length that every row must have; 0 leaves it to the classifier, which holds all later
        batches to the length of the first.
    """

    name = "features"
    modality: Modality = "features"

    def __init__(self, dimension: int = 0) -> None:
        self.dimension = dimension

    def encode(self, inputs: Any, *, progress: bool = False) -> np.ndarray:
        """Check feature rows.

        Parameters
        ----------
        inputs : array-like of shape (n, d)
            The features.
        progress : bool, default=False
            Accepted for the sake of the interface; there is nothing to wait for.

        Returns
        -------
        ndarray of shape (n, d), float32
            The same rows.

        Raises
        ------
        KldaError
            If it is not a table of finite numbers with rows of the right length.
        """
        try:
            rows = np.asarray(inputs)
            # Checked before the conversion, so that "1.5" is not taken for a number.
            if rows.dtype.kind not in "fiub":
                raise TypeError(f"got values of type {rows.dtype}")
            with np.errstate(over="ignore"):
                rows = rows.astype(np.float32, copy=False)
        except (TypeError, ValueError) as error:
            raise KldaError(
                f"inputs must be a 2-D array of numbers, one feature row a sample: {error}."
            ) from error
        self._check_rows(rows)
        return np.ascontiguousarray(rows)

    def fingerprint(self) -> dict[str, Any]:
        """Describe the features.

        Returns
        -------
        dict
            As every encoder's; there is no source, so only the dimension says anything.
        """
        return {
            "name": self.name,
            "modality": self.modality,
            "source": "features",
            "revision": "",
            "pooling": "none",
            "layers": "last",
            "dimension": self.dimension,
        }

    def _check_rows(self, rows: np.ndarray) -> None:
        if rows.ndim != 2 or rows.shape[1] == 0:
            raise KldaError(
                f"inputs must be a 2-D array, one feature row a sample; got shape {rows.shape}. "
                "A single row x goes in as x[None, :]."
            )
        if self.dimension and rows.shape[1] != self.dimension:
            raise KldaError(
                f"inputs has rows of length {rows.shape[1]}, the features in use have "
                f"{self.dimension}: compute them with the same foundation model."
            )
        broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if len(broken):
            raise KldaError(
                f"inputs[{broken[0]}] is not finite in float32 (NaN, infinite or too large): "
                "leave such rows out or repair them."
            )
