"""Checks of stored values: types, ranges, and shapes that must go together.

A check is a function of a value and of what to call it; it raises `DamagedStateError`. Checks are
put together from smaller ones, so that a description of a format is the code that enforces it.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from klda.errors import KldaError

Check = Callable[[Any, str], None]

LARGEST_INTEGER = 2**63 - 1
LARGEST_NUMBER = float(np.finfo(np.float64).max)


class DamagedStateError(KldaError):
    """Stored values that are of the wrong kind, or do not go together."""


def refused(name: str, value: Any, expected: str) -> DamagedStateError:
    """Return the error that says what was found and what was expected."""
    return DamagedStateError(f"{name} is {reprlib.repr(value)}, expected {expected}")


def text(value: Any, name: str) -> None:
    """Check for a string."""
    if not isinstance(value, str):
        raise refused(name, value, "a string")


def boolean(value: Any, name: str) -> None:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise refused(name, value, "true or false")


def integer(least: int = 0, most: int = LARGEST_INTEGER) -> Check:
    """Return a check for an integer in a range."""

    def check(value: Any, name: str) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise refused(name, value, f"an integer from {least} to {most}")

    return check


def integers(least: int = 0) -> Check:
    """Return a check for a list of integers, fast for many."""
    all_of = listing(integer(least))

    def check(value: Any, name: str) -> None:
        if isinstance(value, list) and value and set(map(type, value)) == {int}:
            value = [min(value), max(value)]
        all_of(value, name)

    return check


def number(least: float = -LARGEST_NUMBER) -> Check:
    """Return a check for a finite number that is not too small."""

    def check(value: Any, name: str) -> None:
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        if not usable or not least <= value <= LARGEST_NUMBER:
            raise refused(name, value, f"a finite number from {least:g} on")

    return check


def choice(*values: Any) -> Check:
    """Return a check for one of some values."""

    def check(value: Any, name: str) -> None:
        if not any(type(value) is type(one) and value == one for one in values):
            raise refused(name, value, f"one of {', '.join(map(repr, values))}")

    return check


def optional(check: Check) -> Check:
    """Return a check for None, or what another check takes."""

    def checked(value: Any, name: str) -> None:
        if value is not None:
            check(value, name)

    return checked


def listing(check: Check) -> Check:
    """Return a check for a list whose entries another check takes."""

    def checked(value: Any, name: str) -> None:
        if not isinstance(value, list | tuple):
            raise refused(name, value, "a list")
        each = f"an entry of {name}"
        for entry in value:
            check(entry, each)

    return checked


def entries(*checks: Check) -> Check:
    """Return a check for a list of as many entries as there are checks, one for each."""

    def checked(value: Any, name: str) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(checks):
            raise refused(name, value, f"a list of {len(checks)} entries")
        for i, (check, entry) in enumerate(zip(checks, value, strict=True)):
            check(entry, f"{name}[{i}]")

    return checked


def mapping(check: Check) -> Check:
    """Return a check for an object whose values another check takes, whatever its keys."""

    def checked(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise refused(name, value, "an object")
        each = f"a value of {name}"
        for entry in value.values():
            check(entry, each)

    return checked


def record(
    required: Mapping[str, Check],
    maybe: Mapping[str, Check] | None = None,
    others: Check | None = None,
) -> Check:
    """Return a check for an object.

    Parameters
    ----------
    required, maybe : mapping of str to check
        Keys that must be there and keys that may be, with the checks of their values.
    others : check, optional
        Of the values of all other keys, which by default may be anything.
    """
    known = {**required, **(maybe or {})}

    def check(value: Any, name: str) -> None:
        if not isinstance(value, dict):
            raise refused(name, value, "an object")
        for key in required:
            if key not in value:
                raise DamagedStateError(f"{name} has no {key!r}")
        for key, entry in value.items():
            one = known.get(key, others)
            if one is not None:
                one(entry, f"{name}.{key}")

    return check


def scalar(value: Any, name: str) -> None:
    """Check for a string, a finite number, true, false or None."""
    if value is not None and not isinstance(value, str | bool):
        number()(value, name)


def scalars(value: Any, name: str) -> None:
    """Check for a list of scalars; fast for many strings."""
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        listing(scalar)(value, name)


def plain(value: Any, name: str) -> None:
    """Check for a scalar, or a list of scalars."""
    if isinstance(value, list | tuple):
        scalars(value, name)
    else:
        scalar(value, name)


def labels(value: Any, name: str) -> None:
    """Check for a list of class labels: all strings or all numbers, each once."""
    if not isinstance(value, list | tuple):
        raise refused(name, value, "a list of labels")
    kinds = set(map(type, value))
    if not (kinds <= {str} or kinds <= {int, float, bool}):
        raise refused(name, value, "strings only or numbers only")
    if kinds - {str} and not all(-(2**63) <= label < 2**64 for label in value):
        raise refused(name, value, "labels of 64 bits")
    if len(set(value)) < len(value):
        raise refused(name, value, "each label once")


class Shapes:
    """Checks arrays against shapes whose sizes have names, each of one size throughout.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The arrays; those checked for their shape alone are not read.
    **sizes : int
        Sizes that are known beforehand.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], **sizes: int) -> None:
        self.arrays = arrays
        self.sizes = sizes

    def array(self, name: str, kind: str, *shape: str | int) -> np.ndarray:
        """Return an array after a check of its kind of numbers and its shape.

        Parameters
        ----------
        name : str
            Name of the array.
        kind : str
            NumPy's letter for floats ("f"), integers ("i") or unsigned integers ("u").
        *shape : str or int
            A size, or the name of one. A name that is new gets the size found here.
        """
        if name not in self.arrays:
            raise DamagedStateError(f"the array {name!r} is missing")
        array = self.arrays[name]
        if array.dtype.kind != kind or array.ndim != len(shape):
            expected = f"{len(shape)} dimensions and kind {kind!r}"
            raise refused(f"the array {name!r}", (array.dtype.name, array.shape), expected)
        for size, found in zip(shape, array.shape, strict=True):
            wanted = self.sizes.setdefault(size, found) if isinstance(size, str) else size
            if found != wanted:
                raise refused(f"the shape of {name!r}", array.shape, f"{size} = {wanted}")
        return array

    def finite(self, name: str, *shape: str | int) -> np.ndarray:
        """Return an array of finite floats; it is read."""
        array = self.array(name, "f", *shape)
        check_finite(array, name)
        return array

    def indices(self, name: str, size: int, *shape: str | int) -> np.ndarray:
        """Return an array of integers from 0 to `size`, which is left out; it is read."""
        array = self.array(name, "i", *shape)
        if array.size and not (array.min() >= 0 and array.max() < size):
            raise DamagedStateError(f"the array {name!r} holds values outside 0 to {size - 1}")
        return array


def check_finite(array: np.ndarray, name: str) -> None:
    """Raise if an array holds a value that is infinite or NaN."""
    if not np.isfinite(array).all():
        raise DamagedStateError(f"the array {name!r} holds values that are not finite")


def check_ascending(values: np.ndarray | Collection, name: str) -> None:
    """Raise if integers do not ascend, each larger than the one before."""
    if not (np.diff(np.asarray(values)) > 0).all():
        raise DamagedStateError(f"the array {name!r} is not in ascending order")
