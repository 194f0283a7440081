"""Requests that Label Studio 1.23.2 sent, with an ML backend connected, to be answered and learned.

label_studio_1.23.2.json has their bodies as they were recorded, without tokens.
"""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path

import pytest

from klda.server.errors import ServerError
from klda.server.label_studio import LabelingConfig

from .conftest import ASK, KEYS, TEACH, serving

RECORDED = json.loads((Path(__file__).parent / "label_studio_1.23.2.json").read_text())
ARRIVAL, REFUND = "card_arrival", "refund"


@pytest.fixture
def client(tmp_path):
    with serving(tmp_path / "texts", new="ngrams") as client:
        yield client


def post(client, name, status=201, **changes):
    sent = copy.deepcopy(RECORDED[name])
    for place, value in changes.items():
        *path, last = place.split("__")
        where = sent["body"]
        for part in path:
            where = where[part]
        where[last] = value
    kind = {"Content-Type": "application/json"}
    answer = client.post(sent["path"], content=json.dumps(sent["body"]), headers=kind)
    assert answer.status_code == status, answer.text
    return answer.json()


def classes(client):
    found = client.get("/v1/classes").json()["classes"]
    return {one["label"]: one["samples"] for one in found}


def chosen(*labels):
    value = {"choices": list(labels)}
    return [{"from_name": "intent", "to_name": "text", "type": "choices", "value": value}]


def test_a_project_is_connected_asked_and_learned_from(client):
    assert client.get("/label-studio/health").json() == {"status": "UP", "model_class": "klda"}
    assert post(client, "setup", 200) == {"model_version": "klda-1"}
    assert post(client, "setup", 200) == {"model_version": "klda-1"}
    assert classes(client) == {ARRIVAL: 0, REFUND: 0}  # declared by their names
    assert post(client, "TASKS_CREATED", 200) == {"status": "Unknown event"}
    assert post(client, "ANNOTATION_CREATED 1")["result"] == {"changes": 1}
    assert post(client, "ANNOTATION_CREATED 1")["result"] == {"changes": 0}
    post(client, "ANNOTATION_CREATED 2")
    assert classes(client) == {ARRIVAL: 2, REFUND: 0}
    assert post(client, "ANNOTATION_UPDATED")["result"] == {"changes": 2}
    assert classes(client) == {ARRIVAL: 1, REFUND: 1}
    assert post(client, "START_TRAINING")["status"] == "ok"
    answer = post(client, "predict 3", 200)
    assert [one["result"] for one in answer["results"]] == [
        chosen(ARRIVAL),
        chosen(REFUND),
        chosen(ARRIVAL),
    ]
    assert all(0.5 < one["score"] <= 1 for one in answer["results"])
    assert {one["model_version"] for one in answer["results"]} == {"klda-5"}
    made = client.get("/v1/history").json()["changes"]
    assert {one["by"] for one in made} == {"label-studio"}


@pytest.mark.parametrize("result", [[], chosen(ARRIVAL, REFUND), [{"from_name": "other"}]])
def test_an_annotation_that_is_not_one_class_is_not_learned(client, result):
    post(client, "ANNOTATION_CREATED 1", annotation__result=result)
    assert classes(client) == {}
    post(client, "ANNOTATION_CREATED 1")
    post(client, "ANNOTATION_CREATED 2")
    post(client, "ANNOTATION_UPDATED", annotation__result=result)  # nor any more
    assert classes(client) == {ARRIVAL: 1}


def test_choices_without_a_word_are_learned_from_annotations_alone(tmp_path):
    config = '<View><Text name="t" value="$text"/><Choices name="c" toName="t">{}</Choices></View>'
    choices = "".join(f'<Choice value="{stars}"/>' for stars in range(1, 6))
    with connected(tmp_path / "stars") as client:
        body = {"project": "7.1", "schema": config.format(choices)}
        assert client.post("/label-studio/setup", json=body).status_code == 200
        assert classes(client) == {}


def test_what_was_skipped_is_not_learned(client):
    post(client, "ANNOTATION_CREATED 1", annotation__was_cancelled=True)
    assert classes(client) == {}


def connected(folder):
    return serving(folder, new="ngrams")


def test_an_annotation_that_is_deleted_is_as_if_it_never_was(tmp_path):
    text = RECORDED["ANNOTATION_CREATED 1"]["body"]["task"]["data"]["text"]
    asked = {"texts": [text, "I want my money back", "where is it"], "top": 2}
    learn = {"texts": ["my card is late", "a refund, please"], "labels": [ARRIVAL, REFUND]}
    answers = []
    for has_one in (True, False):
        with connected(tmp_path / f"{has_one}") as client:
            client.post("/v1/learn", json=learn)
            if has_one:
                post(client, "ANNOTATION_CREATED 1")
            post(client, "ANNOTATION_CREATED 2")
            client.post("/v1/rename", json={"old": ARRIVAL, "new": "arrival"})
        with connected(tmp_path / f"{has_one}") as client:
            if has_one:
                assert post(client, "ANNOTATIONS_DELETED")["result"] == {"changes": 1}
                assert post(client, "ANNOTATIONS_DELETED")["result"] == {"changes": 0}
            assert classes(client) == {"arrival": 2, REFUND: 1}
            answers.append(client.post("/v1/predict", json=asked).json()["predictions"])
            if has_one:  # and it can be annotated again
                assert post(client, "ANNOTATION_CREATED 1")["result"] == {"changes": 1}
    for one, other in zip(*answers, strict=True):
        assert one["label"] == other["label"]
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)


def test_what_can_not_be_taken_back_any_more_is_said(tmp_path):
    with connected(tmp_path / "m") as client:
        post(client, "ANNOTATION_CREATED 1")
        client.post("/v1/expire-undo", json={})
        result = post(client, "ANNOTATIONS_DELETED")["result"]
        (left,) = result["not_taken_back"]
        assert (result["changes"], left["annotation"]) == (0, 1)
        assert "too long ago" in left["reason"]
        assert classes(client) == {ARRIVAL: 1}
        changed = post(client, "ANNOTATION_CREATED 1", annotation__result=chosen(REFUND))
        assert changed["result"] == {"changes": 2}  # with its text it can
        assert classes(client) == {REFUND: 1}


def test_what_was_undone_elsewhere_is_not_taken_back_twice(client):
    twin = copy.deepcopy(RECORDED["ANNOTATION_CREATED 1"]["body"]["annotation"]) | {"id": 99}
    post(client, "ANNOTATION_CREATED 1")
    post(client, "ANNOTATION_CREATED 1", annotation=twin)  # the same text, by someone else
    undone = client.post("/v1/undo", json={"undo": 1}).json()
    for name, changes in (("ANNOTATIONS_DELETED", 0), ("ANNOTATIONS_DELETED", 0)):
        assert post(client, name)["result"] == {"changes": changes}
    assert post(client, "ANNOTATION_UPDATED", annotation__id=1)["result"] == {"changes": 1}
    assert classes(client) == {ARRIVAL: 1, REFUND: 1}
    client.post("/v1/undo", json={"undo": undone["undo"]})  # made again
    assert classes(client) == {ARRIVAL: 2, REFUND: 1}


def test_training_learns_what_was_not_learned_yet(client):
    post(client, "ANNOTATION_CREATED 1")
    created = [RECORDED[f"ANNOTATION_CREATED {i}"]["body"] for i in (1, 2)]
    tasks = [one["task"] | {"annotations": [one["annotation"]]} for one in created]
    body = {
        "annotations": tasks,
        "project": "2.1795020311",
        "label_config": created[0]["project"]["label_config"],
        "params": {"login": None, "password": None},
    }
    for changes in (1, 0):
        answer = client.post("/label-studio/train", json=body)
        assert (answer.status_code, answer.json()["result"]) == (201, {"changes": changes})
    assert classes(client) == {ARRIVAL: 2}


def test_classes_that_the_project_does_not_have_are_not_answered(client):
    texts = [task["data"]["text"] for task in RECORDED["predict 3"]["body"]["tasks"]]
    labels = ["others", REFUND, "others"]
    client.post("/v1/learn", json={"texts": texts, "labels": labels})
    results = post(client, "predict 3", 200)["results"]
    assert [one["result"] for one in results] == [chosen(REFUND)] * 3
    assert results[0]["score"] < results[1]["score"]


def test_tasks_without_an_answer_have_an_empty_one(client):
    nothing = {"result": [], "score": 0.0, "model_version": "klda-0"}
    assert post(client, "predict 3", 200)["results"] == [nothing] * 3
    post(client, "ANNOTATION_CREATED 1")
    post(client, "ANNOTATION_UPDATED")
    tasks = [
        {"id": 1, "data": {}},
        {"id": 2, "data": {"text": " "}},
        {"id": 3, "data": {"text": 7}},
    ]
    found = post(client, "predict 3", 200, tasks=tasks)["results"]
    assert [one["result"] for one in found] == [[]] * 3


def test_the_key_is_the_password(tmp_path):
    def basic(key):
        return {"Authorization": "Basic " + base64.b64encode(f"klda:{key}".encode()).decode()}

    with serving(tmp_path / "model", new="ngrams", keys=KEYS) as client:
        assert client.get("/label-studio/health").status_code == 200
        for name, status in (("setup", 200), ("ANNOTATION_CREATED 1", 201), ("predict 1", 200)):
            sent = RECORDED[name]
            for headers, expected in (
                ({}, 401),
                ({"Authorization": "Basic !"}, 401),
                (basic("wrong-key-0123456789"), 401),
                (basic(ASK), 200 if name == "predict 1" else 403),
                (basic(TEACH), status),
            ):
                answer = client.post(sent["path"], json=sent["body"], headers=headers)
                assert answer.status_code == expected


CHOICES = '<Choices name="c" toName="t"><Choice value="A" alias="a"/><Choice value="B"/></Choices>'


def test_the_first_choices_of_a_text_count():
    config = LabelingConfig.of(
        '<View><!-- x --><Image name="i" value="$url"/><Text name="t" value="$body"/>'
        f'<Choices name="x" toName="i"><Choice value="no"/></Choices>{CHOICES}</View>'
    )
    assert config == LabelingConfig("c", "t", "body", ("a", "B"))


@pytest.mark.parametrize(
    "xml, says",
    [
        ("", "can't be read"),
        ("<View>", "can't be read"),
        (f'<!DOCTYPE x [<!ENTITY a "b">]><View>{CHOICES}</View>', "defines entities"),
        ("<View></View>", "needs <Text"),
        (f'<View><Image name="t" value="$u"/>{CHOICES}</View>', "needs <Text"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(xml, says):
    with pytest.raises(ServerError, match=says):
        LabelingConfig.of(xml)


def test_bodies_that_are_nonsense_are_refused(client, features_model):
    wrong = {"annotations": [{"id": {}}]}
    own = {"setup": {"schema": 7}, "predict": {"tasks": 7}, "train": wrong, "webhook": wrong}
    for path in own:
        for body in ([], {"project": []}, own[path]):
            assert client.post(f"/label-studio/{path}", json=body).status_code == 422
    assert client.post("/label-studio/predict", json={}).status_code == 422
    for value in (7, "x", {"choices": 7}, {"choices": [7]}, {"choices": ["\ud800"]}):
        result = [{"from_name": "intent", "value": value}]
        post(client, "ANNOTATION_CREATED 1", 422, annotation__result=result)
    post(client, "ANNOTATION_CREATED 1", 422, task__data={"text": "\ud800"})
    assert classes(client) == {}
    with serving(features_model) as other:
        post(other, "setup", 422)
