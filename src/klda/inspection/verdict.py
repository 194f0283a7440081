"""What an answer amounts to, in one of a few words that exclude each other."""

from __future__ import annotations

from enum import StrEnum

# Probabilities are calibrated: of answers that are called sure, at least this fraction is right.
SURE = 0.8


class Verdict(StrEnum):
    """How far an answer can be relied on."""

    SURE = "sure"
    NOT_SURE = "not_sure"
    NEW = "new"  # unlike anything learned: probabilities among the known classes mean nothing
    ONE_CLASS = "one_class"  # there is nothing to choose from

    @property
    def words(self) -> str:
        """The verdict as people read it."""
        return _WORDS[self]

    @property
    def has_probability(self) -> bool:
        """Whether the probability of a class says anything."""
        return self in (Verdict.SURE, Verdict.NOT_SURE)


_WORDS = {
    Verdict.SURE: "sure",
    Verdict.NOT_SURE: "not sure",
    Verdict.NEW: "new to me",
    Verdict.ONE_CLASS: "only one class so far",
}


def verdict(probability: float, known: bool | None, n_classes: int) -> Verdict:
    """Judge an answer by the probability of the likeliest class, of so many.

    `known` is whether the input is like anything learned; None if that can't be told.
    """
    if known is False:
        return Verdict.NEW
    if n_classes < 2:
        return Verdict.ONE_CLASS
    return Verdict.SURE if probability >= SURE else Verdict.NOT_SURE
