"""Several processes that answer, one that writes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest

from klda.client import Client
from klda.learner import Learner
from klda.server.app import create_app
from klda.server.publish import Publisher, Subscriber
from klda.server.run import uvicorn_config
from klda.server.security import Gate, Keys
from klda.server.service import Service
from klda.server.settings import Settings
from klda.server.snapshot import Snapshot
from klda.server.workers import Forward
from klda_bench import loadtest

from .conftest import CENTRES, KEYS, TEACH, rows, samples

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


@contextmanager
def parent(folder, **changes):
    """The application on a socket of its own, as workers reach it."""
    import uvicorn

    app = create_app(Service(replace(Settings(model=folder), **changes)))
    address = str(folder.parent / "parent.sock")
    server = uvicorn.Server(uvicorn_config(app, uds=address))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.02)
    yield address
    server.should_exit = True
    thread.join(30)


def through_a_worker(address, ask, observe=lambda *_: None):
    """Call `ask` with a function that makes a client of a worker, each without a cookie."""

    async def run():
        forward = Forward(None, address)
        gate = Gate(forward, Settings(Path()), Keys(()), observe, lambda by: None)
        async with forward._connected():
            await ask(
                lambda: httpx.AsyncClient(
                    transport=httpx.ASGITransport(gate), base_url="http://127.0.0.1:8000"
                )
            )

    asyncio.run(run())


def test_a_session_is_not_given_to_other_clients_of_a_worker(features_model):
    async def ask(client):
        async with client() as one:
            assert (await one.get("/")).status_code == 303
            signed = await one.post("/login", data={"key": TEACH})
            assert signed.headers["Location"] == "/"
            assert (await one.get("/")).status_code == 200
        async with client() as another:
            assert (await another.get("/")).status_code == 303
            forgotten = await another.post("/page/forget", data={"label": "ants"})
            assert forgotten.status_code == 401

    with parent(features_model, keys=KEYS) as address:
        through_a_worker(address, ask)


def test_what_is_passed_on_is_counted_by_the_parent_alone(features_model):
    counted = []

    async def ask(client):
        async with client() as one:
            assert (await one.get("/v1/classes?search=an&limit=1")).json()["total"] == 1
            assert not counted
            metrics = (await one.get("/v1/metrics")).text
            assert 'method="GET",path="/v1/classes",status="200"} 1.0' in metrics
            assert (await one.get("/", headers={"Host": "evil.example"})).status_code == 403
            assert counted == [("GET", "other", 403)]

    with parent(features_model) as address:
        through_a_worker(address, ask, lambda *seen: counted.append(seen[:3]))


def test_a_parent_that_is_gone_is_said_as_such(tmp_path):
    async def ask(client):
        async with client() as one:
            assert (await one.get("/v1/model")).status_code == 503

    through_a_worker(str(tmp_path / "nobody.sock"), ask)


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
