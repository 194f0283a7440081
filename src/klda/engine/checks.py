"""What the engine checks at its door: rows, parameters and other models."""

from __future__ import annotations

import sys

import numpy as np

from klda.engine.arrays import Array, is_torch, on_cpu
from klda.engine.feature_map import FeatureMap, FourierMap
from klda.engine.parameters import Parameters
from klda.errors import KldaError

LARGEST_SUM = 1e-8  # of squares of a batch, relative to the largest number


def check_rows(rows: Array, parameter: str = "X") -> None:
    """Raise if a value is not finite, or too large to be squared.

    A sum of squares proves it at a fraction of the cost of looking at each value.
    """
    largest = LARGEST_SUM * np.finfo(str(rows.dtype).removeprefix("torch.")).max
    if is_torch(rows):
        usable = bool(sys.modules["torch"].linalg.vector_norm(rows) < largest**0.5)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            flat = rows.reshape(-1)
            usable = bool(np.einsum("i,i->", flat, flat) < largest)  # BLAS would wake its threads
    if usable:
        return
    values = on_cpu(rows)
    strange = np.argwhere(~np.isfinite(values))
    if len(strange):
        row, column = strange[0]
        kind = "NaN" if np.isnan(values[row, column]) else "infinity (inf)"
        raise KldaError(
            f"{parameter} contains {kind} (row {row}, column {column}); remove such samples or "
            "fill the values."
        )
    row, column = np.unravel_index(np.abs(values).argmax(), values.shape)
    raise KldaError(
        f"{parameter} contains {values[row, column]:g} (row {row}, column {column}): its squares "
        f"add up to numbers too large for {values.dtype.name}. Scale the features, or use "
        "dtype='float64'."
    )


def check_calibrated(parameters: Parameters) -> None:
    """Raise if nothing tells known inputs from unknown ones."""
    if not parameters.calibrated:
        raise KldaError(
            "calibrated=False: without it nothing tells known inputs from unknown ones. Make the "
            "model with calibrated=True."
        )


def check_same_parameters(mine: Parameters, theirs: Parameters, *more: str) -> None:
    """Raise if a model is not one that another, still empty, could have become."""
    for name in ("n_components", "gamma", "random_features", "dtype", *more):
        wanted, found = getattr(mine, name), getattr(theirs, name)
        if found != wanted:
            raise KldaError(
                f"other was made with {name}={found!r}, this model with {name}={wanted!r}; make "
                "both with the same."
            )


def check_same_map(mine: FeatureMap, theirs: FeatureMap) -> None:
    """Raise if two models can't be merged, because their features differ."""
    if mine.n_features != theirs.n_features:
        raise KldaError(
            f"other has {theirs.n_features} input features, this model has {mine.n_features}; "
            "merge models of the same features."
        )
    if mine.backend.dtype != theirs.backend.dtype:
        raise KldaError(
            f"other has dtype={theirs.backend.dtype.name!r}, this model "
            f"dtype={mine.backend.dtype.name!r}; make both with the same."
        )
    if mine is not theirs and not mine.same_as(theirs):
        described = " and ".join(
            f"gamma={each.gamma!r}, n_components={each.n_components}"
            if isinstance(each, FourierMap)
            else "no random features"
            for each in (theirs, mine)
        )
        first, _, second = described.partition(" and ")
        if first == second:
            described = f"{first} in both, but another random_state"
        raise KldaError(
            f"other has different random features than this model ({described}). Make both models "
            "with the same gamma (a number, not 'auto'), n_components and random_state (a number, "
            "not None)."
        )
