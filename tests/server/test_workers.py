"""Several processes that encode (``klda serve --workers N``)."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from klda.errors import KldaError
from klda.server.settings import ServiceSettings
from klda.server.workers import EncoderProcess, started_threads
from tests.factories import ServiceProcess

from .conftest import journaled, rows, serving, wait_for

TEXTS = ["where is my card?", "it has not arrived", "how do I order a new card?"]


@pytest.fixture
def process(text_model):
    process = EncoderProcess(ServiceSettings(model=text_model))
    yield process
    (running,) = process._pool._processes.values()
    process.stop()
    assert running.exitcode == 0


def test_threads_that_find_no_memory_are_missed_at_the_start(monkeypatch):
    start, left = threading.Thread.start, iter([True, True])

    def fail_later(thread):
        if not next(left, False):
            raise RuntimeError("can't start new thread")
        start(thread)

    before = threading.active_count()
    monkeypatch.setattr(threading.Thread, "start", fail_later)
    with pytest.raises(RuntimeError, match="new thread"):
        started_threads(3)
    assert threading.active_count() == before


def test_an_error_in_a_process_is_raised_here_and_the_process_goes_on(process):
    with pytest.raises((KldaError, TypeError, ValueError)):
        process.encode([object])
    assert process.encode(TEXTS).shape[0] == 3


@pytest.mark.skipif(sys.platform == "win32", reason="kills with a POSIX signal")
def test_a_process_that_dies_is_replaced(process):
    first = process.encode(TEXTS)
    os.kill(*process._pool._processes, signal.SIGKILL)
    time.sleep(0.2)
    assert process.encode(TEXTS) == pytest.approx(first)


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes as Linux does")
def test_processes_end_with_a_service_that_is_killed(text_model):
    server = ServiceProcess(text_model, "--workers", "2")
    server.wait()
    tasks = Path(f"/proc/{server.process.pid}/task")
    wait_for(lambda: len(children(tasks)) >= 2, 60)
    running = children(tasks)
    server.kill()
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in running), 60)


def children(tasks):
    return [child for file in tasks.glob("*/children") for child in file.read_text().split()]


@pytest.mark.skipif(sys.platform == "win32", reason="stops with a POSIX signal")
def test_answers_of_all_workers_include_what_was_acknowledged(text_model):
    server = ServiceProcess(text_model, "--workers", "2")
    server.wait()
    with ThreadPoolExecutor(8) as pool, httpx.Client(base_url=server.address, timeout=60) as client:

        def ask(text):
            return client.post("/v1/predict", json={"text": text}).json()["predictions"][0]

        for i in range(3):
            label = f"fresh{i}"
            texts = [
                f"{['the zebra', 'a tax form', 'my old bike'][i]} in room {j}" for j in range(4)
            ]
            body = {"texts": texts, "labels": [label] * 4}
            assert client.post("/v1/learn", json=body).status_code == 200
            assert {answer["label"] for answer in pool.map(ask, texts * 3)} == {label}
        assert client.get("/").status_code == 200
        metrics = client.get("/v1/metrics").text
        assert 'path="/v1/predict",status="200"} 36.0' in metrics
    assert server.stop() == 0
    assert journaled(text_model) == []


def test_features_are_not_sent_to_processes(features_model):
    with serving(features_model, workers=3) as client:
        answer = client.post("/v1/predict", json={"features": rows("bees", 300)}).json()
        assert {p["label"] for p in answer["predictions"]} == {"bees"}
        assert not client.app.state.service._processes
