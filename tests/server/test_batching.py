"""The thread that encodes: batches, how they are divided, and errors of single requests."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from klda.engine.solution import Answer
from klda.server.batching import SLICE, Batcher


class Model:
    """Stands for a snapshot; refuses to answer for rows above 100."""

    counts = {"a": 1}  # noqa: RUF012

    def answer(self, rows, top):
        if (rows > 100).any():
            raise ArithmeticError(f"too far: {rows.max():g}")
        return [Answer([("a", float(row[0]))], None, None) for row in rows]


@pytest.fixture
def batcher():
    made = Batcher(Model, 64)
    yield made
    made.stop()


def rows(*values):
    return np.array(values, np.float32)[:, None]


def test_an_answer_that_fails_is_the_error_of_its_request_only(batcher):
    asked = [batcher.submit(rows(*values), 1) for values in ((1, 2), (500,), (3,), (600, 4))]
    learned = batcher.submit(rows(7, 8))
    batcher.start([lambda rows: rows])
    assert [a.top[0][1] for a in asked[0].result(5)[1]] == [1, 2]
    assert [a.top[0][1] for a in asked[2].result(5)[1]] == [3]
    for future, value in ((asked[1], 500), (asked[3], 600)):
        with pytest.raises(ArithmeticError, match=f"too far: {value}"):
            future.result(5)
    assert learned.result(5).tolist() == [[7], [8]]
    assert batcher.waiting == 0
    assert batcher.submit(rows(9), 1).result(5)[1][0].top[0][1] == 9


def test_an_error_that_nobody_foresaw_does_not_end_the_thread(batcher):
    def fail(size):
        raise ZeroDivisionError

    batcher.on_batch = fail
    batcher.start([lambda rows: rows])
    with pytest.raises(ZeroDivisionError):
        batcher.submit(rows(1), 1).result(5)
    batcher.on_batch = lambda size: None
    assert batcher.submit(rows(1), 1).result(5)[1]


def taken(room, *lengths, learns=()):
    """How many inputs of each request are in the first batch."""
    batcher = Batcher(Model, room)
    for n in lengths:
        batcher.submit(range(n), 1)
    for n in learns:
        batcher.submit(range(n))
    taken = {job: at.stop - at.start for job, at in batcher._take()}
    return [taken.get(job, 0) for job in batcher._jobs]


def test_short_requests_go_whole_and_long_ones_take_turns():
    assert taken(64, 300) == [64]
    assert taken(64, 3, 2, 1) == [3, 2, 1]
    assert taken(64, *[1] * 100) == [1] * 64 + [0] * 36
    assert taken(64, 300, 300) == [SLICE] * 2
    assert taken(64, 300, 1) == [SLICE, 1]
    assert taken(64, *[300] * 100) == [SLICE] * 4 + [0] * 96
    assert taken(1, 300, 1) == [1, 0]
    assert taken(64, 300, 300, *[1] * 60)[:2] == [SLICE, 0]  # the oldest, then the short ones


def test_learns_wait_for_predicts_and_not_for_ever():
    assert taken(64, learns=[300]) == [64]
    assert taken(64, 1, learns=[300, 300]) == [1, SLICE, 0]
    assert taken(64, *[1] * 100, learns=[300])[-1] == SLICE


def test_a_small_predict_does_not_wait_for_a_large_one():
    begun, steps = threading.Event(), threading.Semaphore(0)
    sizes, values = [], [i / 2 for i in range(160)]

    def encode(inputs):
        begun.set()
        assert steps.acquire(timeout=20)
        sizes.append(len(inputs))
        return inputs

    batcher = Batcher(Model, 64)
    batcher.start([encode])
    large = batcher.submit(rows(*values), 1)
    assert begun.wait(20)
    small = batcher.submit(rows(5), 1)
    steps.release(2)
    assert small.result(20)[1][0].top[0][1] == 5
    assert sizes == [64, 1 + SLICE]
    steps.release(10)
    assert [a.top[0][1] for a in large.result(20)[1]] == values
    batcher.stop()


def test_several_threads_share_a_large_request_and_keep_its_order():
    both, used = threading.Barrier(2, timeout=20), set()

    def encode(inputs):
        if threading.get_ident() not in used:
            used.add(threading.get_ident())
            both.wait()  # until the other thread has a part, too
        return inputs

    batcher = Batcher(Model, 8)
    asked = batcher.submit(rows(*range(100)), 1)
    learned = batcher.submit(rows(*range(50)))
    batcher.start([encode, encode])
    assert [answer.top[0][1] for answer in asked.result(20)[1]] == list(range(100))
    assert learned.result(20)[:, 0].tolist() == list(range(50))
    assert len(used) == 2
    assert batcher.waiting == 0
    batcher.stop()


def test_a_request_that_is_cancelled_while_it_waits_does_not_wait_for_ever(batcher):
    asked = [
        batcher.submit(rows(1), 1),
        batcher.submit(rows(*range(200))),
        batcher.submit(rows(2), 1),
    ]
    assert asked[0].cancel()
    assert asked[1].cancel()
    batcher.start([lambda rows: rows])
    assert asked[2].result(5)
    assert batcher.submit(rows(3)).result(5).tolist() == [[3]]
    assert batcher.waiting == 0
