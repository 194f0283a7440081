"""What the names of classes say: each counts as a first example of its class.

From a declared class to its weights: `ClassNames.declare` takes the name, with a description or
without; `ClassNames.name_rows` encodes it like a sample; `klda.engine.model.Model.name_rows` keeps
the row; `klda.engine.solve` lifts it, and `klda.engine.means.class_means` makes the mean of the
class of it. From there it is a class like any other, with as many samples as an average one and
what its name is worth.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from klda.errors import KldaError
from klda.labels import Label, check_labels
from klda.learner.inputs import InputEncoder

LONGEST_DESCRIPTION = 10_000  # characters


def readable(label: Label) -> str:
    """Return a label as a person would write it: ``card_arrival`` as ``card arrival``.

    One without a letter says nothing: "".
    """
    words = re.sub(r"[\W_]+", " ", str(label))
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", words)
    return words.strip().lower() if any(map(str.isalpha, words)) else ""


@dataclass(frozen=True)
class ClassNames:
    """Which names count, never changed."""

    enabled: bool = True  # whether classes that are learned are also known by their names
    declared: Mapping[Label, str | None] = field(default_factory=dict)  # with descriptions, if any
    encoded: Mapping[Label, str] = field(default_factory=dict)  # the texts of the model's name rows

    def declare(self, given: Mapping[Label, str | None]) -> ClassNames:
        """Return the names with more classes declared, some with descriptions."""
        if not given:
            raise KldaError("classes is empty: name at least one class to declare.")
        check_labels([*self.declared, *given], "classes")
        for label, description in given.items():
            if description is not None and not (
                isinstance(description, str)
                and any(map(str.isalpha, description))
                and len(description.strip()) <= LONGEST_DESCRIPTION
            ):
                raise KldaError(
                    f"classes[{label!r}] is {description!r:.80}; a description has words, and at "
                    f"most {LONGEST_DESCRIPTION:,} characters, or is None."
                )
            if description is None and not readable(label):
                raise KldaError(
                    f"The class {label!r} has no word in its name: describe it, as in "
                    f"declare({{{label!r}: 'what it is about'}})."
                )
        return replace(self, declared={**self.declared, **given})

    def only(self, labels: Collection[Label]) -> ClassNames:
        """Return the names of no other classes than these."""
        declared = {label: text for label, text in self.declared.items() if label in labels}
        encoded = {label: text for label, text in self.encoded.items() if label in labels}
        return replace(self, declared=declared, encoded=encoded)

    def rename(self, old: Label, new: Label, counts: Mapping[Label, int]) -> ClassNames:
        """Return the names with one class renamed, given the samples of each class."""
        if counts.get(old) == 0 and not (self.declared.get(old) or readable(new)):
            raise KldaError(
                f"new={new!r} has no word in it, and {old!r} is known by its name alone: choose "
                "another name, or describe the class first, as in "
                f"declare({{{old!r}: 'what it is about'}})."
            )
        declared = {new if label == old else label: text for label, text in self.declared.items()}
        encoded = {new if label == old else label: text for label, text in self.encoded.items()}
        return replace(self, declared=declared, encoded=encoded)

    def merge(self, other: ClassNames) -> ClassNames:
        """Return the names with those of another learner, whose name rows were merged too."""
        declared, encoded = {**other.declared, **self.declared}, {**other.encoded, **self.encoded}
        return replace(self, declared=declared, encoded=encoded)

    def text(self, label: Label) -> str:
        """Return what says most about a class: its description, or else its name as words."""
        return self.declared.get(label) or readable(label)

    def texts(self, counts: Mapping[Label, int]) -> dict[Label, str]:
        """Return what to encode: the names or descriptions of the classes.

        Those of classes with samples tell how names differ from samples.
        """
        learned = {label for label, n in counts.items() if n}
        known = set(self.declared) | (learned if self.enabled else set())
        texts = {label: self.text(label) for label in sorted(known)}
        # Numbers and signs say nothing.
        return {label: text for label, text in texts.items() if any(map(str.isalpha, text))}

    def name_rows(
        self,
        counts: Mapping[Label, int],
        known: Mapping[Label, np.ndarray],
        inputs: InputEncoder | None,
    ) -> tuple[ClassNames, dict[Label, np.ndarray] | None]:
        """Return the names as encoded, and the name rows of the model; None if all stay.

        Encodes what is not among the `known` name rows, or, with `inputs` None, leaves it out.
        """
        texts = self.texts(counts)
        if texts == {label: self.encoded.get(label) for label in known}:
            return self, None
        if inputs is None:
            texts = {label: self.encoded[label] for label in texts if label in self.encoded}
        rows = {self.encoded.get(label, ""): row for label, row in known.items()}
        missing = [text for text in dict.fromkeys(texts.values()) if text not in rows]
        if missing and inputs is not None:
            rows |= dict(zip(missing, inputs.encode(missing), strict=True))
        return replace(self, encoded=texts), {label: rows[text] for label, text in texts.items()}

    def pack(self) -> dict[str, Any]:
        """Return JSON-able values."""
        former = [(label, text) for label, text in self.encoded.items() if text != self.text(label)]
        packed = {"enabled": self.enabled, "declared": list(self.declared.items())}
        return packed | ({"former": former} if former else {})

    @classmethod
    def unpack(cls, values: Mapping[str, Any] | None, named: Iterable[Label] = ()) -> ClassNames:
        """Return what `pack` described, for a model with name rows of these classes.

        Names of models made before there were any do not count.
        """
        if values is None:
            return cls(enabled=False)
        declared, former = dict(values["declared"]), dict(values.get("former", ()))
        if not all(text is None or isinstance(text, str) for text in declared.values()):
            raise ValueError("a description is not a text")
        names = cls(bool(values["enabled"]), declared)
        encoded = {label: former.get(label) or names.text(label) for label in named}
        return replace(names, encoded=encoded)
