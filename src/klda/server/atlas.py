"""What the page and the API show of the label set: its map and its confusable pairs."""

from __future__ import annotations

from dataclasses import dataclass, field

from klda.errors import KldaError
from klda.labelset import ClassMap, ConfusablePair, Neighbourhood
from klda.learner import Learner

MOST_PAIRS = 30
MOST_ON_MAP = 500  # a picture can't show more


@dataclass(frozen=True)
class Atlas:
    """Map of the classes and their confusable pairs, the worst first.

    Attributes
    ----------
    map : ClassMap or None
        None where there are fewer than two classes, or nothing that tells how far apart they are.
    pairs : list of ConfusablePair
        Those with an expected confusion of 1% and more.
    """

    map: ClassMap | None = None
    pairs: list[ConfusablePair] = field(default_factory=list)

    @classmethod
    def of(cls, classes: Neighbourhood | None, before: Atlas | None) -> Atlas:
        """Draw the map of classes that were looked at.

        Parameters
        ----------
        classes : Neighbourhood or None
            What `look` returned.
        before : Atlas or None
            The one of an earlier state: classes stay about where they were.

        Returns
        -------
        Atlas
            The map.
        """
        if classes is None:
            return cls()
        drawn = classes.largest(MOST_ON_MAP).map(before.map if before else None)
        return cls(drawn, classes.pairs(MOST_PAIRS))


def look(learner: Learner) -> Neighbourhood | None:
    """Take from a learner what its map needs; None if there is nothing to draw."""
    if len(learner.classes) < 2:
        return None
    try:
        return Neighbourhood.of(learner.classifier)
    except KldaError:  # a nearest-mean classifier
        return None
