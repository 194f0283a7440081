"""BLAS on the CPU: whose it is, and how many threads it uses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import scipy


def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the product of two matrices in double precision, with SciPy's BLAS.

    NumPy has a BLAS of its own, and the threads of each would wait for the other.
    """
    # The transpose of a C-ordered array is the Fortran-ordered one that BLAS takes without a copy.
    return np.asarray(scipy.linalg.blas.dgemm(1.0, right.T, left.T).T)


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
