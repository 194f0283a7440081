"""Files that are sent to be learned."""

from __future__ import annotations

import pytest

from .conftest import serving

CSV = b"Subject;Body;Queue\nCard;where is it?;cards\nPIN;blocked;pins\n;;pins\n"


@pytest.fixture
def client(tmp_path):
    with serving(tmp_path / "texts", new="ngrams") as client:
        yield client


def send(client, content=CSV, name="tickets.csv", headers=None, **form):
    files = {"file": (name, content)}
    return client.post("/v1/learn-file", files=files, data=form, headers=headers)


def test_the_answer_says_what_was_read_and_what_was_left_out(client):
    refused = send(client)
    assert refused.status_code == 422
    assert "tickets.csv, line 4" in refused.json()["error"]["message"]
    answer = send(client, skip_bad="true").json()
    assert (answer["learned"], answer["classes"]) == (2, 2)
    assert (answer["texts"], answer["labels"]) == (["Subject", "Body"], "Queue")
    assert [row["place"] for row in answer["skipped"]] == ["line 4"]
    answer = send(client, CSV[:-7], text=["Body"], label="Subject").json()
    assert set(answer["new_classes"]) == {"Card", "PIN"}
    assert answer["texts"] == ["Body"]


def test_a_file_that_is_sent_again_with_its_key_counts_once(client):
    key = {"Idempotency-Key": "k"}
    assert send(client, CSV[:-7], headers=key).json()["learned"] == 2
    again = send(client, CSV[:-7], headers=key).json()
    assert (again["learned"], again["samples"], again["repeated"]) == (0, 2, True)
    assert send(client, CSV[:-7], headers=key, text="Body").status_code == 409


def test_too_many_rows_and_other_models(client, features_model, monkeypatch):
    monkeypatch.setattr("klda.server.inputs.MAX_COMPARED", 1)
    assert send(client, CSV[:-7]).status_code == 413
    with serving(features_model) as other:
        assert send(other).status_code == 422
