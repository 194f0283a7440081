"""Several processes that answer, one that writes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from klda.client import Client
from klda.learner import Learner
from klda.server import loadtest
from klda.server.publish import Publisher, Subscriber
from klda.server.snapshot import Snapshot

from .conftest import CENTRES, rows, samples

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs Unix sockets")


def test_what_is_published_answers_like_the_original(features_model, tmp_path):
    learner = Learner.load(features_model)
    publisher, subscriber = Publisher(tmp_path), Subscriber(tmp_path, Learner.load(features_model))
    x = np.concatenate([samples(label, 5, seed=2) for label in CENTRES])
    for version in range(6):
        learner.learn(samples(f"new{version}", 3), [f"new{version}"] * 3)
        snapshot = Snapshot(learner, version)
        publisher.publish(snapshot)
        read = subscriber.current()
        assert read is subscriber.current()
        assert (read.version, read.counts) == (version, snapshot.counts)
        assert read.answer(x, 3) == snapshot.answer(x, 3)
    assert len(list(tmp_path.glob("[0-9]*.safetensors"))) == 3


def test_a_model_without_classes_can_be_published(tmp_path):
    learner = Learner("features")
    Publisher(tmp_path).publish(Snapshot(learner, 0))
    assert Subscriber(tmp_path, learner).current().counts == {}


@pytest.fixture(scope="module")
def server(features_origin, tmp_path_factory):
    import shutil

    folder = tmp_path_factory.mktemp("workers") / "model"
    shutil.copytree(features_origin, folder)
    server = loadtest.Server(folder, "--workers", "2")
    server.wait()
    yield server, folder
    assert server.stop() == 0
    assert not list(folder.glob("journal-*"))


def children(server):
    parent = server._process.pid
    lists = Path(f"/proc/{parent}/task").glob("*/children")
    found = [int(pid) for listed in lists for pid in listed.read_text().split()]
    return [pid for pid in found if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_every_worker_knows_what_was_acknowledged(server):
    server, _ = server

    async def check():
        connections = [loadtest.Connection(server.port) for _ in range(12)]
        for i in range(5):
            label = f"fresh{i}"
            body = {"features": rows(label, 4), "labels": [label] * 4}
            status, _ = await connections[i].request("POST", "/v1/learn", body)
            assert status == 200
            asked = {"features": rows(label, 1)}
            answers = await asyncio.gather(
                *(c.request("POST", "/v1/predict", asked) for c in connections)
            )
            for status, answer in answers:
                assert status == 200
                assert answer["predictions"][0]["label"] == label
        for connection in connections:
            connection.close()

    asyncio.run(check())


def test_everything_else_is_passed_on(server):
    server, _ = server
    with Client(f"http://127.0.0.1:{server.port}") as client:
        client.learn(samples("owls", 4), ["owls"] * 4)
        client.rename("owls", "wols").forget("wols")
        client.undo()
        assert client.classes["wols"] == 4
        assert client.explain(samples("ants", 1)[0])["label"] == "ants"
        assert "wols" in client._http.get("/").text
        headers = client._http.get("/").headers
        assert len(headers.get_list("x-request-id")) == 1
        assert len(headers.get_list("content-security-policy")) == 1
        kind = {"Content-Type": "application/json"}
        bad = client._http.post("/v1/learn", content=b"{", headers=kind)
        assert bad.status_code == 400
        metrics = client._http.get("/v1/metrics").text
        assert 'path="/v1/predict",status="200"' in metrics
        assert 'path="/v1/learn",status="200"' in metrics
        assert "klda_classes" in metrics


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
def test_a_worker_that_dies_is_replaced(server):
    server, _ = server
    before = children(server)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        now = children(server)
        if len(now) == 2 and before[0] not in now:
            break
        time.sleep(0.2)
    assert len(children(server)) == 2
    with Client(f"http://127.0.0.1:{server.port}") as client:
        for _ in range(20):
            assert client.predict(samples("ants", 1)).tolist() == ["ants"]
