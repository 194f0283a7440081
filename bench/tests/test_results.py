from __future__ import annotations

import multiprocessing
import os

import pytest

from klda_bench.results import Results, Run, key_of


def test_the_key_depends_on_the_settings_and_not_on_their_order():
    assert key_of({"a": 1, "b": [2]}) == key_of({"b": [2], "a": 1})
    assert key_of({"a": 1}) != key_of({"a": 2})


def test_what_was_appended_is_read_back_in_order(tmp_path):
    store = Results(tmp_path / "deep" / "results.jsonl")
    assert list(store.rows()) == []
    for i in range(3):
        store.append({"key": str(i), "value": i})
    assert [record["value"] for record in store.rows()] == [0, 1, 2]


def test_a_torn_last_line_is_passed_over_and_does_not_spoil_the_next(tmp_path):
    store = Results(tmp_path / "results.jsonl")
    store.append({"key": "a", "value": 1})
    whole = store.path.read_bytes()
    for cut in range(len(whole), len(whole) + 12):
        store.path.write_bytes(whole + b'{"key":"b","value":2}\n'[: cut - len(whole)])
        assert [record["key"] for record in store.rows()] == ["a"]
        store.append({"key": "c", "value": 3})
        assert [record["key"] for record in store.rows()] == ["a", "c"]


def test_a_fuller_measurement_replaces_a_shorter_one_and_not_the_other_way(tmp_path):
    store = Results(tmp_path / "results.jsonl")
    store.append({"key": "a", "evaluate": "end", "n": 1})
    store.append({"key": "a", "evaluate": "each", "n": 2})
    store.append({"key": "a", "evaluate": "end", "n": 3})
    assert store.latest()["a"]["n"] == 2


def _write(path, start):
    store = Results(path)
    for i in range(25):
        store.append({"key": f"{start + i}", "text": "x" * 5000})


def test_two_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "results.jsonl"
    context = multiprocessing.get_context("spawn" if os.name == "nt" else "fork")
    writers = [context.Process(target=_write, args=(path, 1000 * n)) for n in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len({record["key"] for record in Results(path).rows()}) == 75


def test_a_run_is_made_once_and_kept_and_one_that_fails_is_made_again(tmp_path):
    made, told = [], []

    def make():
        made.append(1)
        if len(made) == 1:
            raise RuntimeError("stopped")
        return {"evaluate": "end", "n": len(made)}

    run = Run({"seed": 0}, "the first", make)
    with pytest.raises(RuntimeError, match="stopped"):
        Results(tmp_path / "r").once(run)
    store = Results(tmp_path / "r")
    row, is_new = store.once(run, told.append)
    assert is_new
    for one in (store, Results(tmp_path / "r")):
        assert one.once(run, told.append) == (row, False)
    assert len(made) == 2
    assert told == ["the first"]  # of a run that is found nothing is told
    fuller, is_new = store.once(run, each=True)  # only the end was measured
    assert (fuller["n"], is_new) == (3, True)
