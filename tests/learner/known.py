"""What a learner should know after any sequence of changes, in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class UnreachableError(Exception):
    """Without the changes undone, others would need what is not there."""


@dataclass(eq=False)
class Change:
    """A change, with what it was given."""

    verb: str
    given: tuple
    number: int = 0
    undos: list[int] = field(default_factory=list)  # numbers of its undo, of the undo of that, ...
    active: bool = True
    expired: bool = False
    traced: bool = False  # whether the scatter keeps what was forgotten


@dataclass
class Knowledge:
    """Samples by number, each with its label; and what was said of classes."""

    samples: dict[int, str] = field(default_factory=dict)
    traces: list[list[int]] = field(default_factory=list)  # samples that the scatter still has
    declared: dict[str, str | None] = field(default_factory=dict)
    limit: float | None = None  # of unknown inputs
    limits: dict[str, float] = field(default_factory=dict)  # of single classes
    parameters: dict[str, Any] = field(default_factory=dict)  # of the last rebuild

    @property
    def classes(self):
        counts = dict.fromkeys(self.declared, 0)
        for label in self.samples.values():
            counts[label] = counts.get(label, 0) + 1
        return dict(sorted(counts.items()))

    def learn(self, samples, declared=()):
        self.samples |= samples
        self.declared = {**dict(declared), **self.declared}

    def declare(self, classes):
        self.declared |= classes

    def forget_samples(self, numbers):
        if not numbers <= self.samples.keys():
            raise UnreachableError
        self.samples = {i: label for i, label in self.samples.items() if i not in numbers}

    def forget_classes(self, labels, traced):
        for label in labels:
            own = [i for i, one in self.samples.items() if one == label]
            if traced:
                self.traces.append(own)
            self.forget_samples(set(own))
            self.declared.pop(label, None)

    def rename(self, old, new, joined):
        """Rename a class; whether that joined two is as it was when the rename was made."""
        self.samples = {i: new if one == old else one for i, one in self.samples.items()}
        for said in (self.declared, self.limits):
            if old in said:
                own = said.pop(old)
                if not joined:
                    said[new] = own

    def tune(self, limit, limits):
        self.limit, self.limits = limit, dict(limits)

    def rebuild(self, parameters):
        self.parameters |= parameters


def known_after(changes):
    """What is known after the changes that were not undone."""
    known = Knowledge()
    for each in changes:
        if each.active:
            more = (each.traced,) if each.verb == "forget_classes" else ()
            getattr(known, each.verb)(*each.given, *more)
            known.limits = {k: v for k, v in known.limits.items() if k in known.classes}
    return known
