"""Load and kills: a real service in a process of its own. KLDA_KILLS=100 kills it more often."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.server.conftest import features_model, features_origin, journaled

from klda.learner import Learner
from klda_bench.measure import load

__all__ = ["features_model", "features_origin"]

KILLS = int(os.environ.get("KLDA_KILLS", "5"))

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills with POSIX signals")


@pytest.fixture
def inputs():
    return {"features": np.random.default_rng(0).normal(0, 3, (200, 8)).round(3).tolist()}


def test_thirty_two_clients_lose_nothing(features_model, inputs):
    result = load.under_load(features_model, inputs, clients=32, seconds=4.0)
    assert result["errors"] == 0, result
    assert result["lost_or_doubled"] == 0, result
    assert result["learns"] > 10


def test_kills_lose_nothing_that_was_acknowledged(features_model, inputs):
    result = load.killed(features_model, inputs, clients=32, times=KILLS)
    assert result["lost_or_doubled"] == 0, result
    assert result["acknowledged_samples"] > 0


def test_a_graceful_stop_answers_and_saves_what_is_under_way(features_model, inputs):
    server = load.Server(features_model, "--checkpoint-interval", "3600")
    server.wait()
    crowd, record = load.Clients(server.port, inputs), load.Record()

    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(crowd.go, 8, 30.0, 0.5, record)
        time.sleep(1.0)
        assert server.stop() == 0
        going.result()
    assert journaled(features_model) == []
    found = Learner.load(features_model, verify=True).classes
    assert record.acknowledged
    assert not load.lost_or_doubled(found, record)


def test_the_check_sees_what_is_lost_and_what_is_doubled():
    record = load.Record(acknowledged={"a": 2, "b": 1}, unsure={"k": ("b", 3)})
    assert load.lost_or_doubled({"a": 2, "b": 1}, record) == []
    assert load.lost_or_doubled({"a": 2, "b": 4}, record) == []
    assert len(load.lost_or_doubled({"a": 4, "b": 1}, record)) == 1
    assert len(load.lost_or_doubled({"a": 2}, record)) == 1
    assert len(load.lost_or_doubled({"a": 2, "b": 2}, record)) == 1
