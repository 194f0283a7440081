"""How many threads BLAS uses on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import scipy


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let BLAS use one thread within this block.

    Only in the main thread: OpenBLAS ignores limits set in other threads, and overlapping blocks
    could not restore the previous limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _libraries().limit(limits=1):
        yield


@lru_cache(maxsize=1)
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    assert scipy.linalg.blas  # SciPy loads it when it is first asked for
    return ThreadpoolController().select(user_api="blas")
