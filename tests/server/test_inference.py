"""The thread that encodes: batches, shares of them, and errors that stay where they belong."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from klda.server.inference import SHARE, Inference, Job, shares
from klda.server.snapshot import Answer


class Model:
    """Stands for a snapshot; refuses to answer for rows above 100."""

    counts = {"a": 1}  # noqa: RUF012

    def answer(self, rows, top):
        if (rows > 100).any():
            raise ArithmeticError(f"too far: {rows.max():g}")
        return [Answer([("a", float(row[0]))], None, None) for row in rows]

    def compare(self, rows, labels):
        if (rows > 100).any():
            raise ArithmeticError(f"too far: {rows.max():g}")
        return [0] * len(labels)


@pytest.fixture
def inference():
    made = Inference(lambda rows: rows, Model, max_batch=64, wait=0.0, max_queue=1000)
    yield made
    made.stop()


def rows(*values):
    return np.array(values, np.float32)[:, None]


def test_an_answer_that_fails_is_the_error_of_its_request_only(inference):
    asked = [inference.ask(rows(*values), 1) for values in ((1, 2), (500,), (3,), (600, 4))]
    learned = inference.encode(rows(7, 8), ["a", "a"])
    inference.start()
    assert [a.top[0][1] for a in asked[0].result(5)[1]] == [1, 2]
    assert [a.top[0][1] for a in asked[2].result(5)[1]] == [3]
    for future, value in ((asked[1], 500), (asked[3], 600)):
        with pytest.raises(ArithmeticError, match=f"too far: {value}"):
            future.result(5)
    assert learned.result(5)[0].tolist() == [[7], [8]]
    assert inference.waiting == 0
    assert inference.ask(rows(9), 1).result(5)[1][0].top[0][1] == 9


def test_a_comparison_that_fails_is_the_error_of_its_learn_only(inference):
    bad, good = inference.encode(rows(500), ["a"]), inference.encode(rows(5), ["a"])
    inference.start()
    with pytest.raises(ArithmeticError):
        bad.result(5)
    assert good.result(5)[1] == (1, 0, 0)


def test_an_error_that_nobody_foresaw_does_not_end_the_thread(inference):
    def fail(size):
        raise ZeroDivisionError

    inference.on_batch = fail
    inference.start()
    with pytest.raises(ZeroDivisionError):
        inference.ask(rows(1), 1).result(5)
    inference.on_batch = lambda size: None
    assert inference.ask(rows(1), 1).result(5)[1]


def taken(room, *lengths):
    return [n for _, n in shares([Job(range(n)) for n in lengths], room)]


def test_short_requests_go_whole_and_long_ones_share_what_is_left():
    assert taken(64, 300) == [64]
    assert taken(64, 3, 2, 1) == [3, 2, 1]
    assert taken(64, *[1] * 100) == [1] * 64
    assert sum(taken(64, 300, 300)) == 64
    assert min(taken(64, 300, 300)) >= SHARE
    assert taken(64, 300, 1) == [SHARE, 1]
    assert taken(64, 1, 300) == [1, SHARE]
    assert taken(SHARE, 300, 1) == [SHARE - 1, 1]
    assert taken(1, 300, 1) == [1]


def test_the_oldest_request_is_never_left_behind():
    assert taken(64, 300, *[1] * 100)[0] == SHARE


def test_a_small_predict_does_not_wait_for_a_large_one():
    begun, steps = threading.Event(), threading.Semaphore(0)
    sizes, values = [], [i / 2 for i in range(160)]

    def encode(inputs):
        begun.set()
        assert steps.acquire(timeout=20)
        sizes.append(len(inputs))
        return inputs

    inference = Inference(encode, Model, max_batch=64, wait=0.0, max_queue=1000)
    inference.start()
    large = inference.ask(rows(*values), 1)
    assert begun.wait(20)
    small = inference.ask(rows(5), 1)
    steps.release(2)
    assert small.result(20)[1][0].top[0][1] == 5
    assert sizes == [64, 1 + SHARE]
    steps.release(10)
    assert [a.top[0][1] for a in large.result(20)[1]] == values
    inference.stop()
