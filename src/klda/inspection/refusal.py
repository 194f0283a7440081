"""Where to refuse: a threshold of novelty that was fitted to known and to unknown inputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from klda.errors import KldaError
from klda.inspection.tables import text_table
from klda.labels import Label

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2)  # of known inputs refused, that the table shows
FEWEST = 20  # inputs of either kind that a class needs for a threshold of its own


@dataclass(frozen=True)
class Refusal:
    """Thresholds of novelty, in units of the distance between classes, which a model keeps.

    In these units they mean the same when the model has learned more.
    """

    limit: float
    classes: Mapping[Label, float] = field(default_factory=dict)  # of single classes

    def limits(self, labels: np.ndarray, unit: float) -> np.ndarray:
        """Return the novelty beyond which an input with each of these answers is unknown."""
        own = [self.classes.get(label, self.limit) for label in labels.tolist()]
        return unit * np.array(own, np.float64)

    def rename(self, old: Label, new: Label) -> Refusal:
        """Return the thresholds after a class was given another name."""
        return replace(self, classes={new if x == old else x: t for x, t in self.classes.items()})

    def only(self, labels: Collection[Label]) -> Refusal:
        """Return the thresholds of no other classes than these."""
        return replace(self, classes={x: t for x, t in self.classes.items() if x in labels})

    def without(self, labels: Collection[Label]) -> Refusal:
        """Return the thresholds after some classes are gone."""
        return replace(self, classes={x: t for x, t in self.classes.items() if x not in labels})

    def pack(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return {"limit": self.limit, "classes": list(self.classes.items())}

    @classmethod
    def unpack(cls, values: Mapping[str, Any]) -> Refusal:
        """Return what `pack` described."""
        classes = {label: float(limit) for label, limit in values["classes"]}
        return cls(float(values["limit"]), classes)


@dataclass(frozen=True)
class Choice:
    """A threshold, and what it costs."""

    limit: float
    known_refused: float  # fraction of the known inputs
    unknown_accepted: float  # fraction of the unknown inputs
    chosen: bool = False


@dataclass(frozen=True)
class Tuning:
    """What each choice of a threshold costs; the chosen one is stored with the model."""

    choices: list[Choice]
    known: int  # inputs that it was fitted to
    unknown: int
    classes: int = 0  # that got a threshold of their own

    @property
    def chosen(self) -> Choice:
        """The choice that was stored."""
        return next(one for one in self.choices if one.chosen)

    HEAD: ClassVar = ("known refused", "unknown accepted", "")

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """The rows of a table of the choices."""
        return [
            (f"{c.known_refused:.1%}", f"{c.unknown_accepted:.1%}", "<- chosen" if c.chosen else "")
            for c in self.choices
        ]

    @property
    def counts(self) -> str:
        """What the choice was made from, in words."""
        own = f" {self.classes:,} classes have a threshold of their own." if self.classes else ""
        return f"From {self.known:,} known and {self.unknown:,} unknown inputs.{own}"

    def __str__(self) -> str:
        return f"{text_table(self.HEAD, self.rows)}\n\n{self.counts}"

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain Python objects that JSON can hold."""
        choices = [vars(one) for one in self.choices]
        counts = {"known": self.known, "unknown": self.unknown, "classes": self.classes}
        return {"choices": choices} | counts


def fit_refusal(
    known: np.ndarray,
    unknown: np.ndarray,
    known_labels: np.ndarray,
    unknown_labels: np.ndarray,
    *,
    reject: float | None,
    by_class: bool,
) -> tuple[Refusal, Tuning]:
    """Choose a threshold, given the novelty and the answer of known and of unknown inputs.

    The one with the least sum of both fractions of errors; or, where at most a fraction of known
    inputs may be refused, the one that refuses that many.
    """
    for name, values in (("known", known), ("unknown", unknown)):
        if not len(values):
            raise KldaError(f"{name} is empty: give inputs of both kinds.")
    limit = _best(known, unknown, reject)
    own: dict[Label, float] = {}
    for label in np.unique(known_labels).tolist() if by_class else ():
        mine, others = known[known_labels == label], unknown[unknown_labels == label]
        if min(len(mine), len(others)) >= FEWEST:
            own[label] = _best(mine, others, reject)
    refusal = Refusal(limit, own)
    limits = sorted({float(np.quantile(known, 1 - each)) for each in FRACTIONS} - {limit})
    choices = [
        Choice(one, float((known > one).mean()), float((unknown <= one).mean())) for one in limits
    ]
    refused = known > refusal.limits(known_labels, 1.0)
    accepted = unknown <= refusal.limits(unknown_labels, 1.0)
    choices.append(Choice(limit, float(refused.mean()), float(accepted.mean()), chosen=True))
    different = {(one.known_refused, one.unknown_accepted): one for one in choices}
    choices = sorted(different.values(), key=lambda one: one.limit, reverse=True)
    return refusal, Tuning(choices, len(known), len(unknown), len(own))


def _best(known: np.ndarray, unknown: np.ndarray, reject: float | None) -> float:
    """Return the threshold with the least sum of errors, or that refuses a fraction of the known.

    Between two inputs, so that neither lies on it.
    """
    if reject is not None:
        return float(np.quantile(known, 1 - reject))
    values = np.unique(np.concatenate([known, unknown]))
    edges = np.concatenate([[values[0] - 1], (values[1:] + values[:-1]) / 2, [values[-1] + 1]])
    refused = 1 - np.searchsorted(np.sort(known), edges, side="right") / len(known)
    accepted = np.searchsorted(np.sort(unknown), edges, side="right") / len(unknown)
    errors = refused + accepted
    least = np.flatnonzero(errors <= errors.min() + 1e-12)
    return float(edges[least[len(least) // 2]])
