"""The service on the real MiniLM."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from klda.learner import Learner

from .conftest import serving

NEW = [
    "my parcel was left in the rain",
    "the box arrived soaked and torn",
    "the delivery came broken",
    "everything in the package is smashed",
]


def test_teach_and_ask(text_model):
    with serving(text_model) as client:
        known = client.get("/v1/classes").json()["classes"]
        assert len(known) == 6
        body = {"texts": NEW, "labels": ["damaged_parcel"] * 4}
        assert client.post("/v1/learn", json=body).json()["new_classes"] == ["damaged_parcel"]
        answer = client.post("/v1/predict", json={"text": "my package is broken and wet"}).json()
        assert answer["predictions"][0]["label"] == "damaged_parcel"
        why = client.post("/v1/explain", json={"text": "my package is broken and wet"}).json()
        assert [word["word"] for word in why["words"]] == [
            "my",
            "package",
            "is",
            "broken",
            "and",
            "wet",
        ]
        assert max(abs(word["weight"]) for word in why["words"]) == 1.0
    assert Learner.load(text_model).predict(["my package is broken and wet"]) == ["damaged_parcel"]


def test_strange_texts_are_answered(text_model):
    strange = ["🐜" * 2000, "\u202eabc", "a\x00b", "<script>alert(1)</script>", "x" * 20_000]
    with serving(text_model) as client:
        answer = client.post("/v1/predict", json={"texts": strange})
        assert answer.status_code == 200
        assert len(answer.json()["predictions"]) == 5


def test_requests_that_come_together_are_encoded_together(text_model):
    sizes = []
    with serving(text_model) as client, ThreadPoolExecutor(16) as pool:
        service = client.app.state.service
        observe = service.batcher.on_batch
        service.batcher.on_batch = lambda size: (sizes.append(size), observe(size))
        texts = [f"question number {i} about my card" for i in range(48)]
        answers = list(pool.map(lambda t: client.post("/v1/predict", json={"text": t}), texts))
        alone = client.post("/v1/predict", json={"texts": texts}).json()["predictions"]
    together = [answer.json()["predictions"][0] for answer in answers]
    assert [p["label"] for p in together] == [p["label"] for p in alone]
    assert sum(sizes) == 96
    assert max(sizes[:-1]) > 4
    assert len(sizes) < 40
