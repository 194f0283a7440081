"""Load and kills: a real service in a process of its own.

KLDA_LOAD_SECONDS=60 loads it for longer, KLDA_KILLS=100 kills it more often; `pytest -s` shows the
latencies.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest

from klda.learner import Learner
from klda.server.client import Client
from tests.factories import ServiceProcess

from .conftest import journaled, wait_for

KILLS = int(os.environ.get("KLDA_KILLS", "5"))
SECONDS = float(os.environ.get("KLDA_LOAD_SECONDS", "4"))
CLIENTS = 32

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills with POSIX signals")


def _ask(connection, path, body, **headers):
    """Post a request on a kept-alive connection; returns the status and what the answer says."""
    headers["Content-Type"] = "application/json"
    connection.request("POST", path, json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


@dataclass
class Record:
    """What the clients saw."""

    predicts: list = field(default_factory=list)  # seconds
    learns: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    acknowledged: Counter = field(default_factory=Counter)
    unsure: dict = field(default_factory=dict)  # learns without an answer: label and samples


class Clients:
    """Clients that ask, and now and then teach a new class.

    `inputs` are ``{"texts": [...]}`` or ``{"features": [...]}`` to choose from.
    """

    def __init__(self, server, inputs, seed=0):
        self._port = urlsplit(server.address).port
        ((self._kind, self._inputs),) = inputs.items()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._made = 0
        self._version = 0  # of the last learn that was acknowledged
        self._run = f"{seed}-{time.time_ns():x}"

    def go(self, clients, seconds, learn_share, record):
        """Keep a number of clients busy for a while; `learn_share` of the requests teach."""
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(clients) as pool:
            for _ in range(clients):
                pool.submit(self._client, until, learn_share, record)

    def _client(self, until, learn_share, record):
        connection = HTTPConnection("127.0.0.1", self._port)
        try:
            while time.monotonic() < until:
                if self._random.random() < learn_share:
                    self._learn(connection, record)
                else:
                    self._predict(connection, record)
        except Exception as error:  # of the network, or of an answer that is none
            record.errors.append(repr(error))
        finally:
            connection.close()

    def _predict(self, connection, record):
        known, began = self._version, time.perf_counter()
        body = {self._kind: [self._random.choice(self._inputs)]}
        status, answer = _ask(connection, "/v1/predict", body)
        record.predicts.append(time.perf_counter() - began)
        if status != 200:
            record.errors.append(f"predict: {status} {answer}")
        elif answer["version"] < known:
            record.errors.append(f"predict: answers without change {known}, acknowledged before")

    def _learn(self, connection, record):
        """Teach one to three samples, of a new class four times out of five."""
        with self._lock:
            self._made += 1
            label, n = f"new-{self._run}-{self._made}", self._random.randint(1, 3)
            if self._made % 5 == 0:
                label = f"new-{self._run}-{self._made - 1}"
            key = f"{self._run}-{self._made}"
            record.unsure[key] = (label, n)
        body = {self._kind: self._random.sample(self._inputs, n), "labels": [label] * n}
        began = time.perf_counter()
        status, answer = _ask(connection, "/v1/learn", body, **{"Idempotency-Key": key})
        record.learns.append(time.perf_counter() - began)
        with self._lock:
            del record.unsure[key]
            if status == 200:
                record.acknowledged[label] += n
                self._version = max(self._version, answer["version"])
            else:
                record.errors.append(f"learn: {status} {answer}")


def lost_or_doubled(found, record):
    """Compare what a service has with what it acknowledged; return what is wrong.

    A learn that got no answer may or may not have been made.
    """
    possible = {label: {n} for label, n in record.acknowledged.items()}
    for label, n in record.unsure.values():
        known = possible.setdefault(label, {0})
        known |= {p + n for p in known}
    return [
        f"{label}: {found.get(label, 0)} samples, {sorted(numbers)} expected"
        for label, numbers in sorted(possible.items())
        if found.get(label, 0) not in numbers
    ]


@pytest.fixture
def inputs():
    return {"features": np.random.default_rng(0).normal(0, 3, (200, 8)).round(3).tolist()}


@pytest.fixture
def started():
    """Starts services, and ends what is left of them."""
    servers = []

    def start(model, *options):
        servers.append(ServiceProcess(model, *options))
        servers[-1].wait()
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def counts(server):
    with Client(server.address) as client:
        return client.classes


def show(what, seconds):
    """Print latencies; return the 99th percentile."""
    p50, p99 = np.percentile(seconds, [50, 99]) * 1000
    print(f"{what}: {len(seconds)}, p50 {p50:.1f} ms, p99 {p99:.1f} ms")  # noqa: T201
    return p99


def test_thirty_two_clients_lose_nothing(features_model, inputs, started):
    server = started(features_model)
    before, crowd = counts(server), Clients(server, inputs)
    quiet, mixed = Record(), Record()
    crowd.go(CLIENTS, SECONDS / 3, 0.0, quiet)
    crowd.go(CLIENTS, SECONDS, 0.1, mixed)
    after = counts(server)
    ratio = show("predicts while others teach", mixed.predicts) / show("predicts", quiet.predicts)
    if "KLDA_LOAD_SECONDS" in os.environ:  # a measurement, on a machine that is otherwise idle
        assert ratio <= 3
    show("learns", mixed.learns)
    assert [*quiet.errors, *mixed.errors] == []
    assert lost_or_doubled(after, mixed) == []
    assert sum(after.values()) - sum(before.values()) == sum(mixed.acknowledged.values())
    assert len(mixed.learns) > 10


def test_kills_lose_nothing_that_was_acknowledged(features_model, inputs, started):
    chance, total = random.Random(0), Record()
    for turn in range(KILLS):
        server = started(features_model, "--checkpoint-interval", "0.3")
        found = counts(server)
        assert lost_or_doubled(found, total) == [], f"after kill {turn}"
        # What a restarted service has is the truth about learns that got no answer.
        for label, _ in total.unsure.values():
            if label in found:
                total.acknowledged[label] = found[label]
        total.unsure.clear()
        threading.Timer(chance.uniform(0.02, 1.5), server.kill).start()
        Clients(server, inputs, turn).go(CLIENTS, 60.0, 0.1, total)
    assert lost_or_doubled(counts(started(features_model)), total) == []
    assert total.acknowledged


def test_a_graceful_stop_answers_and_saves_what_is_under_way(features_model, inputs, started):
    server = started(features_model, "--checkpoint-interval", "3600")
    crowd, record = Clients(server, inputs), Record()
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(crowd.go, 8, 30.0, 0.5, record)
        wait_for(lambda: record.acknowledged, 60)
        time.sleep(1.0)
        assert server.stop() == 0
        going.result()
    assert journaled(features_model) == []
    found = Learner.load(features_model, verify=True).classes
    assert record.acknowledged
    assert not lost_or_doubled(found, record)


def test_the_check_sees_what_is_lost_and_what_is_doubled():
    record = Record(acknowledged={"a": 2, "b": 1}, unsure={"k": ("b", 3)})
    assert lost_or_doubled({"a": 2, "b": 1}, record) == []
    assert lost_or_doubled({"a": 2, "b": 4}, record) == []
    assert len(lost_or_doubled({"a": 4, "b": 1}, record)) == 1
    assert len(lost_or_doubled({"a": 2}, record)) == 1
    assert len(lost_or_doubled({"a": 2, "b": 2}, record)) == 1
