"""Tables that are taught in the background: a stop waits for them, and rows count once."""

from __future__ import annotations

import asyncio

from klda.learner import Learner
from klda.server.page.teaching import Import
from klda.server.service import Service
from klda.server.settings import ServiceSettings

from .conftest import serving, wait_for

TABLE = [f"where is parcel number {i}?" for i in range(150)]


def send(client, label="parcels"):
    rows = "text,label\n" + "\n".join(f"{text},{label}" for text in TABLE)
    where = client.post("/page/import", data={"rows": rows}).headers["HX-Redirect"]
    number = where.removeprefix("/import/")
    assert client.post(f"/page/import/{number}/teach").status_code == 200
    return number


async def whole(table):
    await table.begin({})
    await table.finish(60)


def wait_until_taught(client):
    wait_for(lambda: not any(one.is_running for one in client.app.state.page.tables.values()), 60)


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


def test_a_table_that_was_undone_is_taught_when_it_is_sent_again(tmp_path):
    def samples():
        return client.get("/v1/model").json()["samples"]

    with serving(tmp_path / "new", new="ngrams") as client:
        for _ in range(2):
            number = send(client)
            wait_until_taught(client)
            assert samples() == 150
            assert client.post(f"/page/import/{number}/undo").status_code == 200
            assert samples() == 0
        for said in ("Taught 150 rows, 1 new class.", "all rows were taught before"):
            number = send(client)
            wait_until_taught(client)
            assert said in client.get(f"/page/import/{number}").text
            assert samples() == 150


def test_a_table_that_is_cut_off_is_completed_when_it_is_sent_again(text_model, monkeypatch):
    monkeypatch.setattr("klda.server.page.teaching.PART", 64)
    service = Service(ServiceSettings(model=text_model))
    labels = ["parcels"] * len(TABLE)

    async def cut_off():
        table = Import(service, "table", inputs=TABLE, labels=labels)
        real = service.learn_rows

        async def learn_rows(*args):
            done = await real(*args)
            table.cancel()
            return done

        monkeypatch.setattr(service, "learn_rows", learn_rows)
        await table.begin({})
        await table.finish(60)
        monkeypatch.setattr(service, "learn_rows", real)
        return table

    table = asyncio.run(cut_off())
    assert (table.taught, service.snapshot.counts["parcels"]) == (64, 64)
    asyncio.run(whole(Import(service, "table", inputs=TABLE, labels=labels)))
    assert service.snapshot.counts["parcels"] == len(TABLE)
    service.stop()


def test_cancel_while_encoding_teaches_nothing(text_model):
    async def cancelled(service):
        table = Import(service, "table", inputs=TABLE, labels=["parcels"] * len(TABLE))
        await table.begin({})
        table.cancel()
        await table.finish(60)
        return table

    service = Service(ServiceSettings(model=text_model))
    table = asyncio.run(cancelled(service))
    assert (table.taught, table.error) == (0, "")
    assert "parcels" not in service.snapshot.counts
    service.stop()
