"""What the engine checks at its door: rows, labels against the known classes, other models."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from klda.engine.arrays import Array, is_torch, on_cpu
from klda.engine.feature_map import FeatureMap, FourierMap
from klda.engine.parameters import Parameters
from klda.errors import KldaError
from klda.labels import Label, as_python, checked_label, closest

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


def check_label_kind(classes: np.ndarray, labels: Sequence[Label], parameter: str = "y") -> None:
    """Raise if labels are strings where the known ones are integers, or the other way round."""
    if len(classes) and len(labels) and (classes.dtype.kind == "U") != isinstance(labels[0], str):
        is_string = isinstance(labels[0], str)
        given, kind = ("a string", "integers") if is_string else ("an integer", "strings")
        raise KldaError(
            f"{parameter}: the label {labels[0]!r} is {given}, but the known classes are {kind}, "
            f"such as {classes[0].item()!r}; use {kind}."
        )


def check_labels_known(classes: np.ndarray, labels: Sequence[Any], parameter: str) -> list[Label]:
    """Return plain labels; raise if one is none of the known ones, which are sorted."""
    known, plain = set(classes.tolist()), [as_python(label) for label in labels]
    for label in plain:
        is_label = isinstance(label, str | int) and not isinstance(label, bool)
        if not is_label or label not in known:
            some = ", ".join(repr(name) for name in classes[:5].tolist())
            more = f" and {len(known) - 5} more" if len(known) > 5 else ""
            close = closest(label, known) if isinstance(label, str) else None
            meant = "" if close is None else f" Did you mean {close!r}?"
            raise KldaError(
                f"{parameter}={label!r}: there is no such class.{meant} Known classes: "
                f"{some}{more}."
            )
    return plain


def check_removable(counts: dict[Label, int], labels: Sequence[Label]) -> None:
    """Raise if more samples are to be removed than were learned."""
    check_labels_known(np.array(list(counts)), labels, "y")
    for label, n in Counter(labels).items():
        if n > counts[label]:
            raise KldaError(
                f"There are {n} samples of class {label!r} to remove, but only {counts[label]} "
                "were learned; give at most as many."
            )


def checked_name(
    classes: np.ndarray, old: Any, new: Any, *, merge: bool | None = None
) -> tuple[Label, Label]:
    """Return a class and its new name, both plain; raise if it can't have that one.

    It may be the name of another class only to `merge` the two; None where that can't be asked for.
    """
    [old] = check_labels_known(classes, [old], "old")
    new = checked_label("new", new)
    check_label_kind(classes, [new], "new")
    if new == old and merge:
        raise KldaError(f"old and new are both {new!r}: name two classes to merge.")
    if new in classes.tolist() and not merge:
        joined = "" if merge is None else ", or make one class of the two with merge=True"
        raise KldaError(f"new={new!r} is already a class; choose another name{joined}.")
    return old, new


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
