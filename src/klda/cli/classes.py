"""The classes that a user names on the command line."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING

from klda.errors import KldaError

if TYPE_CHECKING:
    from klda.labels import Label

CLOSE = 0.8  # similarity of names that are probably meant as one; 1 is the same


def known_class(name: str, classes: Collection[Label]) -> Label:
    """Return the class that a user names; raise if there is none."""
    from klda.data import as_label

    label = as_label(name, classes)
    if label not in classes:
        close = closest(label, classes)
        meant = f" Did you mean {close!r}?" if close is not None else ""
        raise KldaError(f"There is no class {label!r} in this model.{meant}")
    return label


def closest(label: Label, classes: Collection[Label]) -> Label | None:
    """Return the class whose name is most like a label; None if none is much like it."""

    def spelt(name: Label) -> str:
        return " ".join(str(name).replace("_", " ").split()).casefold()

    names = {spelt(name): name for name in classes}
    found = difflib.get_close_matches(spelt(label), names, n=1, cutoff=CLOSE)
    return names[found[0]] if found else None
