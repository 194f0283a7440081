"""The model folder of a running service: locked, loaded, saved to in the background."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from klda.encoders import Encoder
from klda.learner import Learner
from klda.learner import folder as storage
from klda.server.settings import ServiceSettings
from klda.server.threads import lower_priority


def open_learner(settings: ServiceSettings, encoder: Encoder | None = None) -> Learner:
    """Load the model of a service's folder, or make a new one if it has none."""
    options: dict[str, Any] = {} if settings.device == "auto" else {"device": settings.device}
    if storage.exists(settings.model):
        return Learner.load(settings.model, model=encoder, **options)
    assert settings.new is not None
    return Learner(encoder or settings.new, **options)


class LockedFolder:
    """Holds the lock of a service's model folder.

    One thread does all the work, because the lock belongs to a thread.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.path, self._settings = settings.model, settings
        self._thread = ThreadPoolExecutor(1, "folder", initializer=lower_priority)
        self._held = ExitStack()
        self._encoder: Encoder | None = None

    @property
    def has_model(self) -> bool:
        """Whether a model was saved to it."""
        return storage.exists(self.path)

    def lock(self) -> None:
        """Lock the folder; raises ModelBusyError if another process writes to it."""
        self._thread.submit(self._lock).result()

    def load(self) -> tuple[Learner, storage.StoredModel | None]:
        """Return the learner, and what the folder holds; a new learner if there is no model."""
        return self._thread.submit(self._load).result()

    def save(self, arrays: Mapping[str, np.ndarray], document: Mapping[str, Any]) -> Future:
        """Save what :meth:`Learner.pack` returned, in the background."""
        # Overwriting is safe: nobody else can have saved while this process holds the lock.
        return self._thread.submit(storage.save, self.path, arrays, document)

    def close(self) -> None:
        """Finish saving and release the lock."""
        self._thread.submit(self._held.close).result()
        self._thread.shutdown()

    def _lock(self) -> None:
        if self._settings.new is None and not self.has_model:
            storage.load(self.path)  # raises the error that says how to make one
        self._held.enter_context(storage.writer_lock(self.path, timeout=2.0))

    def _load(self) -> tuple[Learner, storage.StoredModel | None]:
        # The encoder is opened once: loading the model again must not load the network again.
        learner = open_learner(self._settings, self._encoder)
        stored = storage.load(self.path) if self.has_model else None
        self._encoder = learner.encoder
        return learner, stored
