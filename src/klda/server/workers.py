"""Threads and processes: how they encode, share the processors, and hand over results."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from concurrent.futures import Future, InvalidStateError, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.linalg.blas import ssyrk
from threadpoolctl import ThreadpoolController

from klda.cpus import usable_cpus
from klda.learner import Learner
from klda.server.errors import ServerError
from klda.server.settings import ServiceSettings

LOW_PRIORITY = 5
BLAS_MEMORY = 32 << 20  # bytes that OpenBLAS takes, for each thread that uses it at the same time

log = logging.getLogger("klda.server")


class EncoderProcess:
    """Encodes inputs in another process (``klda serve --workers N``), for one thread.

    A process that dies is replaced.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._settings = replace(settings, keys=())  # secrets, not needed there
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, _prepare, (self._settings,))
        self._pool.submit(os.getpid)  # starts the process, which loads the foundation model

    def encode(self, inputs: Any) -> np.ndarray:
        """Return the feature rows of inputs."""
        for _ in range(2):
            try:
                return self._pool.submit(_encode, inputs).result()
            except BrokenProcessPool:
                log.error("worker ended")
                self._start()
        raise ServerError("A worker process died while encoding: try again in a moment.", 503)

    def stop(self) -> None:
        """End the process."""
        self._pool.shutdown()


def _prepare(settings: ServiceSettings) -> None:
    """Open the foundation model in a process that ends when the service ends or is killed."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # they are for the service, which then stops this
    threading.Thread(target=_end_with_service, daemon=True).start()
    learner = Learner.load(settings.model, **settings.device_options)
    _prepare.encoder = learner.encoder  # type: ignore[attr-defined]


def _end_with_service() -> None:
    service = multiprocessing.parent_process()
    assert service is not None
    service.join()
    os._exit(1)


def _encode(inputs: Any) -> np.ndarray:
    return _prepare.encoder.encode(inputs)  # type: ignore[attr-defined]


def lower_priority() -> None:
    """Let the other threads of this process run first, where the system can do that."""
    if hasattr(os, "setpriority") and hasattr(threading, "get_native_id"):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)


def divide_processors(workers: int) -> None:
    """Let each process that is started from now on use an equal part of the processors.

    With more threads than processors they would mostly wait for each other.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, usable_cpus() // workers)))


def limit_blas_threads() -> None:
    """Keep learning from holding up answers inside the linear algebra libraries.

    OpenBLAS lets one caller at a time use its threads. NumPy and SciPy bring a copy each: NumPy's
    gets one thread, which waits for nobody, and SciPy's, which factorises, leaves one processor
    free.
    """
    spare = max(1, usable_cpus() - 1)
    for library in ThreadpoolController().lib_controllers:
        if library.user_api == "blas":
            most = 1 if "numpy" in library.filepath else spare
            library.set_num_threads(min(most, library.num_threads))


def claim_blas_memory() -> None:
    """Let the linear algebra libraries take their working memory; raise if there is too little.

    OpenBLAS takes it when it is first used. If it can't, it tries forever or ends the process.
    """
    np.empty(4 * BLAS_MEMORY, np.uint8)  # more than NumPy's and SciPy's copies take together
    some = np.ones((256, 256), np.float32)
    some @ some
    ssyrk(1.0, some)


def started_threads(number: int) -> ThreadPoolExecutor:
    """Return a pool whose threads all run; raise if there is too little memory for one of them."""
    pool, all_there = ThreadPoolExecutor(number, "background"), threading.Barrier(number + 1)
    try:
        for _ in range(number):
            pool.submit(all_there.wait)
        all_there.wait()
    except BaseException:
        all_there.abort()
        pool.shutdown()
        raise
    return pool


def settle(future: Future, outcome: Any) -> None:
    """Give a future its result or its error, unless it has one or was cancelled."""
    with suppress(InvalidStateError):
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
