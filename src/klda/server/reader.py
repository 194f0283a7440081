"""Asynchronous answers from snapshots of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from klda.engine.solution import Answer
from klda.learner import Learner
from klda.server.batching import Batcher
from klda.server.changes import wrong_width
from klda.server.errors import BusyError, ConflictError
from klda.server.settings import Settings
from klda.server.snapshot import Snapshot

PREPARING = 2  # requests whose images are decoded at a time: each may take much memory
MAX_EXPLAINING = 32  # requests at a time: each costs as much as many predicts


class Reader:
    """Answers from the current snapshot; :meth:`load` comes first.

    Parameters
    ----------
    settings : Settings
        How it runs.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.batcher = Batcher(
            lambda inputs: self._encoder.encode(inputs),
            lambda: self.snapshot,
            max_batch=settings.max_batch,
            wait=settings.batch_wait,
            max_queue=settings.max_queue,
        )
        self._background = ThreadPoolExecutor(2, thread_name_prefix="background")
        self._preparing = ThreadPoolExecutor(PREPARING, thread_name_prefix="prepare")
        self._explaining = 0
        self.modality = "text"
        self.foundation: dict[str, Any] = {}
        self.ready = False

    @property
    def snapshot(self) -> Snapshot:
        """What answers are computed from now."""
        raise NotImplementedError

    @property
    def trouble(self) -> dict[str, str]:
        """For each part why it can't work; "" for each that can."""
        return {"inference": self.batcher.trouble}

    def begin(self, learner: Learner) -> None:
        """Start to answer, with a learner's encoder."""
        self.modality, self.foundation = learner.modality, learner.foundation
        self._encoder = learner.encoder
        self.batcher.start()
        self.ready = True

    def stop(self) -> None:
        """Answer what waits. Blocks."""
        self.ready = False
        self.batcher.stop()
        for pool in (self._background, self._preparing):
            pool.shutdown(wait=False, cancel_futures=True)

    async def prepare(self, function: Callable[[Any], Any], value: Any) -> Any:
        """Prepare inputs in a thread, for few requests at a time."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._preparing, function, value)

    async def in_background(self, function: Callable[..., Any], *values: Any) -> Any:
        """Run a function in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._background, function, *values)

    async def predict(self, inputs: Any, top: int) -> tuple[Snapshot, list[Answer]]:
        """Return the snapshot that answers, and one answer per input with `top` classes."""
        self._check_has_classes()
        future = self.batcher.ask(self.checked(inputs), top)
        snapshot, answers = await asyncio.wrap_future(future)
        if not answers:
            raise _no_classes()
        return snapshot, answers

    async def explain(self, value: Any) -> dict[str, Any]:
        """Explain the answer for one input; JSON-able."""
        self._check_has_classes()
        snapshot = self.snapshot
        if isinstance(value, np.ndarray):
            self.checked(value[None, :])
        if self._explaining >= MAX_EXPLAINING:
            raise BusyError("Too many explanations are waiting: try again in a moment.")
        self._explaining += 1
        try:
            return await self.in_background(snapshot.explain, value)
        finally:
            self._explaining -= 1

    def checked(self, inputs: Any) -> Any:
        """Refuse rows of another length before they are batched with others."""
        width = self.snapshot.width
        if isinstance(inputs, np.ndarray) and width and inputs.shape[1] != width:
            raise wrong_width(inputs.shape[1], width)
        return inputs

    def _check_has_classes(self) -> None:
        if not self.snapshot.counts:
            raise _no_classes()


def _no_classes() -> ConflictError:
    return ConflictError("This model has no classes yet: teach it something first.")
