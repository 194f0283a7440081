"""The model folder of a running service: opened and locked, replayed, folded into.

One thread does all of it, because the folder's lock belongs to a thread.
"""

from __future__ import annotations

import copy
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from klda import model_document, storage
from klda.learner import Learner
from klda.server.memory import Memory
from klda.server.snapshot import PreparedEncoder

LOW_PRIORITY = 5


def yield_to_others() -> None:
    """Let other threads of this process have the processor first, where the system can do that."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)


def share_processors() -> None:
    """Keep learning from holding up answers inside the linear algebra libraries.

    OpenBLAS lets one caller at a time use its threads: an answer would wait for a factorisation to
    finish. NumPy and SciPy bring a copy each. Answers use NumPy's, on one thread, which waits for
    nobody; SciPy's, which only learning uses, leaves a processor free.
    """
    spare = max(1, (os.cpu_count() or 2) - 1)
    for library in ThreadpoolController().lib_controllers:
        if library.user_api == "blas":
            most = 1 if "numpy" in library.filepath else spare
            library.set_num_threads(min(most, library.num_threads))


class PackedClassifier:
    """A classifier as it was at one moment, ready to be saved while the real one goes on.

    Parameters
    ----------
    classifier : estimator
        With at least one class.
    memory : Memory
        Saved with it.
    """

    def __init__(self, classifier: Any, memory: Memory) -> None:
        self.n_features_in_ = classifier.n_features_in_
        self.classes_ = classifier.classes_
        self.class_count_ = classifier.class_count_
        arrays, self._meta = classifier.to_state()
        # What learning changes in place must be copied now; the triangle was made for this call.
        self._arrays = {
            name: array.copy() if _changes(name) else array for name, array in arrays.items()
        }
        own, meta = memory.pack()
        self._arrays |= own
        self._meta["service"] = meta

    def to_state(self, compact: bool = False) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Return what was packed."""
        return self._arrays, self._meta


def _changes(name: str) -> bool:
    return not name.startswith("predict/") and not name.endswith("/triangle")


class Keeper:
    """Holds the model folder.

    Parameters
    ----------
    folder : Path
        The model folder; it may not exist yet.
    new : str, optional
        Foundation model of a new model, if the folder holds none. Without it, there must be one.
    options : dict
        For :meth:`Learner.load`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        new: str | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self._new = new
        self._options = options or {}
        self._thread = ThreadPoolExecutor(
            1, thread_name_prefix="keeper", initializer=yield_to_others
        )
        self._held = ExitStack()
        self._encoder: PreparedEncoder | None = None

    def open(self) -> tuple[Learner, Memory]:
        """Lock the folder and load the model.

        Returns
        -------
        learner, memory
            As last saved.

        Raises
        ------
        ModelBusyError
            If another process writes to the folder, such as another service.
        """
        return self._thread.submit(self._open).result()

    def reload(self) -> tuple[Learner, Memory]:
        """Load the model again."""
        return self._thread.submit(self._load).result()

    def save(self, learner: Learner, memory: Memory) -> Future:
        """Save in the background; what is saved is the state at the time of the call.

        Parameters
        ----------
        learner : Learner
            With at least one class.
        memory : Memory
            Saved with it.

        Returns
        -------
        Future of None
        """
        packed = copy.copy(learner)
        packed.classifier = PackedClassifier(learner.classifier, memory)
        # Overwriting is safe: nobody else can have saved while this process holds the lock.
        return self._thread.submit(packed.save, self.folder, overwrite=True)

    def close(self) -> None:
        """Finish saving and give the folder back."""
        self._thread.submit(self._held.close).result()
        self._thread.shutdown()

    def _open(self) -> tuple[Learner, Memory]:
        if self._new is None and not storage.exists(self.folder):
            storage.load(self.folder)  # raises the error that says how to make one
        self._held.enter_context(storage.writer_lock(self.folder, timeout=2.0))
        return self._load()

    def _load(self) -> tuple[Learner, Memory]:
        if not storage.exists(self.folder) and self._new is not None:
            made = Learner(self._new, **self._options)
            return Learner(self._prepare(made), classifier=made.classifier), Memory()
        encoder = self._prepare(Learner.load(self.folder, **self._options))
        stored = storage.load(self.folder)
        with model_document.checked(self.folder):
            memory = Memory.unpack(stored.arrays, stored.document["classifier"].get("service", {}))
        return Learner.load(self.folder, model=encoder, **self._options), memory

    def _prepare(self, learner: Learner) -> PreparedEncoder:
        if self._encoder is None:  # opened once: a reload must not load the network again
            self._encoder = PreparedEncoder(learner.encoder)
        return self._encoder
