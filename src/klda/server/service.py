"""A model folder that answers and learns at the same time: what the API and the page use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from klda.errors import KldaError
from klda.labels import Label
from klda.learner import Learner
from klda.learner.label_set import ClassMap, ConfusablePair, Neighbourhood
from klda.server.changes import Acknowledgement, Change, digest
from klda.server.errors import ServiceError
from klda.server.journal import Tally
from klda.server.locked_folder import LockedFolder
from klda.server.reader import Reader
from klda.server.settings import Settings
from klda.server.snapshot import Snapshot
from klda.server.threads import limit_blas_threads
from klda.server.writer import Writer

MAX_PAIRS = 30
MAX_ON_MAP = 500  # a picture can't show more


@dataclass(frozen=True)
class ClassOverview:
    """A map of the classes (None if there is nothing to draw) and the most confusable pairs."""

    map: ClassMap | None = None
    pairs: list[ConfusablePair] = field(default_factory=list)


class Service(Reader):
    """Answers, and changes the model.

    Parameters
    ----------
    settings : Settings
        How it runs.
    new : str, optional
        Foundation model of a new model, if the folder has none yet.
    options : dict, optional
        Options of :meth:`klda.learner.Learner.load`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        new: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(settings)
        self.writer = Writer(settings, LockedFolder(settings.model, new, options or {}))
        self._overview: tuple[int, ClassOverview] | None = None

    def start(self) -> None:
        """Load the model, replay the journal, open the foundation model, unless done. Blocks."""
        if not self.ready:
            self.writer.start()
            limit_blas_threads()
            self.begin(self.writer.learner)

    def stop(self) -> None:
        """Finish what waits and fold the journal. Blocks."""
        super().stop()
        self.writer.stop()

    @property
    def trouble(self) -> dict[str, str]:
        """For each part why it can't work; "" for each that can."""
        return {**super().trouble, **self.writer.trouble}

    @property
    def keeps_ledger(self) -> bool:
        """Whether the model keeps the features it learned, and can forget classes exactly."""
        return self.writer.learner.ledger is not None

    @property
    def snapshot(self) -> Snapshot:
        """What answers are computed from now."""
        return self.writer.snapshot

    # ------------------------------------------------------------------ looking

    async def class_overview(self) -> ClassOverview:
        """Return a map of the classes and the most confusable pairs; cached per version."""
        version = self.snapshot.version
        if self._overview is None or self._overview[0] != version:
            inspected = self.writer.inspect(lambda learner, _: _neighbourhood(learner))
            classes = await asyncio.wrap_future(inspected)
            before = None if self._overview is None else self._overview[1].map
            self._overview = (version, await self.in_background(_draw, classes, before))
        return self._overview[1]

    async def tallies(self) -> list[Tally]:
        """Return how the model answered just before each time it was taught, oldest first."""
        inspected = self.writer.inspect(lambda _, journal: journal.tallies())
        return await asyncio.wrap_future(inspected)

    async def forgotten(self) -> dict[int, dict[Label, int]]:
        """Return the classes and counts of each forget that can be undone."""
        inspected = self.writer.inspect(lambda _, journal: journal.forgotten())
        return await asyncio.wrap_future(inspected)

    # ------------------------------------------------------------------ changes

    async def learn(
        self, inputs: Any, labels: Sequence[Label], key: str = "", content: Any = None
    ) -> Acknowledgement:
        """Learn; on disk and in the answers when this returns.

        Parameters
        ----------
        inputs : sequence or ndarray
            Texts, images or feature rows.
        labels : sequence of label
            One label per input.
        key : str
            Idempotency key; a second learn with the same key counts once.
        content : object
            What the key stands for, JSON-able.

        Returns
        -------
        Acknowledgement
            The model after the change.
        """
        _check_lengths(inputs, labels)
        mark = digest("learn", content) if key else ""
        encoding = self.batcher.encode(self.checked(inputs), list(labels))
        rows, (right, wrong, new) = await asyncio.wrap_future(encoding)
        return await self._submit(
            Change("learn", tuple(labels), rows, key, mark, right=right, wrong=wrong, new=new)
        )

    async def forget(
        self, labels: Sequence[Label], inputs: Any = None, key: str = "", content: Any = None
    ) -> Acknowledgement:
        """Forget classes, or with `inputs`: exactly these samples, with one label each.

        The number of the acknowledgement undoes the forgetting of classes.
        """
        mark = digest("forget", content) if key else ""
        if inputs is None:
            return await self._submit(Change("forget", tuple(labels), key=key, digest=mark))
        _check_lengths(inputs, labels)
        rows, _ = await asyncio.wrap_future(self.batcher.encode(self.checked(inputs)))
        return await self._submit(Change("remove", tuple(labels), rows, key, mark))

    async def undo(self, number: int) -> Acknowledgement:
        """Restore the classes that a forget dropped."""
        return await self._submit(Change("restore", target=number))

    async def rename(self, old: Label, new: Label) -> Acknowledgement:
        """Give a class a name that no other class has."""
        return await self._submit(Change("rename", (old, new)))

    async def _submit(self, change: Change) -> Acknowledgement:
        # Shielded: a client that disconnects must not cancel a change half-way.
        return await asyncio.shield(asyncio.wrap_future(self.writer.submit(change)))


def _check_lengths(inputs: Any, labels: Sequence[Label]) -> None:
    if len(inputs) != len(labels):
        raise ServiceError(
            f"There are {len(inputs)} inputs and {len(labels)} labels: give one label per input."
        )


def _neighbourhood(learner: Learner) -> Neighbourhood | None:
    """Measure the distances between classes; None if there is nothing to draw."""
    if len(learner.classes) < 2:
        return None
    try:
        return Neighbourhood.of(learner.classifier)
    except KldaError:  # a nearest-mean classifier
        return None


def _draw(classes: Neighbourhood | None, before: ClassMap | None) -> ClassOverview:
    if classes is None:
        return ClassOverview()
    return ClassOverview(classes.largest(MAX_ON_MAP).map(before), classes.pairs(MAX_PAIRS))
