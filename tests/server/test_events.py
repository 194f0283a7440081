"""Clients that follow a model."""

from __future__ import annotations

import threading
import time

import httpx
import numpy as np
import pytest

from klda import Client
from klda.server import events

from .conftest import ASK, FIRST, KEYS, fails, listening, rows, serving, wait_for


@pytest.fixture(autouse=True)
def long_streams(brief_streams, monkeypatch):
    monkeypatch.setattr(events, "STREAM_SECONDS", 600.0)


def test_a_client_follows_the_changes_of_others(features_model):
    with listening(features_model) as address, Client(address) as client:
        seen = []

        def follow():
            with Client(address) as follower:
                for state in follower.follow():
                    seen.append(state)
                    if len(seen) == 3:
                        return

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        wait_for(lambda: seen)
        client.learn(rows("dogs", 2), ["dogs"] * 2)
        wait_for(lambda: len(seen) == 2)
        client.rename("dogs", "hounds")
        thread.join(20)
    assert seen == [
        {"version": FIRST - 1, "classes": 3, "samples": 120},
        {"version": FIRST, "classes": 4, "samples": 122},
        {"version": FIRST + 1, "classes": 4, "samples": 122},
    ]


def test_a_stop_does_not_wait_for_those_who_follow(features_model):
    with httpx.Client(timeout=60) as http:
        with listening(features_model) as address:
            answer = http.send(http.build_request("GET", f"{address}v1/events"), stream=True)
            assert next(answer.iter_raw()).startswith(b"retry: 2000\nevent: change\n")
            began = time.monotonic()
        assert time.monotonic() - began < 10
        answer.close()


def test_signs_of_life_and_an_end_after_a_while(features_model, monkeypatch):
    with listening(features_model) as address:
        with httpx.stream("GET", f"{address}v1/events", timeout=60) as answer:
            lines = answer.iter_lines()
            assert "event: change" in [next(lines) for _ in range(4)]
            assert [next(line for line in lines if line) for _ in range(3)] == [":"] * 3
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in answer.headers
        monkeypatch.setattr(events, "STREAM_SECONDS", 0.3)
        assert httpx.get(f"{address}v1/events", timeout=60).text.count("event: change") == 1


def test_those_who_follow_need_a_key_and_are_not_too_many(features_model, monkeypatch):
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.0)
    with serving(features_model, keys=KEYS) as client:
        assert client.get("/v1/events").status_code == 401
        assert client.get("/v1/events", headers={"X-API-Key": ASK}).status_code == 200
    monkeypatch.setattr(events, "MAX_WATCHERS", 0)
    with serving(features_model) as client:
        assert client.get("/v1/events").status_code == 503
    with listening(features_model) as address, Client(address) as client, fails(503, "Too many"):
        next(client.follow())


def test_a_stream_that_ends_is_asked_for_again_after_a_pause_and_tells_what_is_new(
    features_model, monkeypatch
):
    monkeypatch.setattr(events, "STREAM_SECONDS", 0.0)
    monkeypatch.setattr("klda.server.client.FOLLOW_AGAIN_SECONDS", 0.2)
    with listening(features_model) as address, Client(address) as client, Client(address) as other:
        began, stream = [], client._http.stream

        def count(*of, **how):
            began.append(time.monotonic())
            if len(began) == 4:
                other.learn(rows("dogs", 2), ["dogs"] * 2)
            return stream(*of, **how)

        monkeypatch.setattr(client._http, "stream", count)
        following = client.follow()
        seen = [next(following), next(following)]
    assert [one["version"] for one in seen] == [FIRST - 1, FIRST]
    assert len(began) == 4
    assert min(np.diff(began)) >= 0.2
