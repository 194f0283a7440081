"""What the arrays and values of a stored classifier or ledger must be; see `klda.state`.

A state that passes can be used without further checks. Large matrices, which stay on disk until
they are needed, are checked here for type and shape only: whoever reads one for a change checks
that it is finite.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from klda import schema
from klda.schema import DamagedStateError, Shapes

LARGEST_EXPONENT = 200  # of a row in a ledger: float32 ends at 128, and at -149

_WAITING = schema.record({"seen": schema.integer(), "pending": schema.scalars})
_META = schema.record(
    {
        "kind": schema.text,
        "parameters": schema.mapping(schema.scalar),
        "n_features": schema.integer(1),
        "classes": schema.labels,
        "counts": schema.integers(1),
        "compact": schema.boolean,
        "members": schema.listing(schema.record({})),
    },
    {
        "feature_names": schema.optional(schema.listing(schema.text)),
        "waiting": _WAITING,
        "judging": _WAITING,
        "service": schema.record({}),
    },
)
_SOLVED = {"rho": schema.number(0), "spread": schema.number()}
_SOLVED_MAYBE = {"inflation": schema.number(float(np.finfo(np.float32).tiny))}
_KERNEL = {"gamma": schema.number(0)}
_COUNTED = {"n_scattered": schema.integer()}
_SCATTERED = {"turnover": schema.number(0)}
LEDGER = schema.record(
    {
        "samples": schema.integer(),
        "chunks": schema.integer(),
        "labels": schema.labels,
        "next_number": schema.integer(),
    }
)


# ---------------------------------------------------------------------------------------------
# Classifiers


@dataclass(frozen=True)
class Parts:
    """What a kind of classifier has.

    Attributes
    ----------
    kernel : bool
        Random features.
    scatter : bool
        A scatter matrix, and what follows from it.
    n_temperatures : int
        Columns that a probe has in the calibration.
    """

    kernel: bool
    scatter: bool
    n_temperatures: int


def check_meta(meta: Any, name: str = "classifier") -> None:
    """Raise if the values are not those of a classifier, whatever its kind."""
    _META(meta, name)
    if not meta["members"]:
        raise DamagedStateError(f"{name}.members is empty")
    if len(meta["counts"]) != len(meta["classes"]):
        found = f"{len(meta['classes'])} classes and {len(meta['counts'])} counts"
        raise DamagedStateError(f"{name} has {found}")
    names = meta.get("feature_names")
    if names is not None and len(names) != meta["n_features"]:
        found = f"{len(names)} names for {meta['n_features']} features"
        raise DamagedStateError(f"{name}.feature_names has {found}")


def check_parameters(parameters: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise if a parameter is not of a type that it can have, going by its default."""
    for name, value in parameters.items():
        default = defaults[name]
        if isinstance(default, bool):
            check: schema.Check = schema.boolean
        elif isinstance(default, int):
            check = schema.integer(1)
        elif default is None:  # a seed
            check = schema.optional(schema.integer(0, 2**32 - 1))
        elif name in ("gamma", "ridge") and not isinstance(value, str):
            check = schema.number(0)
        else:
            check = schema.text
        check(value, f"classifier.parameters.{name}")


def check_model(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], parts: Parts) -> None:
    """Raise if arrays and checked values are not those of a classifier that has learned.

    Parameters
    ----------
    arrays, meta
        As `klda.state.pack` returns them.
    parts : Parts
        What this kind of classifier has.
    """
    classes = meta["classes"]
    if not classes or list(classes) != sorted(classes):
        raise schema.refused("classifier.classes", classes, "labels in order, at least one")
    shapes = Shapes(arrays, M=len(classes), d=meta["n_features"])
    for i, entry in enumerate(meta["members"]):
        name, prefix = f"classifier.members[{i}]", f"predict/{i}/"
        schema.record(_SOLVED, _SOLVED_MAYBE)(entry, name)
        _check_kernel(shapes, prefix, entry, name, parts.kernel)
        shapes.array(prefix + "weights", "f", "M", "D")
        shapes.finite(prefix + "biases", "M")
        if parts.scatter:
            _check_familiarity(Shapes(arrays, **shapes.sizes), prefix + "familiarity/")
        if not meta["compact"]:
            _check_statistics(
                Shapes(arrays, **shapes.sizes), f"learn/{i}/", entry, name, parts.scatter
            )
    _check_calibration(shapes, parts.n_temperatures)
    if "waiting" in meta:
        _check_pending(shapes, "learn/pending", meta["waiting"], classes)


def check_progress(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], parts: Parts) -> None:
    """Raise if arrays and checked values are not those of a classifier that is learning.

    Parameters
    ----------
    arrays, meta
        As `klda.state.pack_progress` returns them.
    parts : Parts
        What this kind of classifier has.
    """
    shapes = Shapes(arrays, M=len(meta["classes"]), d=meta["n_features"])
    for i, entry in enumerate(meta["members"]):
        name, prefix = f"classifier.members[{i}]", f"progress/{i}/"
        _check_kernel(shapes, prefix, entry, name, parts.kernel)
        own = Shapes(arrays, **shapes.sizes)
        _check_statistics(own, prefix, entry, name, parts.scatter)
    if "judging" in meta:
        if "predict/calibration/filed" not in arrays:
            raise DamagedStateError("the array 'predict/calibration/filed' is missing")
        _check_calibration(shapes, parts.n_temperatures)
        _check_pending(shapes, "progress/pending", meta["judging"], meta["classes"])


def _check_kernel(
    shapes: Shapes, prefix: str, entry: Mapping[str, Any], name: str, kernel: bool
) -> None:
    if not kernel:
        schema.record({}, dict.fromkeys(_KERNEL, _absent))(entry, name)
        shapes.sizes["D"] = shapes.sizes["d"]
        return
    schema.record(_KERNEL)(entry, name)
    shapes.finite(prefix + "phases", "D")
    shapes.array(prefix + "frequencies", "f", "d", "D")


def _absent(value: Any, name: str) -> None:
    raise schema.refused(name, value, "nothing for this kind of classifier")


def _check_familiarity(shapes: Shapes, prefix: str) -> None:
    n_classes = shapes.sizes["M"]
    shapes.finite(prefix + "offsets", "M")
    shapes.finite(prefix + "lengths", "M")
    anchors = shapes.indices(prefix + "anchors", n_classes, "A")
    schema.check_ascending(anchors, prefix + "anchors")
    shares = shapes.finite(prefix + "shares", "A")
    shapes.finite(prefix + "shifts", "A")
    factor = shapes.finite(prefix + "factor", "A", "A")
    if not len(anchors) or shares.min() < 0 or factor.diagonal().min() <= 0:
        raise DamagedStateError(f"the arrays {prefix}... are those of no model")


def _check_statistics(
    shapes: Shapes, prefix: str, entry: Mapping[str, Any], name: str, scatter: bool
) -> None:
    schema.record(_COUNTED)(entry, name)
    shapes.array(prefix + "means", "f", "M", "D")
    if not scatter:
        schema.record({}, dict.fromkeys(_SCATTERED, _absent))(entry, name)
        return
    schema.record(_SCATTERED)(entry, name)
    if prefix + "rows" in shapes.arrays:
        shapes.array(prefix + "rows", "f", "R", "D")
        signs = shapes.array(prefix + "signs", "i", "R")
        if not (np.abs(signs.astype(np.int64)) == 1).all():
            raise DamagedStateError(f"the array {prefix + 'signs'!r} holds other values than signs")
    else:
        width = shapes.sizes["D"]
        shapes.array(prefix + "triangle", "f", width * (width + 1) // 2)


def _check_calibration(shapes: Shapes, n_temperatures: int) -> None:
    prefix = "predict/calibration/"
    if not any(name.startswith(prefix) for name in shapes.arrays):
        return
    shapes.array(prefix + "filed", "i", "P")
    shapes.indices(prefix + "labels", shapes.sizes["M"], "P")
    shapes.finite(prefix + "novelty", "P")
    shapes.finite(prefix + "losses", "P", n_temperatures)


def _check_pending(
    shapes: Shapes, array: str, waiting: Mapping[str, Any], classes: Sequence[Any]
) -> None:
    known = {(type(label), label) for label in classes}
    if not all((type(label), label) in known for label in waiting["pending"]):
        raise schema.refused("the labels of waiting samples", waiting["pending"], "known classes")
    if waiting["pending"]:
        shapes.finite(array, len(waiting["pending"]), "d")


# ---------------------------------------------------------------------------------------------
# Ledgers


def check_ledger(arrays: Mapping[str, np.ndarray], meta: Any) -> dict[str, int]:
    """Raise if arrays and values are not those of a ledger; return its ids and their numbers.

    Parameters
    ----------
    arrays, meta
        As `klda.ledger.Ledger.to_state` returns them.
    """
    LEDGER(meta, "ledger")
    shapes = Shapes(arrays, n=meta["samples"])
    rows = 0
    for i in range(meta["chunks"]):  # ends at the first that is missing
        rows += len(shapes.array(f"features/{i:06}", "f", f"rows of {i}", "d"))
    if rows != meta["samples"]:
        raise DamagedStateError(f"ledger has {meta['samples']} samples and features of {rows}")
    shapes.indices("labels", len(meta["labels"]), "n")
    numbers = shapes.indices("numbers", meta["next_number"], "n")
    schema.check_ascending(numbers, "numbers")
    exponents = shapes.array("exponents", "i", "n").astype(np.int64)
    if not (np.abs(exponents) <= LARGEST_EXPONENT).all():
        raise DamagedStateError("the array 'exponents' holds values that no features have")
    return _check_names(shapes, numbers) if "names" in arrays or "named" in arrays else {}


def _check_names(shapes: Shapes, numbers: np.ndarray) -> dict[str, int]:
    names = read_json(shapes.array("names", "u", "bytes of names"), "names")
    schema.listing(schema.text)(names, "names")
    named = shapes.array("named", "i", len(names))
    if len(set(names)) < len(names) or len(np.unique(named)) < len(named):
        raise DamagedStateError("the array 'names' gives an id twice")
    if not np.isin(named, numbers).all():
        raise DamagedStateError("the array 'named' names samples that the ledger does not hold")
    return dict(zip(names, named.tolist(), strict=True))


def read_json(array: np.ndarray, name: str) -> Any:
    """Return the value that an array of bytes holds as JSON."""
    try:
        return json.loads(array.tobytes())
    except (ValueError, RecursionError) as error:
        raise DamagedStateError(f"the array {name!r} holds no JSON ({error})") from error
