"""Tables that are taught in the background: a stop waits for them, and rows count once."""

from __future__ import annotations

import asyncio

import pytest

from klda.learner import Learner
from klda.server.service import Service
from klda.server.settings import ServiceSettings
from klda.server.uploads import CHUNK, Upload

from .conftest import serving, wait_for

TABLE = [f"where is parcel number {i}?" for i in range(150)]


def send(client, label="parcels"):
    rows = "text,label\n" + "\n".join(f"{text},{label}" for text in TABLE)
    answer = client.post("/page/upload", data={"rows": rows})
    assert answer.status_code == 200
    return answer


def wait_until_taught(client):
    wait_for(lambda: client.app.state.uploads._task.done(), 60)


def test_a_stop_waits_for_a_table(text_model):
    with serving(text_model) as client:
        send(client)
    assert Learner.load(text_model).classes["parcels"] == 150


def test_a_table_that_is_sent_again_counts_once(text_model):
    with serving(text_model) as client:
        send(client)
    with serving(text_model) as client:
        send(client)
        wait_until_taught(client)
        assert client.get("/v1/classes?search=parcels").json()["classes"][0]["samples"] == 150
        # A class that was forgotten is taught again.
        client.post("/v1/forget", json={"labels": ["parcels"]})
        send(client)
        wait_until_taught(client)
        assert client.get("/v1/classes?search=parcels").json()["classes"][0]["samples"] == 150


def test_a_table_that_is_cut_off_is_completed_when_it_is_sent_again(text_model, monkeypatch):
    service = Service(ServiceSettings(model=text_model))
    labels = ["parcels"] * len(TABLE)
    real, calls = service.learn, []

    async def learn(*args):
        calls.append(args)
        if len(calls) == 2:
            raise asyncio.CancelledError
        return await real(*args)

    monkeypatch.setattr(service, "learn", learn)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(Upload(TABLE, labels).teach(service))
    assert service.snapshot.counts["parcels"] == CHUNK
    asyncio.run(Upload(TABLE, labels).teach(service))
    assert service.snapshot.counts["parcels"] == len(TABLE)
    service.stop()
