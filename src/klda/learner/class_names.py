"""What the names of classes say: each counts as a first example of its class."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from klda.engine.hints import ENOUGH_SAMPLES
from klda.engine.shrinkage import MOST_ANCHORS
from klda.errors import KldaError
from klda.labels import Label, check_labels, listed, plain

MOST_NAMED = MOST_ANCHORS  # classes: with more, only declared ones are known by their names
LONGEST_DESCRIPTION = 10_000  # characters


def readable(label: Label) -> str:
    """Return a label as a person would write it: ``card_arrival`` as ``card arrival``."""
    words = re.sub(r"[\W_]+", " ", str(label))
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", words)
    return words.strip().lower()


@dataclass(frozen=True)
class ClassNames:
    """Which names count, never changed.

    Attributes
    ----------
    enabled : bool
        Whether classes that are learned are also known by their names.
    declared : dict
        Classes that were declared, each with its description, or with None.
    """

    enabled: bool = True
    declared: Mapping[Label, str | None] = field(default_factory=dict)

    def declare(self, classes: Any) -> ClassNames:
        """Return the names with more classes declared."""
        given = dict(classes) if isinstance(classes, Mapping) else dict.fromkeys(listed(classes))
        if not given:
            raise KldaError("classes is empty: name at least one class to declare.")
        given = {plain(label): description for label, description in given.items()}
        check_labels(list(given), "classes")
        for label, description in given.items():
            if description is not None and not (
                isinstance(description, str) and 0 < len(description.strip()) <= LONGEST_DESCRIPTION
            ):
                raise KldaError(
                    f"classes[{label!r}] is {description!r:.80}; a description is a text of at "
                    f"most {LONGEST_DESCRIPTION:,} characters, or None."
                )
            if description is None and not readable(label):
                raise KldaError(
                    f"The class {label!r} has no word in its name: describe it, as in "
                    f"declare({{{label!r}: 'what it is about'}})."
                )
        return replace(self, declared={**self.declared, **given})

    def drop(self, labels: Iterable[Label]) -> ClassNames:
        """Return the names without some classes."""
        gone = set(labels)
        kept = {label: text for label, text in self.declared.items() if label not in gone}
        return replace(self, declared=kept)

    def only(self, label: Label) -> ClassNames:
        """Return the names with at most one class declared."""
        return self.drop(set(self.declared) - {label})

    def rename(self, old: Label, new: Label) -> ClassNames:
        """Return the names, a class having another."""
        renamed = {new if label == old else label: text for label, text in self.declared.items()}
        return replace(self, declared=renamed)

    def merge(self, other: ClassNames) -> ClassNames:
        """Return the names with the classes that another learner declared."""
        return replace(self, declared={**other.declared, **self.declared})

    def texts(self, counts: Mapping[Label, int]) -> dict[Label, str]:
        """Return what to encode: of classes that have few samples, the name or description."""
        few = {label for label, n in counts.items() if 0 < n < ENOUGH_SAMPLES}
        if not self.enabled or len(counts) > MOST_NAMED:
            few = set()
        named = {label: self.declared.get(label) or readable(label) for label in few}
        for label, text in self.declared.items():
            if counts.get(label, 0) < ENOUGH_SAMPLES:
                named[label] = text or readable(label)
        return {label: text for label, text in sorted(named.items()) if text}

    def pack(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return {"enabled": self.enabled, "declared": list(self.declared.items())}

    @classmethod
    def unpack(cls, values: Mapping[str, Any] | None) -> ClassNames:
        """Return what `pack` described; names of older models do not count."""
        if values is None:
            return cls(enabled=False)
        declared = dict(values["declared"])
        if not all(text is None or isinstance(text, str) for text in declared.values()):
            raise ValueError("a description is not a text")
        return cls(bool(values["enabled"]), declared)
