"""The model behind asynchronous calls: what the API and the page are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from klda.server.atlas import Atlas, look
from klda.server.changes import Change, Label, digest
from klda.server.errors import BusyError, ConflictError, ServiceError
from klda.server.inference import Inference
from klda.server.keeper import Keeper, share_processors
from klda.server.memory import Acknowledgement
from klda.server.settings import Settings
from klda.server.snapshot import Answer, Snapshot, explain
from klda.server.writer import Writer

MOST_PREPARING = 2  # requests whose images are decoded at a time: each may take much memory
MOST_EXPLAINING = 32  # at a time: each is as much work as many predicts


class Service:
    """A model folder that is asked and taught at the same time.

    Parameters
    ----------
    settings : Settings
        How it runs.
    new : str, optional
        Foundation model of a new model, if the folder holds none yet.
    options : dict, optional
        For :meth:`klda.learner.Learner.load`.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        new: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.settings = settings
        self.writer = Writer(settings, Keeper(settings.model, new=new, options=options))
        self.inference = Inference(
            self._encode,
            lambda: self.writer.snapshot,
            max_batch=settings.max_batch,
            wait=settings.batch_wait,
            max_queue=settings.max_queue,
        )
        self._aside = ThreadPoolExecutor(2, thread_name_prefix="aside")
        self._preparing = ThreadPoolExecutor(MOST_PREPARING, thread_name_prefix="prepare")
        self._explaining = 0
        self._atlas: tuple[int, Atlas] | None = None
        self.modality = "text"
        self.foundation: dict[str, Any] = {}
        self.ready = False

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Open the model, replay the journal, load the foundation model, unless done. Blocks."""
        if self.ready:
            return
        self.writer.start()
        learner = self.writer.learner
        self.modality, self.foundation = learner.modality, learner.foundation
        self._encoder = learner.encoder
        share_processors()
        self.inference.start()
        self.ready = True

    def stop(self) -> None:
        """Finish what waits and fold the journal. Blocks."""
        self.ready = False
        self.inference.stop()
        self.writer.stop()
        self.close_aside()

    def close_aside(self) -> None:
        """End the threads beside the two that answer and write."""
        for pool in (self._aside, self._preparing):
            pool.shutdown(wait=False, cancel_futures=True)

    @property
    def trouble(self) -> dict[str, str]:
        """For each part why it can't do its work; "" for each that can."""
        return {"inference": self.inference.trouble, **self.writer.trouble}

    @property
    def keeps_ledger(self) -> bool:
        """Whether the model keeps the features it learned, and can forget classes exactly."""
        return self.writer.learner.ledger is not None

    @property
    def snapshot(self) -> Snapshot:
        """What answers come from now."""
        return self.writer.snapshot

    # ------------------------------------------------------------------ asking

    async def prepare(self, function: Callable[[Any], Any], value: Any) -> Any:
        """Prepare inputs in a thread, for few requests at a time.

        Parameters
        ----------
        function : callable
            What to do.
        value : object
            With what.

        Returns
        -------
        object
            What the function returns.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._preparing, function, value)

    async def predict(self, inputs: Any, top: int) -> tuple[Snapshot, list[Answer]]:
        """Answer.

        Parameters
        ----------
        inputs : sequence or ndarray
            Texts, images or feature rows.
        top : int
            How many classes to name for each.

        Returns
        -------
        snapshot, answers
            What was asked, and one answer an input.
        """
        self._check_has_classes()
        future = self.inference.ask(self._checked(inputs), top)
        snapshot, answers = await asyncio.wrap_future(future)
        if not answers:
            raise _no_classes()
        return snapshot, answers

    async def explain(self, value: Any) -> dict[str, Any]:
        """Say why the model answers as it does.

        Parameters
        ----------
        value : object
            One input.

        Returns
        -------
        dict
            JSON-able.
        """
        self._check_has_classes()
        snapshot = self.snapshot
        if isinstance(value, np.ndarray):
            self._checked(value[None, :])
        if self._explaining >= MOST_EXPLAINING:
            raise BusyError("Too many explanations are waiting: try again in a moment.")
        self._explaining += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._aside, explain, snapshot, value)
        finally:
            self._explaining -= 1

    async def atlas(self) -> Atlas:
        """Return where the classes lie and which are easily confused.

        Returns
        -------
        Atlas
            Made once for each state of the model.
        """
        version = self.snapshot.version
        if self._atlas is None or self._atlas[0] != version:
            inspected = self.writer.inspect(lambda learner, _: look(learner))
            classes = await asyncio.wrap_future(inspected)
            before = None if self._atlas is None else self._atlas[1]
            loop = asyncio.get_running_loop()
            made = await loop.run_in_executor(self._aside, Atlas.of, classes, before)
            self._atlas = (version, made)
        return self._atlas[1]

    async def tallies(self) -> list[tuple[float, int, int, int]]:
        """Return how the model answered just before each time it was taught.

        Returns
        -------
        list of (when, right, wrong, new)
            Oldest first.
        """
        return await asyncio.wrap_future(self.writer.inspect(lambda _, m: list(m.tallies)))

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
            One an input.
        key : str
            Idempotency key; a second learn with it counts once.
        content : object
            What the key stands for, JSON-able.

        Returns
        -------
        Acknowledgement
            What came of it.
        """
        _check_lengths(inputs, labels)
        mark = digest("learn", content) if key else ""
        encoding = self.inference.encode(self._checked(inputs), list(labels))
        rows, (right, wrong, new) = await asyncio.wrap_future(encoding)
        change = Change(
            "learn", tuple(labels), rows, key=key, digest=mark, right=right, wrong=wrong, new=new
        )
        return await self._submit(change)

    async def forget(
        self, labels: Sequence[Label], inputs: Any = None, key: str = "", content: Any = None
    ) -> Acknowledgement:
        """Forget classes, or exactly some samples that were learned.

        Parameters
        ----------
        labels : sequence of label
            The classes; with `inputs` one label an input.
        inputs : sequence or ndarray, optional
            The samples.
        key, content
            As for `learn`.

        Returns
        -------
        Acknowledgement
            Its number undoes the forgetting of classes.
        """
        mark = digest("forget", content) if key else ""
        if inputs is None:
            return await self._submit(Change("forget", tuple(labels), key=key, digest=mark))
        _check_lengths(inputs, labels)
        encoding = self.inference.encode(self._checked(inputs))
        rows, _ = await asyncio.wrap_future(encoding)
        return await self._submit(Change("remove", tuple(labels), rows, key=key, digest=mark))

    async def undo(self, number: int) -> Acknowledgement:
        """Bring back the classes that a forget dropped.

        Parameters
        ----------
        number : int
            Number of the forget.

        Returns
        -------
        Acknowledgement
            What came of it.
        """
        return await self._submit(Change("restore", target=number))

    async def rename(self, old: Label, new: Label) -> Acknowledgement:
        """Give a class another name.

        Parameters
        ----------
        old, new : label
            The class, and a name that no other class has.

        Returns
        -------
        Acknowledgement
            What came of it.
        """
        return await self._submit(Change("rename", (old, new)))

    async def _submit(self, change: Change) -> Acknowledgement:
        # Shielded: a client that goes away must not leave a change half made.
        return await asyncio.shield(asyncio.wrap_future(self.writer.submit(change)))

    # ------------------------------------------------------------------ inside

    def _encode(self, inputs: Any) -> np.ndarray:
        return self._encoder.encode(inputs)

    def _check_has_classes(self) -> None:
        if not self.snapshot.counts:
            raise _no_classes()

    def _checked(self, inputs: Any) -> Any:
        """Refuse rows of another length before they are batched with others."""
        if not isinstance(inputs, np.ndarray):
            return inputs
        expected = self.snapshot.width
        if expected and inputs.shape[1] != expected:
            raise ServiceError(
                f"features has rows of {inputs.shape[1]} numbers, but this model's have {expected}."
            )
        return inputs


def _check_lengths(inputs: Any, labels: Sequence[Label]) -> None:
    if len(inputs) != len(labels):
        raise ServiceError(
            f"There are {len(inputs)} inputs and {len(labels)} labels: give one label for each."
        )


def _no_classes() -> ConflictError:
    return ConflictError("This model has no classes yet: teach it something first.")
