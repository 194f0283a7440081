from __future__ import annotations

import threading

import scipy.linalg  # noqa: F401  loads SciPy's BLAS
from threadpoolctl import ThreadpoolController

from klda.engine.arrays import one_blas_thread


def n_threads():
    libraries = ThreadpoolController().select(user_api="blas")
    return [library.num_threads for library in libraries.lib_controllers]


def test_blas_has_one_thread_within_and_as_many_as_before_afterwards():
    libraries = ThreadpoolController().select(user_api="blas")
    with libraries.limit(limits=2):
        with one_blas_thread():
            assert set(n_threads()) == {1}
            with one_blas_thread():
                assert set(n_threads()) == {1}
            assert set(n_threads()) == {1}
        assert set(n_threads()) == {2}


def test_a_block_in_another_thread_leaves_the_number_of_threads_alone():
    libraries = ThreadpoolController().select(user_api="blas")
    found = []

    def other():
        with one_blas_thread():
            found.append(set(n_threads()))

    with libraries.limit(limits=2):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert found == [{2}]
        assert set(n_threads()) == {2}
