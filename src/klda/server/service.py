"""A model folder that answers and learns at the same time: what the API and the page use."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from klda.engine.solution import Answer
from klda.inspection.class_map import ClassMap
from klda.inspection.label_set import ClassDistances, ConfusablePair
from klda.inspection.quality import Quality
from klda.inspection.suggestions import Suggestion
from klda.inspection.suspects import Suspect
from klda.labels import Label
from klda.learner import Learner
from klda.server.batching import Batcher, Encode
from klda.server.changes import API, Change, Key, Learn, Remove, Tune, Undo
from klda.server.errors import ServerError
from klda.server.events import Watchers
from klda.server.journal import Journal
from klda.server.settings import ServiceSettings
from klda.server.snapshot import Snapshot
from klda.server.update import undoable
from klda.server.workers import (
    EncoderProcess,
    claim_blas_memory,
    divide_processors,
    limit_blas_threads,
    started_threads,
)
from klda.server.writer import Writer

BACKGROUND_THREADS = 4  # that decode images and explain: each image may take much memory
MAX_PAIRS = 30
MAX_ON_MAP = 500  # a picture can't show more
C = TypeVar("C", bound=Change)

# A map of the classes (None if there is nothing to draw) and the most confusable pairs.
ClassOverview = tuple[ClassMap | None, list[ConfusablePair]]


class Service:
    """Answers from snapshots of a model, and changes it, from its construction to a stop.

    It loads the model, replays the journal and opens the foundation model.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        claim_blas_memory()
        self.writer = Writer(settings)
        self.settings = settings
        limit_blas_threads()
        learner = self.writer.learner
        self.modality, self.foundation = learner.modality, learner.foundation
        self._computed: dict[Callable[[Learner], Any], tuple[int, Any]] = {}  # with versions
        try:
            self._background = started_threads(BACKGROUND_THREADS)
            encoders: list[Encode] = [learner.encoder.encode] * settings.workers
            self._processes: list[EncoderProcess] = []
            if settings.workers > 1 and self.modality != "features":
                divide_processors(settings.workers)
                self._processes = [EncoderProcess(settings) for _ in encoders]
                encoders = [process.encode for process in self._processes]
        except BaseException:
            self.writer.stop()  # or the folder would stay locked
            raise
        # Told of what programs ask, and of the answers.
        self.on_asked: Callable[[Any, Snapshot, list[Answer]], None] = lambda *_: None
        self.watchers = Watchers()
        self.writer.on_change = self.watchers.notify
        self.batcher = Batcher(lambda: self.snapshot, settings.max_batch)
        self.batcher.start(encoders)

    def stop(self) -> None:
        """Finish the predictions and changes that wait, and save the model. Blocks."""
        self.watchers.close()
        self.batcher.stop()
        for process in self._processes:
            process.stop()
        self._background.shutdown(wait=False, cancel_futures=True)
        self.writer.stop()

    @property
    def problems(self) -> dict[str, str]:
        """For each part why it can't work; "" for each that can."""
        return {"inference": self.batcher.problem, **self.writer.problems}

    def check_health(self) -> None:
        """Raise if a part can't work."""
        if reasons := "; ".join(filter(None, self.problems.values())):
            raise ServerError(f"The service has a problem: {reasons}.", 503, "problem")

    @property
    def snapshot(self) -> Snapshot:
        """What answers are computed from now."""
        return self.writer.snapshot

    async def run(self, function: Callable[..., Any], *values: Any) -> Any:
        """Run a function in a thread, for few requests at a time."""
        return await asyncio.wrap_future(self._background.submit(function, *values))

    async def read(self, function: Callable[[Learner, Journal], Any]) -> Any:
        """Read the learner or the journal, between changes."""
        return await asyncio.wrap_future(self.writer.read(function))

    async def history(self, *page: int) -> list[Change]:
        """Return the latest changes, oldest first; `page` as the journal takes it."""
        return await self.read(lambda _, journal: journal.history(*page))

    async def undoable(self, *, undos: bool = False) -> list[Change]:
        """Return the changes that can still be undone, oldest first; also undos, if asked for."""

        def read(learner: Learner, journal: Journal) -> list[Change]:
            found = undoable(learner, journal)
            return [made for made in found if undos or not isinstance(made, Undo)]

        return await self.read(read)

    def states(self) -> AsyncIterator[dict[str, int] | None]:
        """Yield the model's figures now and after each change; None is a sign of life."""
        return self.watchers.states(lambda: self.snapshot.figures)

    # ------------------------------------------------------------------ asking

    async def predict(self, inputs: Any, top: int) -> tuple[Snapshot, list[Answer]]:
        """Return the snapshot that answers, and one answer per input with `top` classes."""
        return await asyncio.wrap_future(self.batcher.submit(inputs, top))

    async def explain(self, value: Any) -> dict[str, Any]:
        """Explain the answer for one input; JSON-able."""
        return await self.run(self.snapshot.explain, value)

    async def suspects(self, inputs: Any, labels: Sequence[Label]) -> list[Suspect]:
        """Return samples whose labels are probably wrong, or that are there twice."""
        rows = await self.encode(inputs)
        return await self.run(self.snapshot.learner.suspects_rows, rows, labels)

    async def suggest(self, inputs: Any, n: int) -> list[Suggestion]:
        """Return which inputs to label next."""
        rows = await self.encode(inputs)
        return await self.run(self.snapshot.learner.suggest_rows, rows, n)

    async def class_overview(self) -> ClassOverview:
        """Return a map of the classes and the most confusable pairs; cached per version."""
        return await self._once(_overview)

    async def quality(self) -> Quality:
        """Return how accurate the model is expected to be; cached per version."""
        if not self.snapshot.counts:
            return Quality(math.nan, 0.0, 1.0, 0, [])
        return await self._once(Learner.quality)

    async def _once(self, function: Callable[[Learner], Any]) -> Any:
        """Compute something of the model, once per version."""
        snapshot = self.snapshot
        version, found = self._computed.get(function, (-1, None))
        if version != snapshot.version:
            found = await self.run(function, snapshot.learner)
            self._computed[function] = (snapshot.version, found)
        return found

    # ------------------------------------------------------------------ changes

    async def change(self, change: C) -> C:
        """Change the model; on disk and in the answers when this returns.

        A second change with the same idempotency key counts once.
        """
        # Shielded: a client that disconnects must not cancel a change half-way.
        made: C = await asyncio.shield(asyncio.wrap_future(self.writer.submit(change)))
        return made

    async def learn(
        self, inputs: Any, labels: Sequence[Label], key: Key | None = None, by: str = API
    ) -> Learn:
        """Learn inputs, with one label each."""
        return await self.learn_rows(await self.encode(inputs), labels, key, by)

    async def learn_rows(
        self,
        rows: np.ndarray,
        labels: Sequence[Label],
        key: Key | None = None,
        by: str = API,
        *,
        as_answered: bool = False,
    ) -> Learn:
        """Learn inputs that were encoded, with one label each.

        What is taught as it was answered says nothing of how often the answers are right.
        """
        tally = None if as_answered else await self.run(self.snapshot.compare, rows, labels)
        return await self.change(Learn(labels, rows, tally, key=key, by=by))

    async def remove(
        self, inputs: Any, labels: Sequence[Label], key: Key | None = None, by: str = API
    ) -> Change:
        """Forget exactly these samples, with one label each."""
        rows = await self.encode(inputs)
        return await self.change(Remove(labels, rows, key=key, by=by))

    async def tune_unknown(
        self, known: Any, unknown: Any, key: Key | None = None, **wanted: Any
    ) -> Tune:
        """Fit the threshold of unknown inputs; `wanted` as the learner takes it."""
        self.snapshot.check_has_classes()
        rows = [await self.encode(inputs) for inputs in (known, unknown)]
        fit = partial(self.snapshot.learner.fit_refusal, **wanted)
        refusal, tuning = await self.run(fit, *rows)
        return await self.change(Tune(refusal.pack(), tuning.to_dict(), key=key))

    async def expire_undo(self, before: float | None = None) -> bool:
        """Erase undo data, all or what is older than a time, from the disk too."""
        return await asyncio.wrap_future(self.writer.expire_undo(before))

    async def encode(self, inputs: Any) -> np.ndarray:
        """Return a feature row for each input."""
        return await asyncio.wrap_future(self.batcher.submit(inputs))


def _overview(learner: Learner) -> ClassOverview:
    if len(learner.classes) < 2:
        return None, []
    distances = ClassDistances.of(learner.solution)
    return distances.largest(MAX_ON_MAP).map(), distances.pairs(MAX_PAIRS)
