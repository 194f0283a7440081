"""Threads that read ahead and keep up: order, errors, bounds, and that none is left behind."""

from __future__ import annotations

import threading
import time

import pytest

from klda.data import threads
from klda.data.threads import map_behind, read_ahead


def work_behind(work, items):
    for _ in map_behind(work, items):
        pass


def helpers():
    return [
        t
        for t in threading.enumerate()
        if t.name == "read ahead" or t.name.startswith("work behind")
    ]


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    yield
    assert not helpers()


def wait_until(condition):
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    assert condition()


def test_reading_ahead_gives_the_same_items_in_the_same_order():
    assert list(read_ahead(iter(range(1000)))) == list(range(1000))
    assert list(read_ahead([])) == []


def test_reading_ahead_makes_the_next_items_while_one_is_used_but_only_a_few():
    made = []

    def items():
        for i in range(100):
            made.append(i)
            yield i

    stream = read_ahead(items())
    assert next(stream) == 0
    most = threads.DEPTH + 2  # one in use, those that wait, one with nowhere to go
    wait_until(lambda: len(made) == most)
    time.sleep(0.05)
    assert len(made) == most
    stream.close()


def test_reading_ahead_raises_an_error_in_its_place():
    def items():
        yield 1
        yield 2
        raise ValueError("row 3 is broken")

    stream = read_ahead(items())
    assert [next(stream), next(stream)] == [1, 2]
    with pytest.raises(ValueError, match="row 3 is broken"):
        next(stream)


def test_closing_read_ahead_closes_what_it_reads_in_the_thread_that_reads():
    closed = []

    def items():
        try:
            yield from range(100)
        finally:
            closed.append(threading.current_thread().name)

    stream = read_ahead(items())
    next(stream)
    stream.close()
    assert closed == ["read ahead"]


def test_an_interrupt_of_the_caller_stops_the_reader():
    def use():
        for _ in read_ahead(iter(int, 1)):  # endless
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        use()


def test_a_reader_that_is_stuck_does_not_hold_the_caller():
    go_on = threading.Event()

    def items():
        yield 1
        go_on.wait()

    stream = read_ahead(items(), patience=0.05)
    next(stream)
    start = time.monotonic()
    stream.close()
    assert time.monotonic() - start < 5
    go_on.set()
    wait_until(lambda: not helpers())


def test_working_behind_works_in_order_in_another_thread():
    done = []
    work_behind(lambda item: done.append((item, threading.current_thread().name)), range(100))
    assert done == [(i, "work behind_0") for i in range(100)]


def test_working_behind_gives_what_the_work_returns():
    assert list(map_behind(lambda item: item**2, range(9))) == [i**2 for i in range(9)]
    assert list(map_behind(str, [])) == []


def test_closing_what_works_behind_stops_it():
    done = []
    stream = map_behind(done.append, iter(int, 1))  # endless
    next(stream)
    stream.close()
    assert 1 <= len(done) <= 3


def test_working_behind_holds_no_more_than_it_is_told():
    begun, go_on = [], threading.Event()

    def work(item):
        begun.append(item)
        go_on.wait()

    made = []

    def items():
        for i in range(5):
            made.append(i)
            yield i

    feeder = threading.Thread(target=work_behind, args=(work, items()))
    feeder.start()
    wait_until(lambda: made == [0, 1, 2])  # one at work, one that waits, one with nowhere to go
    time.sleep(0.05)
    assert made == [0, 1, 2]
    assert begun == [0]
    go_on.set()
    feeder.join()
    assert begun == [0, 1, 2, 3, 4]


def test_working_behind_hands_over_the_error_of_the_work_and_works_no_further():
    done = []

    def work(item):
        if item == 3:
            raise ValueError("batch 3 is broken")
        done.append(item)

    with pytest.raises(ValueError, match="batch 3 is broken"):
        work_behind(work, range(1000))
    assert done == [0, 1, 2]
