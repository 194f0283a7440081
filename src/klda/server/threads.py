"""How the service's threads share the processors, and hand over results."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from threadpoolctl import ThreadpoolController

from klda.engine.cpus import usable_cpus

LOW_PRIORITY = 5


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


def settle(future: Future, outcome: Any) -> None:
    """Give a future its result or its error, unless it was cancelled."""
    if future.done() or not future.set_running_or_notify_cancel():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
