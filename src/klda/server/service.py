"""A model folder that answers and learns at the same time: what the API and the page use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from klda.engine.solution import Answer
from klda.errors import KldaError
from klda.labels import Label
from klda.learner import Learner
from klda.learner.class_map import ClassMap
from klda.learner.class_names import ClassNames
from klda.learner.label_set import ClassDistances, ConfusablePair
from klda.server.batching import Batcher, Encode
from klda.server.changes import Acknowledgement, Change, Key, Tally
from klda.server.errors import ServerError
from klda.server.journal import Journal, Refusal
from klda.server.settings import ServiceSettings
from klda.server.snapshot import Snapshot
from klda.server.workers import (
    EncoderProcess,
    claim_blas_memory,
    divide_processors,
    limit_blas_threads,
)
from klda.server.writer import Writer

PREPARING = 2  # requests at a time whose images are decoded: each may take much memory
MAX_EXPLAINING = 32  # requests at a time: each costs as much as many predicts
MAX_PAIRS = 30
MAX_ON_MAP = 500  # a picture can't show more


# A map of the classes (None if there is nothing to draw) and the most confusable pairs.
ClassOverview = tuple[ClassMap | None, list[ConfusablePair]]


class Service:
    """Answers from snapshots of a model, and changes it, from its construction to a stop.

    It loads the model, replays the journal and opens the foundation model.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        claim_blas_memory()
        self.writer = Writer(settings)
        self.settings = settings = self.writer.settings
        limit_blas_threads()
        learner = self.writer.learner
        self.modality, self.foundation = learner.modality, learner.foundation
        self._background = ThreadPoolExecutor(2, thread_name_prefix="background")
        self._preparing = ThreadPoolExecutor(PREPARING, thread_name_prefix="prepare")
        self._explaining = 0
        self._overview: tuple[int, ClassOverview] = (-1, (None, []))  # and its version
        self._processes: list[EncoderProcess] = []
        encoders: list[Encode] = [learner.encoder.encode] * settings.workers
        if settings.workers > 1 and self.modality != "features":
            divide_processors(settings.workers)
            self._processes = [EncoderProcess(settings) for _ in encoders]
            encoders = [process.encode for process in self._processes]
        self.batcher = Batcher(
            lambda: self.snapshot, max_batch=settings.max_batch, wait=settings.batch_wait
        )
        self.batcher.start(encoders)

    def stop(self) -> None:
        """Finish the predictions and changes that wait, and save the model. Blocks."""
        self.batcher.stop()
        for process in self._processes:
            process.stop()
        for pool in (self._background, self._preparing):
            pool.shutdown(wait=False, cancel_futures=True)
        self.writer.stop()

    @property
    def problems(self) -> dict[str, str]:
        """For each part why it can't work; "" for each that can."""
        return {"inference": self.batcher.problem, **self.writer.problems}

    @property
    def snapshot(self) -> Snapshot:
        """What answers are computed from now."""
        return self.writer.snapshot

    # ------------------------------------------------------------------ asking

    async def prepare(self, function: Callable[..., Any], *values: Any) -> Any:
        """Prepare a request in a thread, for few requests at a time."""
        return await asyncio.wrap_future(self._preparing.submit(function, *values))

    async def predict(self, inputs: Any, top: int) -> tuple[Snapshot, list[Answer]]:
        """Return the snapshot that answers, and one answer per input with `top` classes."""
        return await asyncio.wrap_future(self.batcher.ask(inputs, top))

    async def explain(self, value: Any) -> dict[str, Any]:
        """Explain the answer for one input; JSON-able."""
        if self._explaining >= MAX_EXPLAINING:
            raise ServerError("Too many explanations are waiting: try again in a moment.", 503)
        self._explaining += 1
        try:
            return await asyncio.wrap_future(self._background.submit(self.snapshot.explain, value))
        finally:
            self._explaining -= 1

    # ------------------------------------------------------------------ looking

    async def class_overview(self) -> ClassOverview:
        """Return a map of the classes and the most confusable pairs; cached per version."""
        version = self.snapshot.version
        if self._overview[0] != version:
            classes = await self._inspect(lambda learner, _: _class_distances(learner))
            drawn = await asyncio.wrap_future(self._background.submit(_draw, classes))
            self._overview = (version, drawn)
        return self._overview[1]

    async def tallies(self) -> list[Tally]:
        """Return how the model answered just before each time it was taught, oldest first."""
        return await self._inspect(lambda _, journal: journal.tallies())

    async def forgotten(self) -> dict[int, dict[Label, int]]:
        """Return the classes and counts of each forget that can be undone."""
        return await self._inspect(lambda _, journal: journal.forgotten())

    async def refused(self) -> list[Refusal]:
        """Return the changes that a replay could not make, and why."""
        return await self._inspect(lambda _, journal: journal.refused())

    async def _inspect(self, function: Callable[[Learner, Journal], Any]) -> Any:
        return await asyncio.wrap_future(self.writer.inspect(function))

    # ------------------------------------------------------------------ changes

    async def learn(
        self, inputs: Any, labels: Sequence[Label], key: Key | None = None
    ) -> Acknowledgement:
        """Learn; on disk and in the answers when this returns.

        A second change with the same idempotency key counts once.
        """
        rows = await self._encode(inputs)
        tally = await self.prepare(self.snapshot.compare, rows, labels)
        return await self._submit(Change("learn", labels, rows, key=key, tally=tally))

    async def forget(
        self, labels: Sequence[Label], inputs: Any = None, key: Key | None = None
    ) -> Acknowledgement:
        """Forget classes, or with `inputs`: exactly these samples, with one label each.

        The version of the acknowledgement undoes the forgetting of classes.
        """
        if inputs is None:
            return await self._submit(Change("forget", labels, key=key))
        return await self._submit(Change("remove", labels, await self._encode(inputs), key=key))

    async def undo(self, number: int, key: Key | None = None) -> Acknowledgement:
        """Restore the classes that a forget dropped."""
        return await self._submit(Change("restore", target=number, key=key))

    async def retry(self, number: int, key: Key | None = None) -> Acknowledgement:
        """Make a change that a replay refused, as a new one."""
        return await self._submit(Change("retry", target=number, key=key))

    async def rename(self, old: Label, new: Label, key: Key | None = None) -> Acknowledgement:
        """Give a class a name that no other class has."""
        return await self._submit(Change("rename", (old, new), key=key))

    async def declare(
        self, classes: Mapping[Label, str | None], key: Key | None = None
    ) -> Acknowledgement:
        """Make classes known by their names or descriptions, before anything is taught of them."""
        ClassNames().declare(classes)  # refuses what no model takes
        descriptions = list(classes.values())
        return await self._submit(
            Change("declare", list(classes), descriptions=descriptions, key=key)
        )

    async def _encode(self, inputs: Any) -> np.ndarray:
        return await asyncio.wrap_future(self.batcher.encode(inputs))

    async def _submit(self, change: Change) -> Acknowledgement:
        # Shielded: a client that disconnects must not cancel a change half-way.
        return await asyncio.shield(asyncio.wrap_future(self.writer.submit(change)))


def _class_distances(learner: Learner) -> ClassDistances | None:
    """Measure the distances between classes; None if there is nothing to draw."""
    if len(learner.classes) < 2:
        return None
    try:
        return ClassDistances.of(learner.solution)
    except KldaError:  # a nearest-mean classifier
        return None


def _draw(classes: ClassDistances | None) -> ClassOverview:
    if classes is None:
        return None, []
    return classes.largest(MAX_ON_MAP).map(), classes.pairs(MAX_PAIRS)
